package datafile

import (
	"context"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

func TestWithoutDeadlineKeepsCancellation(t *testing.T) {
	t.Parallel()
	late, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	<-late.Done()
	free, release := withoutDeadline(late)
	defer release()
	if err := free.Err(); err != nil {
		t.Errorf("after the deadline: %v", err)
	}
	gone, leave := context.WithCancel(t.Context())
	free, release = withoutDeadline(gone)
	defer release()
	leave()
	<-free.Done()
}

// told is a Collector whose figures are given.
type told struct {
	*Collector
	read func() figures
}

func (c told) Collect(ch chan<- prometheus.Metric) {
	now := c.read()
	now.send(ch)
}

func TestStoreIsReadAtScrapeTime(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewPedanticRegistry()
	stats := figures{revision: 7}
	registry.MustRegister(told{&Collector{}, func() figures { return stats }})
	stats = figures{revision: 8, compactRevision: 2, fileBytes: 32768, logBytes: 8192, freeBytes: 4096, corrupt: 1,
		trackedShort: 5, trackedGeneral: 1, commits: 2, changes: 3, commitSeconds: 0.01, commitBuckets: map[float64]uint64{0.001: 1, 0.01: 2},
		objects: []objectFigures{{"", "pods", 2, 2048}, {"apps", "deployments", 1, 900}}}
	w := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for line := range strings.Lines(`apilet_store_revision 8
apilet_store_compact_revision 2
apilet_store_file_bytes 32768
apilet_store_log_bytes 8192
apilet_store_free_bytes 4096
apilet_store_corrupt_records 1
apilet_store_committed_changes_total 3
apilet_managed_fields_writes_total{way="short"} 5
apilet_managed_fields_writes_total{way="general"} 1
apilet_store_commit_duration_seconds_bucket{le="0.001"} 1
apilet_store_commit_duration_seconds_count 2
apiserver_storage_size_bytes{storage_cluster_id="bbolt"} 32768
apiserver_storage_objects{resource="pods"} 2
apiserver_storage_objects{resource="deployments.apps"} 1
apiserver_resource_objects{group="apps",resource="deployments"} 1
apiserver_resource_size_estimate_bytes{group="",resource="pods"} 2048
`) {
		if !strings.Contains(w.Body.String(), "\n"+line) {
			t.Errorf("/metrics lacks the line\n%s", line)
		}
	}
}
