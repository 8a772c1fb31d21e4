package deprecations

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestTrackerTellsWhoUsesWhat(t *testing.T) {
	t.Parallel()
	tracker := NewTracker()
	at := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	cron := Use{User: "alice", Agent: "kubectl/v1.30\x1b[31m", Verb: "list", Group: "batch", Version: "v1beta1", Resource: "cronjobs", Removed: "1.25", UseInstead: "batch/v1 CronJob"}
	tracker.Record(cron, at)
	tracker.Record(Use{User: "bob", Agent: strings.Repeat("é", 500), Verb: "update", Version: "v1", Resource: "endpoints", Subresource: "status"}, at.Add(time.Second))
	tracker.Record(cron, at.Add(time.Minute))

	ask := func(accept string) string {
		r, w := httptest.NewRequest("GET", "/debug/deprecations", nil), httptest.NewRecorder()
		r.Header.Set("Accept", accept)
		tracker.ServeHTTP(w, r)
		return w.Body.String()
	}
	lines := strings.Split(ask("*/*"), "\n")
	if len(lines) != 4 || strings.Join(strings.Fields(lines[1]), " ") !=
		`2026-05-01T12:01:00Z 2 alice list cronjobs batch/v1beta1 1.25 batch/v1 CronJob "kubectl/v1.30\x1b[31m"` ||
		!strings.Contains(lines[2], "endpoints/status") || strings.Count(lines[2], "é") != maxAgentRunes {
		t.Errorf("table:\n%s", strings.Join(lines, "\n"))
	}
	var list struct{ Items []Usage }
	if err := json.Unmarshal([]byte(ask("application/json")), &list); err != nil || len(list.Items) != 2 || list.Items[0].Count != 2 || list.Items[0].User != "alice" {
		t.Errorf("JSON: %v %+v", err, list)
	}
}

func TestTrackerForgetsTheOldest(t *testing.T) {
	t.Parallel()
	tracker := NewTracker()
	for i := range maxUsages + 10 {
		tracker.Record(Use{User: "first"}, time.Unix(int64(i), 0))
		tracker.Record(Use{User: fmt.Sprint(i)}, time.Unix(int64(i), 0))
	}
	usages := tracker.List(maxUsages)
	if len(usages) != maxUsages || len(tracker.usages) != maxUsages {
		t.Fatalf("got %d usages and %d keys, want %d", len(usages), len(tracker.usages), maxUsages)
	}
	first := slices.IndexFunc(usages, func(u Usage) bool { return u.User == "first" })
	if first < 0 || usages[first].Count != maxUsages+10 {
		t.Errorf("the one seen all the time is at %d of %d", first, len(usages))
	}
}
