package aggregation

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"apilet/internal/request"
)

func TestPathsThatSayTwoThingsAreNotStraight(t *testing.T) {
	for path, want := range map[string]bool{
		"/apis/g/v1/things": true, "/apis/g/v1/things/": true, "/apis/g/v1/things/a%20b": true, "/apis/g/v1/things/a%2fb": false, "/apis/g/v1/things/a%2Fb": false,
		"/apis/g/v1/things/../x": false, "/apis/g/v1/./things": false, "/apis/g/v1//things": false, "/apis/g/v1/things/%2e%2e": false, `/apis/g/v1/a\b`: false,
		"/apis/g/v1/things//": false, "/apis/g/v1/things/a..b": true,
	} {
		u, err := url.Parse(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := isUnambiguousPath(u); got != want {
			t.Errorf("%s: %v", path, got)
		}
	}
}

func TestWantedIsWhatWasAuthorized(t *testing.T) {
	for path, want := range map[string]string{
		"/apis/g/v1/things": "g/v1", "/apis/g/v1": "g/v1", "/apis/g/v1/": "g/v1", "/apis/g": "g/", "/apis": "", "/api/v1/pods": "", "/api/v1": "", "/apis/g/v1/watch": "g/v1",
		"/apis/g%2Fv1/x/things": "g/v1/x", "/livez": "", "/apis//v1/pods": "/v1",
	} {
		r, _ := http.NewRequest("GET", path, nil)
		info := request.Parse(r)
		gv := groupVersionOf(&info)
		if got := gv.Group + "/" + gv.Version; got != want && !(got == "/" && want == "") {
			t.Errorf("%s: %q", path, got)
		}
	}
}

func TestHeadersSayWhoAsks(t *testing.T) {
	h := http.Header{}
	addIdentity(h, &request.User{Name: "a", UID: "1", Groups: []string{"g", "h"}, Extra: map[string][]string{"example.com/Team%": {"red", "blue"}}})
	for key, want := range map[string]string{"X-Remote-User": "a", "X-Remote-Uid": "1", "X-Remote-Group": "g h", "X-Remote-Extra-Example.com%2fteam%25": "red blue"} {
		if got := strings.Join(h[key], " "); got != want {
			t.Errorf("%s: %q in %v", key, got, h)
		}
	}
}

func TestAppointmentsWaitLongerAfterEachFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a schedule
		for _, want := range []time.Duration{1, 2, 4, 8, 16, 30, 30} {
			a.running = true
			a.reschedule(true, checkInterval)
			if wait := time.Until(a.due); wait != want*time.Second {
				t.Errorf("after %d failures %v, want %v", a.fails, wait, want*time.Second)
			}
		}
		a.running = true
		a.trigger() // while a check is in progress
		a.reschedule(false, checkInterval)
		if wait := time.Until(a.due); wait > firstRetry || a.isDue(time.Now()) {
			t.Errorf("asked for once more, it waits %v", wait)
		}
		if a.trigger(); !a.isDue(time.Now()) {
			t.Error("soon is not now")
		}
	})
}

func TestOldDiscoveryIsPutAsTheNew(t *testing.T) {
	all := toAggregated(&metav1.APIResourceList{APIResources: []metav1.APIResource{{Name: "a/scale", Kind: "Scale", Group: "autoscaling", Version: "v1", Namespaced: true},
		{Name: "a", Kind: "A", SingularName: "as", Namespaced: true, Verbs: []string{"get"}}, {Name: "b", Kind: "B"}}})
	if len(all) != 2 || all[0].Resource != "a" || all[0].ResponseKind.Kind != "A" || all[0].Scope != "Namespaced" || len(all[0].Subresources) != 1 ||
		all[0].Subresources[0].ResponseKind.Group != "autoscaling" || all[1].Scope != "Cluster" {
		t.Errorf("got %+v", all)
	}
}
