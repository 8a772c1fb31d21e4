package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"apilet/internal/clock"
)

// A board without a battery starts in 1970 on a file that was written today: it goes on from the newest write, and loses no history.
func TestStartIn1970GoesOnFromTheNewestWrite(t *testing.T) {
	t.Parallel()
	var machine atomic.Int64 // ahead of the machine's clock
	s := startTest(t, func(c *config) {
		kept := time.Hour
		c.Ephemeral, c.Data, c.History, c.CompactionInterval = false, filepath.Join(t.TempDir(), "board.db"), &kept, time.Hour
		c.clock = func() time.Time { return time.Now().Add(time.Duration(machine.Load())) }
	})
	maps := s.namespace("board")
	before := time.Now().Add(-time.Second)
	rev := s.want(201, "POST", maps, configMap("m", "k", "old")).rev()
	s.want(200, "PUT", maps+"/m", configMap("m", "k", "new"))
	s.halt()

	machine.Store(-int64(time.Since(time.Unix(0, 0))))
	s.start()
	tick := func() { // what compacts every five minutes
		if _, err := s.upkeep.Compact(t.Context(), s.upkeep.RevisionBefore(s.st.Now().Add(-time.Hour))); err != nil {
			t.Fatal(err)
		}
	}
	tick()
	if behind := s.clock.Behind(); behind < 50*365*24*time.Hour {
		t.Errorf("behind by %s", behind)
	}
	made := s.want(201, "POST", maps, configMap("after", "k", "v"))
	if at, err := time.Parse(time.RFC3339, made.get("metadata.creationTimestamp").String()); err != nil || at.Before(before.Truncate(time.Second)) {
		t.Errorf("created at %s: %v", at, err)
	}
	s.want(201, "POST", "/api/v1/namespaces/board/serviceaccounts", `{"metadata":{"name":"robot"}}`)
	token := s.want(201, "POST", "/api/v1/namespaces/board/serviceaccounts/robot/token", `{}`)
	if ends, err := time.Parse(time.RFC3339, token.get("status.expirationTimestamp").String()); err != nil || ends.Before(before) {
		t.Errorf("the token ends at %s: %v", ends, err)
	}
	s.want(200, "GET", "/api/v1/namespaces/board/configmaps/m", "", "Authorization: Bearer "+token.get("status.token").String())
	if old := s.want(200, "GET", fmt.Sprintf("/at/%d%s/m", rev, maps), "").get("data.k").String(); old != "old" {
		t.Errorf("at revision %d the object was %q", rev, old)
	}
	if s.st.Compacted() >= rev {
		t.Errorf("compacted to %d, beyond revision %d of this hour", s.st.Compacted(), rev)
	}
	if text := string(s.want(200, "GET", "/metrics", "").body); !strings.Contains(text, "\napilet_clock_behind_seconds ") || strings.Contains(text, "\napilet_clock_behind_seconds 0\n") {
		t.Error("the metric does not say that the clock is behind")
	}
	machine.Store(0)
	if behind := s.clock.Behind(); behind != 0 || s.clock.Now().Before(clock.Earliest) {
		t.Errorf("put right, and behind by %s", behind)
	}
}
