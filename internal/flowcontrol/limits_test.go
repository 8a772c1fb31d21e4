package flowcontrol

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"

	"apilet/internal/apitest"
	"apilet/internal/apitest/kubetest"
)

// A heldSeat is a request that keeps its seats until release is called. done is closed when the
// request has finished. err is nil if the request was executed.
type heldSeat struct {
	release context.CancelFunc
	cancel  context.CancelFunc
	started chan struct{}
	done    chan struct{}
	err     error
	ticket  *Ticket
}

func holdSeat(t *testing.T, d *Dispatcher, user string, est Estimate) *heldSeat {
	t.Helper()
	running, release := context.WithCancel(t.Context())
	ctx, cancel := context.WithCancel(t.Context())
	h := &heldSeat{release: release, cancel: cancel, started: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(h.done)
		h.err = d.Dispatch(ctx, &Digest{User: user, Received: time.Now()}, est, func(tk *Ticket) {
			h.ticket = tk
			close(h.started)
			<-running.Done()
		})
	}()
	synctest.Wait()
	return h
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func reasonOf(h *heldSeat) string {
	if !isClosed(h.done) {
		return "in progress"
	}
	var rej *Rejection
	if errors.As(h.err, &rej) {
		return rej.reason
	}
	return "ran"
}

var narrowRequest = Estimate{InitialSeats: 1, Watchers: -1}

func wideRequest(seats int) Estimate { return Estimate{InitialSeats: seats, Watchers: -1} }

// TestWithoutQueuesWhoFindsNoSeatIsRejected tests levels that have no queues or no seats.
func TestWithoutQueuesWhoFindsNoSeatIsRejected(t *testing.T) {
	seatBubble(t, func(t *testing.T, _ context.Context) {
		d := oneLevel(2, 0, 0, 0)
		a, b, c := holdSeat(t, d, "a", narrowRequest), holdSeat(t, d, "b", narrowRequest), holdSeat(t, d, "c", narrowRequest)
		if got := reasonOf(c); got != reasonConcurrencyLimit {
			t.Errorf("third request: %s", got)
		}
		a.release()
		synctest.Wait()
		if d := holdSeat(t, d, "d", narrowRequest); !isClosed(d.started) {
			t.Error("a seat was not given back")
		} else {
			d.release()
		}
		b.release()
		synctest.Wait()
		d.levels["level"].setLimit(0, 2)
		synctest.Wait()
		alone, second := holdSeat(t, d, "a", narrowRequest), holdSeat(t, d, "a", narrowRequest)
		if !isClosed(alone.started) || reasonOf(second) != reasonConcurrencyLimit {
			t.Error("a level of no seats does not run one request at a time")
		}
		alone.release()
	})
}

func TestQueueFull(t *testing.T) {
	seatBubble(t, func(t *testing.T, _ context.Context) {
		d := oneLevel(2, 1, 1, 3)
		var in []*heldSeat
		for range 5 {
			in = append(in, holdSeat(t, d, "a", narrowRequest))
		}
		if h := holdSeat(t, d, "a", narrowRequest); reasonOf(h) != reasonQueueFull {
			t.Errorf("sixth request: %s", reasonOf(h))
		}
		in[0].release()
		synctest.Wait()
		if h := holdSeat(t, d, "a", narrowRequest); reasonOf(h) != "in progress" {
			t.Errorf("after one has left: %s", reasonOf(h))
		}
		for _, h := range in {
			h.release()
		}
	})
}

// TestAWideRequestThatLeavesLetsOthersIn checks that requests that fit into the seats start after a
// wide waiting request has left.
func TestAWideRequestThatLeavesLetsOthersIn(t *testing.T) {
	seatBubble(t, func(t *testing.T, _ context.Context) {
		d := oneLevel(5, 1, 1, 3)
		d.levels["level"].maxSeats = 0
		running, wide, narrow := holdSeat(t, d, "a", wideRequest(3)), holdSeat(t, d, "b", wideRequest(5)), holdSeat(t, d, "c", narrowRequest)
		if isClosed(wide.started) || isClosed(narrow.started) {
			t.Fatal("a request overtook another")
		}
		wide.cancel()
		synctest.Wait()
		if reasonOf(wide) != reasonTimeout || !isClosed(narrow.started) {
			t.Errorf("the wide request: %s; the narrow one started: %v", reasonOf(wide), isClosed(narrow.started))
		}
		running.release()
		narrow.release()
	})
}

// TestNothingOvertakesAWideRequest checks that wide requests are not overtaken, and that requests
// are not rejected while a seat is free.
func TestNothingOvertakesAWideRequest(t *testing.T) {
	seatBubble(t, func(t *testing.T, _ context.Context) {
		d := oneLevel(5, 64, 1, 1)
		d.levels["level"].maxSeats = 0
		users := usersApart(3, 64)
		two := holdSeat(t, d, users[0], wideRequest(2))
		five := holdSeat(t, d, users[1], wideRequest(5))
		time.Sleep(time.Second)
		synctest.Wait()
		one := holdSeat(t, d, users[2], narrowRequest)
		if isClosed(five.started) || isClosed(one.started) {
			t.Fatal("a request started that does not fit or whose turn it is not")
		}
		if got := d.levels["level"].stats["level"].noAccommodation; got == 0 {
			t.Error("request_dispatch_no_accommodation_total stayed 0")
		}
		if more := holdSeat(t, d, users[2], narrowRequest); reasonOf(more) != "in progress" {
			t.Errorf("rejected with seats free: %s", reasonOf(more))
		} else {
			more.release()
		}
		two.release()
		synctest.Wait()
		if !isClosed(five.started) || isClosed(one.started) {
			t.Error("the wide request is not the only one that started")
		}
		huge := holdSeat(t, d, users[0], wideRequest(9))
		one.release()
		five.release()
		synctest.Wait()
		if !isClosed(huge.started) || !isClosed(one.started) {
			t.Error("a request wider than the level never ran")
		}
		if next := holdSeat(t, d, users[1], narrowRequest); isClosed(next.started) {
			t.Error("something ran beside a request wider than the level")
		} else {
			next.release()
		}
		huge.release()
	})
}

// TestWaitingEnds checks that a request is rejected after waiting for a quarter of its timeout, but
// not longer than a minute, and that it is removed if the client disconnects.
func TestWaitingEnds(t *testing.T) {
	seatBubble(t, func(t *testing.T, _ context.Context) {
		d := oneLevel(1, 1, 1, 10)
		d.timeout = time.Minute
		first := holdSeat(t, d, "a", narrowRequest)
		start := time.Now()
		ends := func(name string, want time.Duration, ctx context.Context) {
			err := d.Dispatch(ctx, &Digest{Received: start}, narrowRequest, func(*Ticket) { t.Error(name, "ran") })
			var rej *Rejection
			if !errors.As(err, &rej) || rej.reason != reasonTimeout || rej.RetryAfter != 1 {
				t.Errorf("%s: %v", name, err)
			}
			if got := time.Since(start); got != want {
				t.Errorf("%s waited %v, want %v", name, got, want)
			}
			start = time.Now()
		}
		ends("no deadline", 15*time.Second, t.Context())
		eight, cancel := context.WithTimeout(t.Context(), 8*time.Second)
		ends("timeout=8s", 2*time.Second, eight)
		cancel()
		hour, cancel := context.WithTimeout(t.Context(), time.Hour)
		ends("an hour", time.Minute, hour)
		cancel()
		gone := holdSeat(t, d, "b", narrowRequest)
		gone.cancel()
		synctest.Wait()
		if reasonOf(gone) != reasonTimeout {
			t.Error("a request whose client has gone still waits")
		}
		l := d.levels["level"]
		if l.counts.timedOut != 3 || l.counts.cancelled != 1 || l.counts.rejected != 4 || l.waiting != 0 || len(l.flows) != 1 {
			t.Errorf("counts %+v, %d waiting, %d flows", l.counts, l.waiting, len(l.flows))
		}
		if n := l.stats["level"].waitedInVain.counts; n[13] != 1 || n[11] != 1 || n[8] != 1 || n[0] != 1 {
			t.Errorf("waits in vain: %v", n)
		}
		first.release()
	})
}

// TestALevelWithoutSeatsHoldsItsRequests checks that waiting requests start immediately when their
// level gets seats.
func TestALevelWithoutSeatsHoldsItsRequests(t *testing.T) {
	seatBubble(t, func(t *testing.T, _ context.Context) {
		d := oneLevel(4, 4, 1, 10)
		d.levels["level"].setLimit(0, 4)
		jailed := holdSeat(t, d, "a", narrowRequest)
		if isClosed(jailed.started) {
			t.Fatal("it ran")
		}
		d.levels["level"].setLimit(1, 4)
		synctest.Wait()
		if !isClosed(jailed.started) {
			t.Error("it waits though there is a seat")
		}
		jailed.release()
	})
}

// TestALevelThatLentAllServesOneRequest checks that a level that has lent all of its seats can
// still run a request.
func TestALevelThatLentAllServesOneRequest(t *testing.T) {
	seatBubble(t, func(t *testing.T, _ context.Context) {
		d := NewDispatcher(10, 4*time.Minute)
		d.Configure(schemasOf(kubetest.SchemaFor("level", "a"), kubetest.SchemaFor("other", "b")),
			levelsOf(lendingLevel(kubetest.LimitedLevel("level", 50, 1, 1, 5), 100, -1), lendingLevel(kubetest.LimitedLevel("other", 50, 1, 1, 50), 0, -1)))
		enter := func(name string) *Ticket {
			for _, schema := range *d.schemas.Load() {
				if schema.Name == name {
					ticket, err := schema.Level.enter(schema, &Digest{Received: time.Now()}, narrowRequest)
					if err != nil {
						t.Fatal(err)
					}
					return ticket
				}
			}
			t.Fatalf("no schema %s", name)
			return nil
		}
		for range 30 {
			enter("other")
		}
		for range 3 {
			time.Sleep(5 * time.Second)
			d.adjust()
		}
		if kept := d.levels["level"].allocation.limit; kept != 0 {
			t.Fatalf("the level keeps %d seats", kept)
		}
		if enter("level").Started.IsZero() {
			t.Error("a request waits at a level that has lent all its seats")
		}
	})
}

// Each step contains the second, the number of drops, and the expected Retry-After.
func TestRetryAfterFollowsTheDrops(t *testing.T) {
	ra := retryAfter{seconds: 1}
	for _, step := range [][3]int64{{0, 5, 1}, {1, 11, 2}, {2, 1, 2}, {3, 11, 4}, {4, 1, 4}, {7, 1, 8}, {11, 1, 8}, {15, 1, 7}, {17, 1, 6}, {21, 14, 5}, {22, 1, 10}} {
		got := 0
		for range step[1] {
			got = ra.drop(1000 + step[0])
		}
		if int64(got) != step[2] {
			t.Errorf("second %d: %d, want %d", step[0], got, step[2])
		}
	}
	ra = retryAfter{seconds: 1}
	for second := range int64(200) {
		for range 200 {
			ra.drop(1000 + second)
		}
	}
	if ra.seconds != 32 {
		t.Errorf("after many drops: %d, want 32", ra.seconds)
	}
}

func inUse(l *Level) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.inUse
}

