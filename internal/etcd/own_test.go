//go:build !noetcd

package etcd

import (
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
)

func aWrite(value string) *pendingWrite {
	own := &pendingWrite{settled: make(chan struct{})}
	if value != "" {
		own.value = []byte(value)
	}
	return own
}

// TestWhoseAnEventIs has each kind of event come before its Txn's answer, and after it.
func TestWhoseAnEventIs(t *testing.T) {
	t.Parallel()
	const key = "/registry/configmaps/default/a"
	event := func(value string, rev int64) *mvccpb.KeyValue {
		return &mvccpb.KeyValue{Key: []byte(key), Value: []byte(value), ModRevision: rev}
	}
	for name, c := range map[string]struct {
		writes  []string // those of this server; "": a deletion
		settled []int64  // what becomes of each, a second fraction after the event; -1: nobody knows
		before  bool     // it is known when the event comes
		value   string   // the event's, of revision 7
		want    int      // which of the writes; -1: none
		left    int
	}{
		"a value on its way":                      {writes: []string{"x"}, settled: []int64{-1}, value: "x", want: 0},
		"another value":                           {writes: []string{"x"}, settled: []int64{7}, value: "y", want: -1, left: 1},
		"a value, by its revision":                {writes: []string{"x"}, settled: []int64{7}, before: true, value: "x", want: 0},
		"the same value, but of another revision": {writes: []string{"x"}, settled: []int64{8}, before: true, value: "x", want: -1, left: 1},
		"the second of two values":                {writes: []string{"x", "y"}, settled: []int64{-1, -1}, value: "y", want: 1, left: 1},
		"the second of two that are the same":     {writes: []string{"x", "x"}, settled: []int64{0, 7}, value: "x", want: 1, left: 1},
		"a deletion that succeeds":                {writes: []string{""}, settled: []int64{7}, want: 0},
		"a deletion that came too late":           {writes: []string{""}, settled: []int64{0}, want: -1, left: 1},
		"a deletion of which nobody hears":        {writes: []string{""}, settled: []int64{-1}, want: -1},
		"the second of two deletions":             {writes: []string{"", ""}, settled: []int64{0, 7}, want: 1, left: 1},
		"a deletion beside an update":             {writes: []string{"x", ""}, settled: []int64{0, 7}, want: 1, left: 1},
		"nothing of ours":                         {want: -1},
	} {
		synctest.Test(t, func(t *testing.T) {
			var own pendingWrites
			var writes []*pendingWrite
			settle := func() {
				for i, w := range writes {
					if c.settled[i] >= 0 {
						w.settle(c.settled[i])
					}
				}
			}
			for _, value := range c.writes {
				writes = append(writes, aWrite(value))
				own.add(key, writes[len(writes)-1])
			}
			if c.before {
				settle()
			} else {
				time.AfterFunc(settleTimeout/2, settle)
			}
			got := own.find(event(c.value, 7), c.value == "")
			if again := own.find(event(c.value, 7), c.value == ""); again != got {
				t.Errorf("%s: when the event comes again, another one is it", name)
			}
			if got != nil {
				own.remove(key, got)
			}
			for i, w := range writes {
				if (got == w) != (i == c.want) {
					t.Errorf("%s: write %d is it: %v", name, i, got == w)
				}
			}
			if left := len(own.byKey[key]); left != c.left {
				t.Errorf("%s: %d writes wait for their events, want %d", name, left, c.left)
			}
			synctest.Wait()
			time.Sleep(settleTimeout) // the timer of this test ends
		})
	}
}
