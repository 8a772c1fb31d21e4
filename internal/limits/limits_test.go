package limits

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"apilet/internal/request"
)

var (
	admin = request.User{Name: "root", Groups: []string{request.GroupMasters}}
	alice = request.User{Name: "alice"}
	bob   = request.User{Name: "bob"}
)

func TestOneOwnerHasAQuarterOfThePlaces(t *testing.T) {
	p := NewSlots(8)
	take := func(u request.User) (release func()) {
		release, ok := p.TryAcquire(u)
		if !ok {
			return nil
		}
		return release
	}
	first := take(alice)
	if take(alice) == nil || take(alice) != nil {
		t.Error("alice has not two places")
	}
	for i := range 8 {
		robot := request.User{Name: fmt.Sprintf("system:serviceaccount:a:robot-%d", i)}
		if got := take(robot) != nil; got != (i < 2) {
			t.Errorf("account %d of the namespace: %t", i, got)
		}
	}
	for i := range 5 {
		if got := take(request.User{Name: fmt.Sprint("user", i)}) != nil; got != (i < 4) {
			t.Errorf("place %d: %t", 5+i, got)
		}
	}
	for i := range 9 {
		if got := take(admin) != nil; got != (i < 8) {
			t.Errorf("administrator %d: %t", i, got)
		}
	}
	first()
	if take(bob) == nil || take(bob) != nil {
		t.Error("the place that was given back is not one place")
	}
}

// An answer is a writer with a claim, and says when its connection is cut.
type answer struct {
	http.ResponseWriter
	claim Claim
	ctx   context.Context
	cut   bool
	lent  int
}

func (a *answer) Claim() *Claim                    { return &a.claim }
func (a *answer) SetWriteDeadline(time.Time) error { a.cut = true; return nil }
func (a *answer) WhileLent(wait func())            { a.lent++; wait() }

func answerTo(b *Memory, u request.User) *answer {
	rec := &request.Request{User: u}
	return &answer{ResponseWriter: httptest.NewRecorder(), claim: Claim{Memory: b}, ctx: context.WithValue(context.Background(), request.Key{}, rec)}
}

func (a *answer) hold(n int) error { return Reserve(a.ctx, a, n) }

const mib = 1 << 20

func TestOneOwnerHasAQuarterOfTheBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBytes(15*time.Second, 16*mib)
		first := answerTo(b, alice)
		if err := errors.Join(first.hold(3*mib), answerTo(b, alice).hold(1*mib), answerTo(b, alice).hold(Large), answerTo(b, bob).hold(100*mib), answerTo(b, admin).hold(15*mib)); err != nil {
			t.Fatal(err)
		}
		second, done := answerTo(b, alice), make(chan error, 1)
		go func() { done <- second.hold(2 * mib) }()
		synctest.Wait()
		if second.lent != 1 || second.claim.n != 0 {
			t.Errorf("who waits holds %d bytes, and has lent its seat %d times", second.claim.n, second.lent)
		}
		began := time.Now()
		err := answerTo(b, alice).hold(Large + 1)
		if waited := time.Since(began); !apierrors.IsTooManyRequests(err) || waited != 15*time.Second {
			t.Errorf("%v after %v", err, waited)
		}
		if err := <-done; !apierrors.IsTooManyRequests(err) {
			t.Error(err)
		}
		go func() { done <- second.hold(2 * mib) }()
		synctest.Wait()
		first.claim.Release()
		if err := <-done; err != nil {
			t.Error(err)
		}
		second.claim.Release()
		if used := b.tenants.used; used != 5*mib {
			t.Errorf("%d bytes are held", used)
		}
	})
}

// Those who hold something already and need more do not wait for each other; and one at a time is all that exceeds the pool.
func TestWhatGrowsIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, all := newBytes(15*time.Second, 16*mib), []*answer{}
		for i := range 16 {
			a := answerTo(b, request.User{Name: fmt.Sprint(i)})
			if err := a.hold(1 * mib); err != nil {
				t.Fatal(err)
			}
			all = append(all, a)
		}
		ended := make(chan error, len(all))
		for _, a := range all {
			go func() {
				err := a.hold(4 * mib)
				b.tenants.mu.Lock()
				if used := b.tenants.used; used > 19*mib {
					t.Errorf("%d bytes are held", used)
				}
				b.tenants.mu.Unlock()
				time.Sleep(100 * time.Millisecond)
				a.claim.Release()
				ended <- err
			}()
		}
		for range all {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
		if p := &b.tenants; p.used != 0 || len(p.owners)+len(p.queue)+len(p.claims) != 0 || p.exceeded != nil {
			t.Errorf("left: %d bytes, %v, %v, %v", p.used, p.owners, p.queue, p.claims)
		}
	})
}

// Who reads too slowly is cut when others wait, and only then; not while it is the server that takes its time.
func TestTheSlowAreCutWhileOthersWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, slow := newBytes(time.Hour, 16*mib), []*answer{}
		for i := range 4 {
			a := answerTo(b, request.User{Name: fmt.Sprint(i)})
			if err := a.hold(4 * mib); err != nil {
				t.Fatal(err)
			}
			slow = append(slow, a)
		}
		MarkBodyReceived(slow[3])
		time.Sleep(time.Hour)
		for i, a := range slow {
			if a.cut {
				t.Errorf("%d is cut", i)
			}
		}
		slow[0].claim.since = time.Now().Add(-20 * time.Second) // of 21 that it has
		late := answerTo(b, bob)
		ctx, cancel := context.WithTimeout(late.ctx, 1500*time.Millisecond)
		defer cancel()
		if err := Reserve(ctx, late, 4*mib); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if slow[0].cut || !slow[1].cut || !slow[2].cut || slow[3].cut {
			t.Errorf("cut: %t %t %t %t", slow[0].cut, slow[1].cut, slow[2].cut, slow[3].cut)
		}
	})
}

// Turns go around by owners, however many of one wait; a small one does not overtake a large one that has too little room.
func TestOwnersTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBytes(time.Hour, 16*mib)
		var held []*answer
		for i := range 4 {
			a := answerTo(b, request.User{Name: fmt.Sprint(i)})
			if err := a.hold(4 * mib); err != nil {
				t.Fatal(err)
			}
			held = append(held, a)
		}
		order := make(chan string, 100)
		queue := func(u request.User, n int) {
			go func() {
				a := answerTo(b, u)
				if err := a.hold(n); err != nil {
					t.Error(err)
				}
				order <- u.Name
				time.Sleep(time.Second)
				a.claim.Release()
			}()
			synctest.Wait()
		}
		for range 3 {
			queue(alice, 4*mib)
		}
		queue(bob, 4*mib)
		queue(request.User{Name: "carol"}, 1*mib)
		held[0].claim.Release()
		got := ""
		for range 5 {
			got += " " + <-order
		}
		time.Sleep(time.Minute)
		if want := " alice bob carol alice alice"; got != want {
			t.Errorf("got%s, want%s", got, want)
		}
	})
}