// TestATailHoldsItsSeats checks that seats for 40 watchers stay in use after the response, and that
// a tail wider than the level becomes longer.
func TestATailHoldsItsSeats(t *testing.T) {
	seatBubble(t, func(t *testing.T, _ context.Context) {
		d := oneLevel(10, 4, 1, 10)
		l := d.levels["level"]
		l.maxSeats = 0
		tailed := Estimate{InitialSeats: 1, FinalSeats: 4, Tail: 5 * time.Millisecond, Mutating: true, Watchers: 40}
		h := holdSeat(t, d, "a", tailed)
		if inUse(l) != 4 {
			t.Errorf("%d seats in use, want 4", inUse(l))
		}
		h.release()
		synctest.Wait()
		if !isClosed(h.done) || inUse(l) != 4 {
			t.Errorf("answered %v, %d seats in use; want 4 seats in the tail", isClosed(h.done), inUse(l))
		}
		time.Sleep(5*time.Millisecond - 1)
		if inUse(l) != 4 {
			t.Error("the tail ended early")
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if l.inUse != 0 || len(l.flows) != 0 {
			t.Errorf("after the tail: %d seats, %d flows", l.inUse, len(l.flows))
		}
		l.setLimit(2, 10)
		h = holdSeat(t, d, "a", tailed)
		if h.ticket.width != 2 || h.ticket.est.Tail != 10*time.Millisecond {
			t.Errorf("at two seats: width %d, tail %v", h.ticket.width, h.ticket.est.Tail)
		}
		h.release()
	})
}

// TestSeatsComeBack checks that seats are released when a handler panics, and early when a watch
// has started.
func TestSeatsComeBack(t *testing.T) {
	seatBubble(t, func(t *testing.T, _ context.Context) {
		d := oneLevel(1, 4, 1, 10)
		l := d.levels["level"]
		func() {
			defer func() { _ = recover() }()
			_ = d.Dispatch(t.Context(), &Digest{Received: time.Now()}, narrowRequest, func(*Ticket) { panic("handler") })
		}()
		if l.inUse != 0 {
			t.Fatal("a panic kept its seat")
		}
		var watches []*heldSeat
		for range 100 {
			w := holdSeat(t, d, "a", narrowRequest)
			w.ticket.Finish()
			watches = append(watches, w)
		}
		if l.inUse != 0 || l.running.n != 0 {
			t.Errorf("%d seats in use by watches that have begun", l.inUse)
		}
		for _, w := range watches {
			w.release()
		}
		synctest.Wait()
		if l.inUse != 0 || l.stats["level"].executing != 0 {
			t.Errorf("finishing twice counted twice: %d", l.inUse)
		}
	})
}

// TestLentSeatsServeOthers checks that other requests can use the seat of a request whose client
// does not read the response.
func TestLentSeatsServeOthers(t *testing.T) {
	seatBubble(t, func(t *testing.T, _ context.Context) {
		d := oneLevel(1, 4, 1, 10)
		l := d.levels["level"]
		slow, mouse := holdSeat(t, d, "slow", narrowRequest), holdSeat(t, d, "mouse", narrowRequest)
		slow.ticket.Yield()
		synctest.Wait()
		if !isClosed(mouse.started) {
			t.Fatal("the mouse waits")
		}
		slow.ticket.Reclaim()
		slow.ticket.Reclaim()
		if l.inUse != 2 || l.executing != 2 {
			t.Errorf("%d seats in use, want 2 of 1", l.inUse)
		}
		third := holdSeat(t, d, "mouse", narrowRequest)
		mouse.release()
		synctest.Wait()
		if isClosed(third.started) {
			t.Error("a request started on the reclaimed seat")
		}
		slow.ticket.Yield()
		synctest.Wait()
		if !isClosed(third.started) {
			t.Error("the seat was not lent again")
		}
		slow.release()
		third.release()
		synctest.Wait()
		if l.inUse != 0 || l.executing != 0 || len(l.flows) != 0 {
			t.Errorf("%d seats, %d executing, %d flows left", l.inUse, l.executing, len(l.flows))
		}
	})
}

func TestHandsAreDealtAsInKubernetes(t *testing.T) {
	for _, c := range []struct {
		schema, distinguisher string
		hash                  uint64
		deck, hand            int
		want                  []int
	}{
		{"global-default", "alice", 17644606172554983095, 128, 6, []int{55, 62, 126, 125, 105, 1}},
		{"global-default", "bob", 7836649528101815225, 128, 6, []int{57, 101, 58, 46, 116, 53}},
		{"global-default", "", 5449774753716172163, 128, 6, []int{3, 72, 82, 58, 1, 116}},
		{"service-accounts", "system:serviceaccount:ns:sa", 6697764015710301927, 128, 6, []int{103, 21, 41, 68, 27, 54}},
		{"system-nodes", "system:node:n1", 8967139723188866340, 64, 6, []int{36, 37, 40, 20, 55, 27}},
		{"system-leader-election", "system:kube-scheduler", 11657850540737501994, 16, 4, []int{10, 15, 8, 13}},
	} {
		hash := flowHash(c.schema, c.distinguisher)
		if got := dealHand(hash, c.deck, c.hand, nil); hash != c.hash || !slices.Equal(got, c.want) {
			t.Errorf("%s, %s: %d %v, want %d %v", c.schema, c.distinguisher, hash, got, c.hash, c.want)
		}
	}
	rng := rand.New(rand.NewPCG(1, 2))
	first := make([]float64, 64)
	const hands = 64_000
	for range hands {
		cards := dealHand(rng.Uint64(), 64, 8, nil)
		first[cards[0]]++
		slices.Sort(cards)
		if len(slices.Compact(cards)) != 8 || cards[0] < 0 || cards[7] > 63 {
			t.Fatal("not a hand of eight:", cards)
		}
	}
	chi := 0.0
	for _, n := range first {
		chi += (n - hands/64) * (n - hands/64) / (hands / 64)
	}
	if chi > 110 { // 63 degrees of freedom; the probability is 1/5000
		t.Errorf("first cards are uneven: chi² %.1f", chi)
	}
}

// TestEntropyOfAHand checks the largest hands that fit into 60 bits of the flow's hash.
func TestEntropyOfAHand(t *testing.T) {
	for deck, want := range map[int]int{16: 15, 32: 12, 64: 10, 128: 8, 256: 7, 512: 6, 1024: 6, 4096: 5, 32768: 4} {
		hand := 1
		for hand < maxHand && entropyBits(deck, hand+1) <= 60 {
			hand++
		}
		if hand != want {
			t.Errorf("deck of %d: hands up to %d, want %d", deck, hand, want)
		}
	}
}

// TestElephantsLeaveRoomForMice checks the probability that elephants cover a mouse's whole hand.
func TestElephantsLeaveRoomForMice(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	covered := func(deck, hand, elephants int) float64 {
		const herds, mice = 300, 100
		n := 0
		for range herds {
			taken := map[int]bool{}
			for range elephants {
				for _, card := range dealHand(rng.Uint64(), deck, hand, nil) {
					taken[card] = true
				}
			}
			for range mice {
				if !slices.ContainsFunc(dealHand(rng.Uint64(), deck, hand, nil), func(card int) bool { return !taken[card] }) {
					n++
				}
			}
		}
		return float64(n) / herds / mice
	}
	if part := covered(128, 6, 1); part > 0 {
		t.Errorf("one elephant covers %.5f of the mice", part)
	}
	if part := covered(64, 8, 16); math.Abs(part-.36) > .04 {
		t.Errorf("16 elephants cover %.3f of the mice, want 0.36", part)
	}
}

func TestTheShortestQueueOfTheHandIsChosen(t *testing.T) {
	l := newLevel("level", nil, nil)
	l.deck, l.hand = 2, 2
	l.queues = make([]*queue, 2)
	if a, b := l.chooseLocked(1), l.chooseLocked(1); a == b {
		t.Error("arrivals at idle queues do not alternate")
	}
	l.queues[0].work, l.queues[1].work = wideRequest(10).work(), 9*narrowRequest.work()
	if q := l.chooseLocked(1); q.index != 1 {
		t.Error("one request of ten seats counts for less than nine of one")
	}
}

func TestEqualFlowsGoAroundTheRing(t *testing.T) {
	seatBubble(t, func(t *testing.T, _ context.Context) {
		const queues = 5
		d := oneLevel(1, queues, 1, 10)
		users := usersApart(queues, queues)
		index := func(user string) int { return dealHand(flowHash("level", user), queues, 1, nil)[0] }
		slices.SortFunc(users, func(a, b string) int { return cmp.Compare(index(a), index(b)) })
		var mu sync.Mutex
		var order []int
		first := holdSeat(t, d, users[2], narrowRequest)
		for _, i := range []int{4, 0, 3, 1} {
			go func() {
				_ = d.Dispatch(t.Context(), &Digest{User: users[i], Received: time.Now()}, narrowRequest, func(*Ticket) {
					mu.Lock()
					order = append(order, i)
					mu.Unlock()
				})
			}()
			synctest.Wait()
		}
		first.release()
		synctest.Wait()
		if want := []int{3, 4, 0, 1}; !slices.Equal(order, want) {
			t.Errorf("order %v, want %v", order, want)
		}
	})
}

func TestASingleQueueIsFirstComeFirstServed(t *testing.T) {
	seatBubble(t, func(t *testing.T, _ context.Context) {
		d := oneLevel(1, 1, 1, 10)
		first := holdSeat(t, d, "a", narrowRequest)
		var waiting []*heldSeat
		for _, user := range []string{"a", "a", "b", "a"} {
			waiting = append(waiting, holdSeat(t, d, user, narrowRequest))
		}
		first.release()
		for i, h := range waiting {
			synctest.Wait()
			if !isClosed(h.started) || i < 3 && isClosed(waiting[i+1].started) {
				t.Errorf("request %d is out of order", i)
			}
			h.release()
		}
	})
}

func TestVirtualTimeIsSetBackUnnoticed(t *testing.T) {
	seatBubble(t, func(t *testing.T, ctx context.Context) {
		sc := newScene(oneLevel(4, 9, 1, 64))
		l := sc.d.levelOf("level")
		l.vtime = highVtime - 40*time.Second
		l.closedTag = l.vtime
		users := usersApart(2, 9)
		sc.play(ctx, seatLoad{user: users[0], threads: 16, exec: 100 * time.Millisecond}, seatLoad{user: users[1], threads: 16, exec: time.Second})
		for range 10 {
			time.Sleep(10 * time.Second)
			synctest.Wait()
			if got := sc.seats(users, 10*time.Second); !apitest.Nearly(got[0], 2, .05) || !apitest.Nearly(got[1], 2, .05) {
				t.Errorf("seats %.3f, want 2 and 2", got)
			}
		}
		if l.counts.rewinds != 1 {
			t.Errorf("%d rewinds", l.counts.rewinds)
		}
	})
}

// TestQueuesShrinkByDraining removes queues that still contain waiting or running requests.
func TestQueuesShrinkByDraining(t *testing.T) {
	seatBubble(t, func(t *testing.T, ctx context.Context) {
		d := oneLevel(20, 128, 1, 64)
		l := d.levelOf("level")
		sc := newScene(d)
		for i := range 40 {
			sc.play(ctx, seatLoad{user: fmt.Sprint("user", i), threads: 5, exec: 50 * time.Millisecond,
				est: Estimate{InitialSeats: 1, FinalSeats: 2, Tail: 30 * time.Millisecond}})
		}
		time.Sleep(time.Second)
		synctest.Wait()
		for _, deck := range []int32{8, 4, 1, 64, 3, 128, 2} {
			d.Configure(schemasOf(kubetest.SchemaFor("level", "*")), levelsOf(kubetest.LimitedLevel("level", 100, deck, 1, 64)))
			time.Sleep(300 * time.Millisecond)
			synctest.Wait()
			l.mu.Lock() // a tail may end meanwhile
			for i, q := range l.queues {
				if q != nil && q.index != i {
					t.Errorf("queue %d says %d", i, q.index)
				}
			}
			l.mu.Unlock()
		}
		left := func() (queues, waiting int) {
			l.mu.Lock()
			defer l.mu.Unlock()
			return len(l.queues), l.waiting
		}
		// waits for up to ten seconds, but returns early to save time
		drained := func(to int) bool {
			for wait := time.Duration(0); wait < 10*time.Second; wait += 100 * time.Millisecond {
				if n, _ := left(); n == to {
					return true
				}
				time.Sleep(100 * time.Millisecond)
				synctest.Wait()
			}
			return false
		}
		if !drained(2) {
			n, _ := left()
			t.Errorf("%d queues, want 2", n)
		}
		d.Configure(schemasOf(kubetest.SchemaFor("level", "*")), levelsOf(kubetest.LimitedLevel("level", 100, 0, 0, 0)))
		none := drained(0)
		if n, waiting := left(); !none || waiting != 0 {
			t.Errorf("%d queues, %d waiting; want none", n, waiting)
		}
		served, rejected := 0, 0
		for i := range 40 {
			served += sc.served[fmt.Sprint("user", i)]
			rejected += sc.rejected[fmt.Sprint("user", i)]
		}
		if l.counts.dispatched != uint64(served) || l.counts.rejected != uint64(rejected) {
			t.Errorf("%d ran and %d were rejected, the level counts %d and %d", served, rejected, l.counts.dispatched, l.counts.rejected)
		}
	})
}

// TestTailsEndInAQueueThatIsGone checks Kubernetes' issue 140884: two tails end in a removed queue.
func TestTailsEndInAQueueThatIsGone(t *testing.T) {
	seatBubble(t, func(t *testing.T, _ context.Context) {
		d := oneLevel(20, 4, 1, 10)
		l := d.levels["level"]
		users := usersApart(4, 4)
		last := users[slices.IndexFunc(users, func(user string) bool { return dealHand(flowHash("level", user), 4, 1, nil)[0] == 3 })]
		tailed := Estimate{InitialSeats: 1, FinalSeats: 2, Tail: time.Second}
		a, b := holdSeat(t, d, last, tailed), holdSeat(t, d, last, tailed)
		a.release()
		time.Sleep(100 * time.Millisecond)
		b.release()
		synctest.Wait()
		d.Configure(schemasOf(kubetest.SchemaFor("level", "*")), levelsOf(kubetest.LimitedLevel("level", 100, 1, 1, 10)))
		queues := func() int {
			l.mu.Lock()
			defer l.mu.Unlock()
			return len(l.queues)
		}
		for wait, want := range []int{4, 4, 1} {
			if got := queues(); got != want {
				t.Errorf("%d tails have ended: %d queues, want %d", max(0, wait), got, want)
			}
			time.Sleep([]time.Duration{950 * time.Millisecond, 100 * time.Millisecond, 0}[wait])
			synctest.Wait()
		}
		if inUse(l) != 0 {
			t.Errorf("%d seats left", inUse(l))
		}
	})
}

func TestAShorterQueueEvictsNobody(t *testing.T) {
	seatBubble(t, func(t *testing.T, _ context.Context) {
		d := oneLevel(1, 1, 1, 50)
		var in []*heldSeat
		for range 31 {
			in = append(in, holdSeat(t, d, "a", narrowRequest))
		}
		d.Configure(schemasOf(kubetest.SchemaFor("level", "*")), levelsOf(kubetest.LimitedLevel("level", 100, 1, 1, 5)))
		synctest.Wait()
		if h := holdSeat(t, d, "a", narrowRequest); reasonOf(h) != reasonQueueFull {
			t.Errorf("the 32nd: %s", reasonOf(h))
		}
		for i, h := range in {
			if reasonOf(h) != "in progress" {
				t.Errorf("request %d: %s", i, reasonOf(h))
			}
			h.release()
			synctest.Wait()
		}
	})
}

// TestALevelLeavesWhenItIsEmpty checks that requests of a removed level are still executed, and
// that the level is reused if it is added again in time.
func TestALevelLeavesWhenItIsEmpty(t *testing.T) {
	seatBubble(t, func(t *testing.T, ctx context.Context) {
		d := NewDispatcher(10, time.Minute)
		go d.Run(ctx)
		schemas := schemasOf(kubetest.SchemaFor("level", "some"), kubetest.SchemaFor("other", "*"))
		schemas[0].Spec.MatchingPrecedence = 1
		schemas[0].Spec.Rules[0].Subjects[0].Group.Name = "*"
		both := levelsOf(kubetest.LimitedLevel("level", 10, 1, 1, 10), kubetest.LimitedLevel("other", 90, 4, 1, 10))
		d.Configure(schemas, both)
		l := d.levelOf("level")
		a, b := holdSeat(t, d, "a", narrowRequest), holdSeat(t, d, "a", wideRequest(10))
		d.Configure(schemas, both[1:])
		if !l.quiescing || d.levelOf("level") != l || l.allocation.nominal != 1 {
			t.Error("the level did not stay until it was empty")
		}
		if c := holdSeat(t, d, "a", narrowRequest); c.ticket == nil || c.ticket.level.Name != "other" {
			t.Error("a request went to a level that is gone")
		} else {
			c.release()
		}
		d.Configure(schemas, both)
		if l.quiescing || d.levelOf("level") != l {
			t.Error("a level that came back in time is another")
		}
		d.Configure(schemas, both[1:])
		a.release()
		synctest.Wait()
		if !isClosed(b.started) {
			t.Error("who waited at a level that is gone did not run")
		}
		b.release()
		synctest.Wait()
		if d.levelOf("level") != nil || d.levelOf("other").allocation.nominal != 10 {
			t.Error("an empty level that is gone still has its share")
		}
	})
}

// TestConfigurationStorm checks that requests are not lost during configuration changes.
func TestConfigurationStorm(t *testing.T) {
	seatBubble(t, func(t *testing.T, ctx context.Context) {
		d := NewDispatcher(100, time.Minute)
		go d.Run(ctx)
		schemas := schemasOf(kubetest.SchemaFor("level", "*"), kubetest.SchemaFor("other", "*"))
		d.Configure(schemas, levelsOf(kubetest.LimitedLevel("level", 10, 4, 2, 50), kubetest.LimitedLevel("other", 10, 4, 2, 50)))
		sc := newScene(d)
		for i := range 8 {
			sc.play(ctx, seatLoad{user: fmt.Sprint("user", i), threads: 2, exec: time.Millisecond})
		}
		for i := range int32(2000) {
			time.Sleep(5 * time.Millisecond)
			synctest.Wait()
			levels := levelsOf(kubetest.LimitedLevel("other", 10+i%7, 4, 2, 50))
			if i%3 > 0 {
				levels = append(levels, kubetest.LimitedLevel("level", 1+i%90, 1+i%64, 1, 50))
			}
			d.Configure(schemas, levels)
		}
		for user, waits := range sc.waits {
			if slow := slices.Max(waits); slow > 5*time.Millisecond || sc.rejected[user] > 0 || len(waits) < 10_000 {
				t.Errorf("%s: %d ran, the slowest waited %v, %d rejected", user, len(waits), slow, sc.rejected[user])
			}
		}
	})
}

func claimOf(shares, lendable int32, borrow ...int32) *allocation {
	c := &allocation{shares: shares, lendable: lendable}
	if len(borrow) > 0 {
		c.borrow = &borrow[0]
	}
	return c
}

func divideAll(seats int, claims []*allocation) {
	total := 0.
	for _, c := range claims {
		total += float64(c.shares)
	}
	for _, c := range claims {
		c.divide(seats, total)
	}
}

func limitsOf(claims []*allocation) (limits []int) {
	for _, c := range claims {
		limits = append(limits, c.limit)
	}
	return limits
}

// TestLendingFollowsTheWorkedExample uses the levels alpha, beta, gamma, catch-all and exempt with
// 100 seats.
func TestLendingFollowsTheWorkedExample(t *testing.T) {
	exempt := &allocation{exempt: true}
	claims := []*allocation{claimOf(40, 50), claimOf(30, 50, 20), claimOf(25, 80), claimOf(5, 0), exempt}
	divideAll(100, claims)
	for i, want := range [][4]int{{40, 20, 140, 30}, {30, 15, 36, 23}, {25, 5, 125, 15}, {5, 5, 105, 5}, {0, 0, 100, 0}} {
		c := claims[i]
		if got := [4]int{c.nominal, c.min, c.max, c.limit}; got != want {
			t.Errorf("level %d: nominal, min, max, first limit %v, want %v", i, got, want)
		}
	}
	type figures struct{ mean, sd float64 }
	for _, period := range []struct {
		name             string
		demand           []figures
		high             []int
		smoothed, target []float64
		p                float64
		limits           []int
	}{
		{"no demand", make([]figures, 5), []int{0, 0, 0, 0, 0}, []float64{0, 0, 0, 0}, []float64{20, 15, 5, 5}, 2.22222, []int{44, 33, 11, 11, 0}},
		{"period 1", []figures{{90, 0}, {20, 10}, {4, 0}, {}, {}}, []int{90, 30, 4, 0, 0}, []float64{90, 30, 4, 0}, []float64{90, 30, 5, 5}, .66667, []int{60, 30, 5, 5, 0}},
		{"period 2", []figures{{90, 0}, {60, 0}, {}, {}, {}}, []int{90, 60, 4, 0, 0}, []float64{90, 60, 3.9080, 0}, []float64{90, 60, 5, 5}, .6, []int{54, 36, 5, 5, 0}},
		{"period 3", []figures{{5, 0}, {5, 0}, {60, 0}, {}, {}}, []int{90, 60, 60, 0, 0}, []float64{88.0450, 58.7350, 60, 0}, []float64{88.0450, 58.7350, 60, 5}, .41667, []int{40, 30, 25, 5, 0}},
		{"period 4", []figures{{5, 0}, {5, 0}, {60, 0}, {}, {}}, []int{5, 5, 60, 0, 0}, []float64{86.1350, 57.4991, 60, 0}, []float64{86.1350, 57.4991, 60, 5}, .46652, []int{40, 27, 28, 5, 0}},
	} {
		for i, c := range claims {
			c.observe(period.high[i], period.demand[i].mean, period.demand[i].sd, true)
		}
		p := lendSeats(claims)
		if math.Abs(p-period.p) > .000005 {
			t.Errorf("%s: fair fraction %.5f, want %.5f", period.name, p, period.p)
		}
		if got := limitsOf(claims); !slices.Equal(got, period.limits) {
			t.Errorf("%s: limits %v, want %v", period.name, got, period.limits)
		}
		for i := range 4 {
			if c := claims[i]; math.Abs(c.smoothed-period.smoothed[i]) > .0001 || math.Abs(c.target-period.target[i]) > .0001 {
				t.Errorf("%s: level %d: smoothed %.4f, target %.4f, want %.4f, %.4f", period.name, i, c.smoothed, c.target, period.smoothed[i], period.target[i])
			}
		}
	}
}

// TestLendingOnAFreshServer uses the levels of a new server with 600 seats, in the order of the
// table of levels.
func TestLendingOnAFreshServer(t *testing.T) {
	claims := []*allocation{{exempt: true}, claimOf(5, 0), claimOf(30, 33), claimOf(40, 25), claimOf(10, 0), claimOf(40, 50), claimOf(100, 90), claimOf(20, 50)}
	divideAll(600, claims)
	for i, want := range [][2]int{{0, 0}, {13, 13}, {74, 50}, {98, 73}, {25, 25}, {98, 49}, {245, 24}, {49, 24}} {
		if got := [2]int{claims[i].nominal, claims[i].min}; got != want {
			t.Errorf("level %d: nominal and min %v, want %v", i, got, want)
		}
	}
	lendSeats(claims)
	if got, want := limitsOf(claims), []int{0, 30, 117, 170, 58, 114, 56, 56}; !slices.Equal(got, want) {
		t.Errorf("limits %v, want %v", got, want)
	}
	claims[7].observe(500, 500, 0, true)
	lendSeats(claims)
	if got := claims[7].limit; got != 368 {
		t.Errorf("global-default that wants 500 gets %d, want 368", got)
	}
	// Other levels cannot use the 50 seats that exempt requests use.
	claims[0].observe(50, 50, 0, true)
	lendSeats(claims)
	sum := 0
	for _, limit := range limitsOf(claims) {
		sum += limit
	}
	if sum > 602 || claims[0].limit != 50 {
		t.Errorf("limits %v: %d in all, want at most 602", limitsOf(claims), sum)
	}
}

func TestExemptRequestsTakeFromAll(t *testing.T) {
	levels := func() []*allocation {
		claims := []*allocation{{exempt: true}, claimOf(40, 50), claimOf(100, 50), claimOf(5, 50)}
		divideAll(870, claims)
		for _, c := range claims[1:] {
			c.observe(970, 970, 0, true)
		}
		return claims
	}
	claims := levels()
	claims[0].observe(970, 970, 0, true)
	lendSeats(claims)
	for _, c := range claims[1:] {
		if c.limit != c.min {
			t.Errorf("limit %d, want the lower limit %d", c.limit, c.min)
		}
	}
	claims = levels()
	spare := 0
	for _, c := range claims[1:] {
		spare += c.nominal - c.min
	}
	claims[0].observe(spare/2, 0, 0, true)
	lendSeats(claims)
	for _, c := range claims[1:] {
		if want := (c.nominal + c.min) / 2; c.limit < want-1 || c.limit > want+1 {
			t.Errorf("limit %d, want %d", c.limit, want)
		}
	}
}

func TestLendingKeepsItsPromisesWhateverTheDemand(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	rng := rand.New(rand.NewPCG(seed, 5))
	for problem := range 10_000 {
		var claims []*allocation
		for range 1 + rng.IntN(10) {
			c := claimOf(1+rng.Int32N(100), rng.Int32N(101))
			if rng.IntN(2) > 0 {
				c = claimOf(c.shares, c.lendable, rng.Int32N(200))
			}
			claims = append(claims, c)
		}
		divideAll(1+rng.IntN(1000), claims)
		total, most, sum := 0, 0, 0
		for _, c := range claims {
			mean := rng.Float64() * 300
			c.observe(int(mean*(1+rng.Float64())), mean, rng.Float64()*20, true)
			total += c.nominal
			most += c.max
		}
		lendSeats(claims)
		for _, c := range claims {
			sum += c.limit
			if c.limit < c.min || c.limit > c.max || c.limit < min(c.nominal, c.high) {
				t.Fatalf("seed %d, problem %d: %+v", seed, problem, *c)
			}
		}
		if want := min(total, most); math.Abs(float64(sum-want)) > float64(len(claims))/2 {
			t.Fatalf("seed %d, problem %d: %d seats lent, want %d", seed, problem, sum, want)
		}
	}
}

func TestDemandIsMeasuredOverTime(t *testing.T) {
	var m seatDemand
	m.note(30)
	m.pass(30, 5)
	m.note(10)
	m.pass(10, 5)
	if high, mean, sd, long := m.take(10); high != 30 || mean != 20 || sd != 10 || !long {
		t.Errorf("high %d, mean %v, deviation %v, %v", high, mean, sd, long)
	}
	if high, _, _, long := m.take(10); high != 10 || long {
		t.Errorf("the next period starts at %d", high)
	}
}

// TestLevelsBorrow checks the limits of two levels if both of them need more seats.
func TestLevelsBorrow(t *testing.T) {
	for _, percents := range [][2][2]int32{{{50, 67}, {33, 50}}, {{50, 33}, {67, 50}}} {
		seatBubble(t, func(t *testing.T, ctx context.Context) {
			d := NewDispatcher(24, time.Minute)
			go d.Run(ctx)
			first, second := kubetest.SchemaFor("first", "one"), kubetest.SchemaFor("second", "*")
			first.Spec.MatchingPrecedence = 1
			first.Spec.Rules[0].Subjects = []flowcontrolv1.Subject{{Kind: flowcontrolv1.SubjectKindUser, User: &flowcontrolv1.UserSubject{Name: "busy"}}}
			d.Configure(schemasOf(first, second), levelsOf(exemptLevel(),
				lendingLevel(kubetest.LimitedLevel("first", 100, 10, 5, 50), percents[0][0], percents[0][1]),
				lendingLevel(kubetest.LimitedLevel("second", 100, 10, 5, 50), percents[1][0], percents[1][1]), kubetest.LimitedLevel("catch-all", 5, 0, 0, 0)))
			sc := newScene(d)
			sc.play(ctx, seatLoad{user: "busy", threads: 24, exec: 250 * time.Millisecond}, seatLoad{user: "calm", threads: 6, exec: 250 * time.Millisecond})
			time.Sleep(11 * time.Second)
			synctest.Wait()
			sc.seats([]string{"busy", "calm"}, time.Second)
			time.Sleep(15 * time.Second)
			got := sc.seats([]string{"busy", "calm"}, 15*time.Second)
			if got[0] < 15.5 || got[0] > 16.1 || got[1] < 5.5 || got[1] > 6.1 {
				t.Errorf("lend and borrow %v: seats %.3f, want about 16 and 6", percents, got)
			}
			sc.play(ctx, seatLoad{user: "calm", threads: 30, exec: 250 * time.Millisecond})
			time.Sleep(11 * time.Second)
			synctest.Wait()
			if l := d.levelOf("second"); l.limit < 12 {
				t.Errorf("the owner wants its seats back and has %d of 12", l.limit)
			}
		})
	}
}

// TestLevelsAreIsolatedAndCounted checks that levels do not affect each other, and that all
// counters return to zero.
func TestLevelsAreIsolatedAndCounted(t *testing.T) {
	seatBubble(t, func(t *testing.T, ctx context.Context) {
		d := NewDispatcher(2, time.Minute)
		elephant, mouse := kubetest.SchemaFor("elephant", "*"), kubetest.SchemaFor("mouse", "*")
		elephant.Spec.MatchingPrecedence = 1
		elephant.Spec.Rules[0].Subjects = []flowcontrolv1.Subject{{Kind: flowcontrolv1.SubjectKindUser, User: &flowcontrolv1.UserSubject{Name: "elephant"}}}
		d.Configure(schemasOf(elephant, mouse), levelsOf(kubetest.LimitedLevel("elephant", 1, 4, 1, 60), kubetest.LimitedLevel("mouse", 1, 4, 1, 60)))
		sc := newScene(d)
		loads, stop := context.WithCancel(ctx)
		sc.play(loads, seatLoad{user: "elephant", threads: 51, exec: 10 * time.Millisecond}, seatLoad{user: "mouse", threads: 3, exec: 10 * time.Millisecond})
		time.Sleep(10 * time.Second)
		synctest.Wait()
		sc.mu.Lock()
		e, m := sc.served["elephant"], sc.served["mouse"]
		sc.mu.Unlock()
		if !apitest.Nearly(float64(e), float64(m), .1) {
			t.Errorf("the elephant ran %d times, the mouse %d", e, m)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		l := d.levelOf("mouse")
		l.mu.Lock()
		if total := l.seatUse.total(); !apitest.Nearly(l.seatUse.sum/float64(total), 1, .05) {
			t.Errorf("seat utilization %.3f, want 1", l.seatUse.sum/float64(total))
		}
		l.mu.Unlock()
		stop()
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		for _, l := range d.levels {
			for _, stats := range l.stats {
				if stats.waiting+stats.waitingSeats+stats.executing+stats.executingSeats+l.inUse+l.waiting+l.waitingSeats != 0 {
					t.Errorf("%s: left over: %+v", l.Name, stats)
				}
			}
			if l.counts.dispatched != uint64(sc.served[l.Name]) {
				t.Errorf("%s: %d dispatched, %d ran", l.Name, l.counts.dispatched, sc.served[l.Name])
			}
		}
	})
}

// TestLeasesAreRenewedBesideASaturatedLevel checks that an overloaded level does not delay a lease
// renewal on a new server, which borrows and lends seats.
func TestLeasesAreRenewedBesideASaturatedLevel(t *testing.T) {
	seatBubble(t, func(t *testing.T, ctx context.Context) {
		d, objs := NewDispatcher(30, time.Minute), freshServer()
		go d.Run(ctx)
		d.Configure(objs.Schemas, objs.Levels)
		list := digestOfText(t, "system:serviceaccount:loud:app[system:serviceaccounts,system:authenticated] list /pods loud")
		renew := digestOfText(t, "system:kube-controller-manager[system:authenticated] update coordination.k8s.io/leases kube-system/kube-controller-manager")
		send := func(like *Digest, takes time.Duration) (waited time.Duration, err error) {
			dig := *like
			dig.Received = time.Now()
			err = d.Dispatch(ctx, &dig, Estimate{InitialSeats: 1, Watchers: -1}, func(*Ticket) { waited = time.Since(dig.Received); time.Sleep(takes) })
			return waited, err
		}
		for range 200 {
			go func() {
				for ctx.Err() == nil {
					if _, err := send(list, 500*time.Millisecond); err != nil {
						time.Sleep(time.Second)
					}
				}
			}()
		}
		for range 1000 { // several rounds of lending
			time.Sleep(100 * time.Millisecond)
			if waited, err := send(renew, 2*time.Millisecond); waited > 0 || err != nil {
				t.Fatalf("a renewal waited %s: %v", waited, err)
			}
		}
		synctest.Wait()
		l := d.levelOf("workload-low")
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.waiting < 100 {
			t.Errorf("%d requests wait: the level was not saturated", l.waiting)
		}
	})
}

func TestTheExemptNeverWait(t *testing.T) {
	seatBubble(t, func(t *testing.T, ctx context.Context) {
		d := NewDispatcher(1, time.Minute)
		d.Configure(schemasOf(kubetest.SchemaFor("exempt", "*")), levelsOf(exemptLevel(), kubetest.LimitedLevel("other", 1, 0, 0, 0)))
		var in []*heldSeat
		for range 1000 {
			in = append(in, holdSeat(t, d, "admin", wideRequest(3)))
		}
		l := d.levelOf("exempt")
		if l.inUse != 3000 || l.executing != 1000 {
			t.Errorf("%d seats, %d executing", l.inUse, l.executing)
		}
		if n := l.stats["exempt"].waitedThenRan.total(); n != 0 {
			t.Errorf("%d waits of exempt requests were recorded", n)
		}
		for _, h := range in {
			h.release()
		}
	})
}
