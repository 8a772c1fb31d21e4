//go:build verify

package flowcontrol

import (
	"context"
	"testing"
	"time"
)

// TestVerifyFindsBooksThatDoNotAgree checks that the next change of a level detects inconsistent
// counters.
func TestVerifyFindsBooksThatDoNotAgree(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(l *Level){
		"a request more waits": func(l *Level) { l.waiting++ },
		"nobody holds a seat":  func(l *Level) { l.executing-- },
		"no seat is in use":    func(l *Level) { l.inUse = 0 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := NewDispatcher(10, time.Minute)
			objs := freshServer()
			d.Configure(objs.Schemas, objs.Levels)
			digest := Digest{User: "alice", Groups: []string{"system:authenticated"}, ResourceRequest: true, Verb: "list", Resource: "pods", Version: "v1", Received: time.Now()}
			err := d.Dispatch(context.Background(), &digest, Estimate{InitialSeats: 1}, func(ticket *Ticket) {
				l := ticket.level
				l.mu.Lock()
				defer l.mu.Unlock()
				was, waiting, executing := l.inUse, l.waiting, l.executing
				spoil(l)
				defer func() {
					if recover() == nil {
						t.Error("nothing was found")
					}
					l.inUse, l.waiting, l.executing = was, waiting, executing
				}()
				l.verifyLocked()
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}
