package torture

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
)

// backend answers as a server does, and tells what it was asked for.
func backend(t *testing.T, asked chan<- string) *server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		asked <- fmt.Sprintf("%s %s %s %s", r.Method, r.URL.RequestURI(), r.Header.Get("Accept"), body)
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Query().Get("watch") == "" {
			w.Header().Set("Warning", `299 - "told"`)
			w.WriteHeader(http.StatusCreated)
			fmt.Fprint(w, `{"metadata":{"name":"a-1","generateName":"a-","resourceVersion":"7"}}`)
			return
		}
		for i := range 3 {
			fmt.Fprintf(w, `{"type":"ADDED","object":{"metadata":{"name":"m%d"}}}`+"\n", i)
		}
	}))
	t.Cleanup(s.Close)
	return &server{url: s.URL}
}

func openTestDoor(t *testing.T, tr *tricks) (*door, chan string) {
	t.Helper()
	asked := make(chan string, 10)
	d, err := openDoor(backend(t, asked), 0, func(string, string) bool { return true }, tr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.close)
	return d, asked
}

func post(t *testing.T, d *door, body string) (*http.Response, string) {
	t.Helper()
	r, _ := http.NewRequest("POST", d.url+"/api/v1/namespaces/x/configmaps?dryRun=", strings.NewReader(body))
	r.Header.Set("Accept", "application/vnd.kubernetes.protobuf, application/json")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, err.Error()
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	return resp, string(text)
}

func TestDoorPassesOnWhatNobodyTricks(t *testing.T) {
	t.Parallel()
	d, asked := openTestDoor(t, &tricks{})
	const body = `{"metadata":{"generateName":"a-"}}`
	resp, text := post(t, d, body)
	if resp == nil || resp.StatusCode != 201 || resp.Header.Get("Warning") == "" || !strings.Contains(text, `"a-1"`) {
		t.Errorf("%v %s", resp, text)
	}
	if got, want := <-asked, "POST /api/v1/namespaces/x/configmaps?dryRun= application/json "+body; got != want {
		t.Errorf("asked for %q, want %q", got, want)
	}
	if resp, err := http.Get(d.url + "/api/v1/namespaces/x/configmaps/a-1"); err != nil || resp.StatusCode != 201 {
		t.Error(err)
	}
	all := d.requests()
	if len(all) != 2 || all[0].what != "create configmaps x/a-*" || all[0].rev != 7 || !all[0].writes || all[1].what != "get configmaps x/a-*" || all[1].writes {
		t.Errorf("%+v", all)
	}
}

func TestDoorRefusesCutsAndHoldsBack(t *testing.T) {
	t.Parallel()
	later := make(chan struct{})
	var refusedOnce atomic.Bool
	d, asked := openTestDoor(t, &tricks{
		before: func(p *passed) *refusal {
			if p.info.Verb == "create" && !refusedOnce.Swap(true) {
				return &refusal{code: 429, reason: "TooManyRequests", retry: 1}
			}
			return nil
		},
		after: func(p *passed) *refusal {
			if p.info.Verb == "create" && p.nth == 1 {
				return &refusal{drop: true}
			}
			return nil
		},
		past: func(p *passed) int64 {
			if p.info.Verb == "list" {
				return 5
			}
			return 0
		},
		frame: func(_ *passed, f frame) hold {
			switch {
			case strings.Contains(string(f.raw), "m1"):
				return hold{first: []byte(`{"type":"BOOKMARK"}`), wait: later}
			case strings.Contains(string(f.raw), "m2"):
				return hold{cut: true}
			}
			return hold{}
		},
	})
	if resp, text := post(t, d, `{"metadata":{"name":"a"}}`); resp == nil || resp.StatusCode != 429 || resp.Header.Get("Retry-After") != "1" || len(asked) > 0 {
		t.Errorf("%v %s, %d requests went on", resp, text, len(asked))
	}
	if resp, text := post(t, d, `{"metadata":{"name":"a"}}`); resp != nil || len(asked) != 1 {
		t.Errorf("answered %v %s, %d requests went on", resp, text, len(asked))
	}
	<-asked
	if _, err := http.Get(d.url + "/api/v1/configmaps?resourceVersion=0&limit=5"); err != nil {
		t.Error(err)
	}
	if got := <-asked; !strings.HasPrefix(got, "GET /at/5/api/v1/configmaps?limit=5 ") {
		t.Error(got)
	}
	resp, err := http.Get(d.url + "/api/v1/configmaps?watch=true")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	if lines.Scan(); !strings.Contains(lines.Text(), "m0") {
		t.Error(lines.Text())
	}
	if lines.Scan(); !strings.Contains(lines.Text(), "BOOKMARK") {
		t.Error(lines.Text())
	}
	close(later)
	if lines.Scan(); !strings.Contains(lines.Text(), "m1") {
		t.Error(lines.Text())
	}
	if lines.Scan() {
		t.Error("a watch that was cut goes on with ", lines.Text())
	}
}
