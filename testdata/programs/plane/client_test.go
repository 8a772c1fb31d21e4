package main

import (
	"math"
	"net/http"
	"net/http/httptest"
	"testing"
)

const metrics = `# HELP apiserver_request_total Counter
apiserver_request_total{code="201",scope="resource",verb="POST"} 90
apiserver_request_total{code="409",scope="resource",verb="PUT"} 7
apiserver_request_total{code="409",scope="resource",verb="POST"} 2
apiserver_request_total{code="429",scope="cluster",verb="LIST"} 1
apiserver_request_sli_duration_seconds_bucket{scope="resource",subresource="",verb="POST",le="0.05"} 90
apiserver_request_sli_duration_seconds_bucket{scope="resource",subresource="",verb="POST",le="0.1"} 98
apiserver_request_sli_duration_seconds_bucket{scope="resource",subresource="status",verb="PUT",le="0.05"} 1
apiserver_request_sli_duration_seconds_bucket{scope="resource",subresource="status",verb="PUT",le="0.1"} 1
apiserver_request_sli_duration_seconds_bucket{scope="resource",subresource="",verb="POST",le="+Inf"} 99
apiserver_request_sli_duration_seconds_bucket{scope="resource",subresource="status",verb="PUT",le="+Inf"} 1
apiserver_request_sli_duration_seconds_bucket{scope="",subresource="/healthz",verb="GET",le="+Inf"} 1000
`

// TestCallsAreReadOffMetrics checks the sums and quantiles that are computed from the metrics.
func TestCallsAreReadOffMetrics(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(metrics)) }))
	defer server.Close()
	c := &client{url: server.URL, http: server.Client()}
	is, err := c.calls(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if is.all != 100 || is.writes != 99 || is.conflicts != 7 || is.busy != 1 {
		t.Errorf("%v calls, %v writes, %v conflicts, %v refused", is.all, is.writes, is.conflicts, is.busy)
	}
	mutating := is.durations[levels[0].name]
	for share, want := range map[float64]float64{0.5: 0.05, 0.95: 0.1, 0.999: math.Inf(1)} {
		if got := mutating.quantile(share); got != want {
			t.Errorf("%v of the calls lie below %v s, want %v", share, got, want)
		}
	}
	if got := is.durations[levels[1].name].quantile(0.5); !math.IsNaN(got) {
		t.Errorf("no object was asked for, and it took %v s", got)
	}
	if later := is.since(is); later.all != 0 || !math.IsNaN(later.durations[levels[0].name].quantile(0.5)) {
		t.Errorf("nothing has happened since, and there are %v", later)
	}
}
