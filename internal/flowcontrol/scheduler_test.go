package flowcontrol

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"apilet/internal/apitest"
	"apilet/internal/apitest/kubetest"
)

// lendingLevel sets the percentages of a level. A negative borrow means no limit.
func lendingLevel(obj *flowcontrolv1.PriorityLevelConfiguration, lendable, borrow int32) *flowcontrolv1.PriorityLevelConfiguration {
	obj.Spec.Limited.LendablePercent = new(lendable)
	if borrow >= 0 {
		obj.Spec.Limited.BorrowingLimitPercent = new(borrow)
	}
	return obj
}

func exemptLevel() *flowcontrolv1.PriorityLevelConfiguration {
	return &flowcontrolv1.PriorityLevelConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "exempt"},
		Spec: flowcontrolv1.PriorityLevelConfigurationSpec{Type: flowcontrolv1.PriorityLevelEnablementExempt}}
}

// oneLevel returns a dispatcher whose only level has all seats.
func oneLevel(seats int, queues, hand, length int32) *Dispatcher {
	d := NewDispatcher(seats, 4*time.Minute)
	d.Configure([]*flowcontrolv1.FlowSchema{kubetest.SchemaFor("level", "*")},
		[]*flowcontrolv1.PriorityLevelConfiguration{kubetest.LimitedLevel("level", 100, queues, hand, length)})
	return d
}

func (d *Dispatcher) levelOf(name string) *Level { return d.levels[name] }

// usersApart returns n user names that are assigned to different queues if the hand size is one.
func usersApart(n, queues int) []string {
	var names []string
	taken := map[int]bool{}
	for i := 0; len(names) < n; i++ {
		name := fmt.Sprint("user", i)
		card := dealHand(flowHash("level", name), queues, 1, nil)[0]
		if !taken[card] {
			taken[card] = true
			names = append(names, name)
		}
	}
	return names
}

// A seatLoad describes the load of a client with a number of threads.
type seatLoad struct {
	user        string
	threads     int
	exec, think time.Duration
	est         Estimate
	from, until time.Duration
}

// A scene runs the loads and records the number of seats that are in use.
type scene struct {
	d        *Dispatcher
	mu       sync.Mutex
	start    time.Time
	held     map[string]int
	since    map[string]time.Time
	took     map[string]time.Duration
	served   map[string]int
	rejected map[string]int
	waits    map[string][]time.Duration
}

func newScene(d *Dispatcher) *scene {
	return &scene{d: d, start: time.Now(), held: map[string]int{}, since: map[string]time.Time{}, took: map[string]time.Duration{},
		served: map[string]int{}, rejected: map[string]int{}, waits: map[string][]time.Duration{}}
}

func (sc *scene) hold(user string, seats int) {
	sc.mu.Lock()
	defer sc.mu.Unlock()
	sc.took[user] += time.Duration(sc.held[user]) * time.Since(sc.since[user])
	sc.since[user] = time.Now()
	sc.held[user] += seats
}

// seats returns the mean number of seats held since the last call.
func (sc *scene) seats(users []string, window time.Duration) []float64 {
	var got []float64
	for _, user := range users {
		sc.hold(user, 0)
		sc.mu.Lock()
		got = append(got, sc.took[user].Seconds()/window.Seconds())
		sc.took[user] = 0
		sc.mu.Unlock()
	}
	return got
}

func (sc *scene) request(ctx context.Context, ld *seatLoad) {
	arrived := time.Now()
	est := ld.est
	if est.InitialSeats == 0 {
		est.InitialSeats = 1
	}
	est.Watchers = -1
	err := sc.d.Dispatch(ctx, &Digest{User: ld.user, Verb: "get", Received: arrived}, est, func(*Ticket) {
		sc.mu.Lock()
		sc.waits[ld.user] = append(sc.waits[ld.user], time.Since(arrived))
		sc.served[ld.user]++
		sc.mu.Unlock()
		sc.hold(ld.user, est.seats())
		time.Sleep(ld.exec)
		sc.hold(ld.user, -est.seats())
	})
	var rej *Rejection
	if errors.As(err, &rej) {
		sc.mu.Lock()
		sc.rejected[ld.user]++
		sc.mu.Unlock()
		// the bubble's time would stop if a client sent its next request immediately
		time.Sleep(time.Millisecond)
	}
}

// play starts the loads' threads. They end with the context.
func (sc *scene) play(ctx context.Context, loads ...seatLoad) {
	for i := range loads {
		ld := loads[i]
		for j := range ld.threads {
			go func() {
				time.Sleep(ld.from + time.Duration(90*j+20*i))
				for ctx.Err() == nil && (ld.until == 0 || time.Since(sc.start) < ld.until) {
					sc.request(ctx, &ld)
					time.Sleep(ld.think)
				}
			}()
		}
	}
}

// seatBubble runs f in a synctest bubble with a context that ends before the bubble does.
func seatBubble(t *testing.T, f func(t *testing.T, ctx context.Context)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		f(t, ctx)
		cancel()
		synctest.Wait()
		time.Sleep(time.Hour) // running requests may finish
		synctest.Wait()
	})
}

// TestSeatsAreSharedEvenlyAmongFlows includes the scenarios of Kubernetes' queue-set tests.
func TestSeatsAreSharedEvenlyAmongFlows(t *testing.T) {
	type client struct {
		threads     int
		exec, think time.Duration
		width       int
		want        float64
	}
	const s, ms = time.Second, time.Millisecond
	for _, c := range []struct {
		name          string
		seats, queues int
		hand          int32
		window        time.Duration
		margin        float64
		clients       []client
	}{
		{"two equal flows", 4, 9, 1, 50 * s, .01, []client{{8, s, s - 1, 1, 2}, {8, s, s - 1, 1, 2}}},
		{"two equal flows with three cards", 4, 8, 3, 60 * s, .03, []client{{8, s, s - 1, 1, 2}, {8, s, s - 1, 1, 2}}},
		{"two flows that both want too much", 4, 9, 1, 40 * s, .01, []client{{8, s, s, 1, 2}, {7, s, s / 2, 1, 2}}},
		{"a small flow gets all it wants", 3, 9, 1, 20 * s, .01, []client{{4, s, s - 1, 1, 2}, {2, s, s - 1, 1, 1}}},
		{"seat-time counts, not requests", 4, 9, 1, 60 * s, .01, []client{{16, 100 * ms, 0, 1, 2}, {16, s, 0, 1, 2}}},
		{"different widths", 6, 64, 7, 60 * s, .05, []client{{13, s, 0, 1, 3}, {7, s, 0, 2, 3}}},
		{"wider than the level", 6, 64, 7, 400 * s, .2, []client{{15, s, 0, 2, 1.2}, {15, s, 0, 2, 1.2}, {15, s, 0, 2, 1.2}, {15, s, 0, 2, 1.2}, {15, s, 0, 7, 1.4}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			seatBubble(t, func(t *testing.T, ctx context.Context) {
				sc := newScene(oneLevel(c.seats, int32(c.queues), c.hand, 64))
				sc.d.levelOf("level").maxSeats = 0
				users := usersApart(len(c.clients), c.queues)
				for i, cl := range c.clients {
					sc.play(ctx, seatLoad{user: users[i], threads: cl.threads, exec: cl.exec, think: cl.think, est: Estimate{InitialSeats: cl.width}})
				}
				time.Sleep(c.window)
				synctest.Wait()
				got := sc.seats(users, c.window)
				for i, cl := range c.clients {
					if !apitest.Nearly(got[i], cl.want, c.margin) {
						t.Errorf("client %d held %.3f seats, want %.3f within %v", i, got[i], cl.want, c.margin)
					}
				}
			})
		})
	}
}

// TestAFlowNeitherHoardsNorOwes allows flow 0 to use the seats that are not needed by flow 1. Then
// both need all seats.
func TestAFlowNeitherHoardsNorOwes(t *testing.T) {
	for _, uneven := range []time.Duration{40 * time.Second, 200 * time.Second, 800 * time.Second} {
		t.Run(uneven.String(), func(t *testing.T) {
			seatBubble(t, func(t *testing.T, ctx context.Context) {
				const exec = 250 * time.Millisecond
				sc := newScene(oneLevel(8, 9, 1, 64))
				users := usersApart(2, 9)
				sc.play(ctx, seatLoad{user: users[0], threads: 24, exec: exec}, seatLoad{user: users[1], threads: 1, exec: exec},
					seatLoad{user: users[1], threads: 23, exec: exec, from: uneven})
				time.Sleep(uneven)
				synctest.Wait()
				if got := sc.seats(users, uneven); got[0] < 7 {
					t.Errorf("uneven phase: %.3f, want 7 and less than 1", got)
				}
				for second := range 20 {
					time.Sleep(time.Second)
					synctest.Wait()
					got := sc.seats(users, time.Second)
					margin := .03
					if second == 0 {
						margin = .1
					}
					if !apitest.Nearly(got[0], 4, margin) || !apitest.Nearly(got[1], 4, margin) {
						t.Errorf("second %d after both want all: %.3f, want 4 and 4", second, got)
					}
				}
			})
		})
	}
}

// TestAMouseWaitsForOneSeatOnly checks that a single thread that sends its next request immediately
// waits for the next free seat only.
func TestAMouseWaitsForOneSeatOnly(t *testing.T) {
	seatBubble(t, func(t *testing.T, ctx context.Context) {
		sc := newScene(oneLevel(4, 9, 1, 64))
		users := usersApart(2, 9)
		sc.play(ctx, seatLoad{user: users[0], threads: 64, exec: time.Second}, seatLoad{user: users[1], threads: 1, exec: time.Second, from: 333 * time.Millisecond})
		time.Sleep(100 * time.Second)
		synctest.Wait()
		if got := sc.seats(users, 100*time.Second); got[1] < .75 {
			t.Errorf("the mouse held %.3f seats of 1", got[1])
		}
		for _, wait := range sc.waits[users[1]] {
			if wait > time.Second {
				t.Errorf("the mouse waited %v", wait)
			}
		}
	})
}

// TestManyFlowsOfUnlikeSizeShareEvenly checks how seats are shared by a hundred flows of different
// sizes if their queues collide.
func TestManyFlowsOfUnlikeSizeShareEvenly(t *testing.T) {
	seatBubble(t, func(t *testing.T, ctx context.Context) {
		const flows, window = 100, 300 * time.Second
		sc := newScene(oneLevel(20, 128, 6, 50))
		var users []string
		var threads []int
		for i := range flows {
			users = append(users, fmt.Sprint("client", i))
			threads = append(threads, max(1, 60/(i+1)))
			sc.play(ctx, seatLoad{user: users[i], threads: threads[i], exec: 100 * time.Millisecond})
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		sc.seats(users, window)
		time.Sleep(window)
		synctest.Wait()
		got := sc.seats(users, window)
		var sum, squares, least, total float64
		least = 1
		for i, x := range got {
			x /= 20. / flows
			sum, squares, total = sum+x, squares+x*x, total+got[i]
			least = min(least, x)
		}
		jain := sum * sum / flows / squares
		t.Logf("Jain %.4f, least %.3f of the fair share, %.2f seats in use", jain, least, total)
		if jain < .95 || least < .8 || total < 19.8 {
			t.Errorf("Jain %.4f, least %.3f, %.2f seats in use; want 0.95, 0.8 and 19.8", jain, least, total)
		}
	})
}

func TestMiceAmongElephantsAreServedAtOnce(t *testing.T) {
	seatBubble(t, func(t *testing.T, ctx context.Context) {
		const exec = 100 * time.Millisecond
		sc := newScene(oneLevel(6, 64, 6, 50))
		for i := range 3 {
			sc.play(ctx, seatLoad{user: fmt.Sprint("elephant", i), threads: 40, exec: exec + time.Duration(i)*7*time.Millisecond})
		}
		for i := range 20 {
			sc.play(ctx, seatLoad{user: fmt.Sprint("mouse", i), threads: 1, exec: exec, think: 9 * exec, from: time.Duration(i) * 47 * time.Millisecond})
		}
		time.Sleep(100 * time.Second)
		synctest.Wait()
		var slow, all int
		for i := range 20 {
			user := fmt.Sprint("mouse", i)
			if sc.rejected[user] > 0 {
				t.Errorf("%s was turned away %d times", user, sc.rejected[user])
			}
			for _, wait := range sc.waits[user] {
				if all++; wait > 2*exec {
					slow++
				}
			}
		}
		if slow*100 > all {
			t.Errorf("%d of %d mice waited for more than two running times", slow, all)
		}
	})
}

// TestAHandCountsAsOneFlow verifies that a flow with requests in several queues is treated as a
// single flow.
func TestAHandCountsAsOneFlow(t *testing.T) {
	seatBubble(t, func(t *testing.T, ctx context.Context) {
		sc := newScene(oneLevel(9, 64, 8, 50))
		users := []string{"elephant"}
		sc.play(ctx, seatLoad{user: "elephant", threads: 300, exec: 100 * time.Millisecond})
		for i := range 8 {
			users = append(users, fmt.Sprint("mouse", i))
			sc.play(ctx, seatLoad{user: users[i+1], threads: 4, exec: 100 * time.Millisecond})
		}
		time.Sleep(60 * time.Second)
		synctest.Wait()
		for i, got := range sc.seats(users, 60*time.Second) {
			if !apitest.Nearly(got, 1, .05) {
				t.Errorf("%s held %.3f seats, want 1", users[i], got)
			}
		}
	})
}

// TestADebtIsPaidOnce checks that a flow that used both seats for a minute while another flow
// waited pays this back exactly once.
func TestADebtIsPaidOnce(t *testing.T) {
	seatBubble(t, func(t *testing.T, ctx context.Context) {
		sc := newScene(oneLevel(2, 9, 1, 500))
		users := usersApart(2, 9)
		sc.play(ctx, seatLoad{user: users[0], threads: 2, exec: time.Minute, until: time.Second})
		sc.play(ctx, seatLoad{user: users[0], threads: 20, exec: time.Second, from: 2 * time.Second},
			seatLoad{user: users[1], threads: 20, exec: time.Second, from: time.Second})
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		sc.seats(users, time.Minute)
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := sc.seats(users, time.Minute); !apitest.Nearly(got[0], 1, .05) {
			t.Errorf("after the debt was paid: %.3f seats, want 1 and 1", got)
		}
	})
}

func BenchmarkUncontended(b *testing.B) {
	for _, queues := range []int32{0, 16, 128, 1024} {
		b.Run(fmt.Sprint("queues=", queues), func(b *testing.B) {
			d := oneLevel(100, queues, min(6, queues), 50)
			dig := &Digest{User: "alice", Verb: "get", Received: time.Now()}
			est := Estimate{InitialSeats: 1, Watchers: -1}
			b.ReportAllocs()
			defer apitest.ProcessorTime(b)()
			for b.Loop() {
				if err := d.Dispatch(context.Background(), dig, est, func(*Ticket) {}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkBacklog measures the time to finish a request, start the next one and add another if
// there are four waiting requests in every queue.
func BenchmarkBacklog(b *testing.B) {
	for _, seats := range []int{1, 600} {
		for _, queues := range []int32{64, 1024} {
			b.Run(fmt.Sprintf("seats=%d/queues=%d", seats, queues), func(b *testing.B) {
				d := oneLevel(seats, queues, 6, 50)
				l := d.levelOf("level")
				schema := (*d.schemas.Load())[0]
				digests := make([]Digest, 4*queues)
				for i := range digests {
					digests[i] = Digest{User: fmt.Sprint("user", i), Verb: "get"}
				}
				est := Estimate{InitialSeats: 1, Watchers: -1}
				for i := range seats + len(digests) {
					if _, err := l.enter(schema, &digests[i%len(digests)], est); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportAllocs()
				defer apitest.ProcessorTime(b)()
				for b.Loop() {
					done := l.running.first
					done.Finish()
					if _, err := l.enter(schema, &done.Digest, est); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// A modelRequest is a request of a random trace. started is the time at which it was started by the
// model or by the level.
type modelRequest struct {
	flow    int
	arrives time.Duration
	runs    time.Duration
	started time.Duration
	promise time.Duration
	state   ticketState
}

// A turnModel is a simple implementation of the rule at the start of scheduler.go. It does not use
// a heap, and it updates all accounts in every step.
type turnModel struct {
	seats, inUse, waiting  int
	now, vtime, usual      time.Duration
	served, held, promised map[int]time.Duration
	requests               []*modelRequest
	queueOf                []int
	turn                   map[int]int
	next, queues           int
}

func (m *turnModel) active(flow int) (is bool) {
	for _, q := range m.requests {
		is = is || q.flow == flow && (q.state == isExecuting || q.state == isWaiting && q.arrives <= m.now)
	}
	return is
}

func (m *turnModel) first(flow int) *modelRequest {
	for _, q := range m.requests {
		if q.flow == flow && q.state == isWaiting && q.arrives <= m.now {
			return q
		}
	}
	return nil
}

func (m *turnModel) flows() (n int) {
	for flow := range m.queueOf {
		if m.active(flow) {
			n++
		}
	}
	return n
}

// pass advances the time to at. No event happens in between.
func (m *turnModel) pass(at time.Duration) {
	dt := at - m.now
	if m.waiting > 0 {
		m.vtime += time.Duration(m.inUse) * dt / time.Duration(m.flows())
		for flow := range m.queueOf {
			m.served[flow] += m.held[flow] * dt
		}
	}
	m.now = at
}

func (m *turnModel) rank(flow int) {
	m.turn[flow] = m.next + (m.queueOf[flow]+m.queues-m.next%m.queues)%m.queues
}

func (m *turnModel) key(flow int) time.Duration {
	return m.served[flow] + m.promised[flow] + defaultDuration
}

func (m *turnModel) fill() {
	for m.waiting > 0 && m.inUse < m.seats {
		best := -1
		for flow := range m.queueOf {
			if m.first(flow) != nil && (best < 0 || m.key(flow) < m.key(best) || m.key(flow) == m.key(best) && m.turn[flow] < m.turn[best]) {
				best = flow
			}
		}
		q := m.first(best)
		m.next = m.turn[best] + 1
		m.vtime = max(m.vtime, m.served[best])
		q.state, q.started, q.promise = isExecuting, m.now, m.usual
		m.inUse++
		m.held[best]++
		m.promised[best] += q.promise
		if m.first(best) != nil {
			m.rank(best)
		}
		if m.waiting--; m.waiting == 0 {
			for flow := range m.served {
				m.served[flow] = m.vtime
			}
		}
	}
}

func (m *turnModel) run() {
	for {
		var arrival, end *modelRequest
		for _, q := range m.requests {
			if q.state == isExecuting && (end == nil || q.started+q.runs < end.started+end.runs) {
				end = q
			}
			if q.state == isWaiting && q.arrives > m.now && (arrival == nil || q.arrives < arrival.arrives) {
				arrival = q
			}
		}
		switch {
		case end != nil && (arrival == nil || end.started+end.runs < arrival.arrives):
			m.pass(end.started + end.runs)
			m.usual = max(defaultDuration, m.usual+(end.runs-m.usual)/16)
			end.state = hasLeft
			m.inUse--
			m.held[end.flow]--
			m.promised[end.flow] -= end.promise
			if m.first(end.flow) != nil {
				m.rank(end.flow)
			}
			if !m.active(end.flow) {
				delete(m.served, end.flow)
			}
		case arrival != nil:
			fresh := !m.active(arrival.flow)
			m.pass(arrival.arrives)
			m.waiting++
			if fresh {
				m.served[arrival.flow] = m.vtime
			}
			if m.first(arrival.flow) == arrival {
				m.served[arrival.flow] = max(m.served[arrival.flow], m.vtime)
				m.rank(arrival.flow)
			}
		default:
			return
		}
		m.fill()
	}
}

// TestTurnsAreThoseOfTheModel checks that all requests are started at the time that is predicted by
// the model.
func TestTurnsAreThoseOfTheModel(t *testing.T) {
	const traces, queues = 10_000, 8
	seed := uint64(time.Now().UnixNano())
	rng := rand.New(rand.NewPCG(seed, 1))
	for trace := range traces {
		flows, seats := 1+rng.IntN(5), 1+rng.IntN(4)
		names := usersApart(flows, queues)
		m := &turnModel{seats: seats, usual: defaultDuration, served: map[int]time.Duration{}, held: map[int]time.Duration{},
			promised: map[int]time.Duration{}, turn: map[int]int{}, queues: queues}
		for _, name := range names {
			m.queueOf = append(m.queueOf, dealHand(flowHash("level", name), queues, 1, nil)[0])
		}
		taken := map[time.Duration]bool{}
		for range 4 + rng.IntN(14) {
			at := time.Duration(1 + rng.IntN(int(100*time.Millisecond)))
			if !taken[at] {
				taken[at] = true
				m.requests = append(m.requests, &modelRequest{flow: rng.IntN(flows), arrives: at,
					runs: time.Duration(1 + rng.IntN(int(20*time.Millisecond)*(1+9*rng.IntN(2)))), state: isWaiting})
			}
		}
		slices.SortFunc(m.requests, func(a, b *modelRequest) int { return cmp.Compare(a.arrives, b.arrives) })
		got := make([]time.Duration, len(m.requests))
		synctest.Test(t, func(t *testing.T) {
			d, start := oneLevel(seats, queues, 1, 100), time.Now()
			for i, q := range m.requests {
				go func() {
					time.Sleep(q.arrives)
					_ = d.Dispatch(t.Context(), &Digest{User: names[q.flow], Received: time.Now()}, Estimate{InitialSeats: 1}, func(*Ticket) {
						got[i] = time.Since(start)
						time.Sleep(q.runs)
					})
				}()
			}
			synctest.Wait()
			time.Sleep(time.Minute)
			synctest.Wait()
			synctest.Wait()
		})
		m.run()
		for i, q := range m.requests {
			if got[i] != q.started {
				t.Fatalf("seed %d, trace %d: request %d of %d (flow %d, arrives %v) started at %v, the model says %v",
					seed, trace, i, len(m.requests), q.flow, q.arrives, got[i], q.started)
			}
		}
	}
}

// TestNewcomersDoNotStarveWhoIsThere checks a stream of requests from new flows, each of which
// starts with an even share by virtual time. Virtual time must advance meanwhile, or the old flow
// would starve.
func TestNewcomersDoNotStarveWhoIsThere(t *testing.T) {
	seatBubble(t, func(t *testing.T, ctx context.Context) {
		const strangers = 50
		sc := newScene(oneLevel(2, 64, 6, 500))
		sc.play(ctx, seatLoad{user: "resident", threads: 10, exec: 10 * time.Millisecond})
		for i := range strangers {
			go func() {
				for n := 0; ctx.Err() == nil; n++ {
					sc.request(ctx, &seatLoad{user: fmt.Sprint("stranger", i, "-", n), exec: 10 * time.Millisecond})
				}
			}()
		}
		time.Sleep(100 * time.Second)
		synctest.Wait()
		fair := 2. / (strangers + 1)
		if got := sc.seats([]string{"resident"}, 100*time.Second)[0]; got < .8*fair || got > 1.5*fair {
			t.Errorf("the resident held %.4f seats, want about %.4f", got, fair)
		}
	})
}

// TestOneRequestTakesAFewSeatsOfALevel checks that a request keeps its seats for a longer time if
// the number of seats was limited.
func TestOneRequestTakesAFewSeatsOfALevel(t *testing.T) {
	wide := Estimate{InitialSeats: 1, FinalSeats: 10, Tail: 50 * time.Millisecond, Mutating: true}
	if got := wide.within(4); got.FinalSeats != 4 || got.Tail != 125*time.Millisecond {
		t.Errorf("1000 watchers in 4 seats: %+v", got)
	}
	for nominal, want := range map[[2]int]int{{5, 6}: 1, {10, 6}: 1, {15, 6}: 2, {20, 6}: 3, {35, 6}: 5, {100, 6}: 15, {200, 6}: 30, {10, 1}: 2, {100, 20}: 5} {
		l := newLevel("level", nil, nil)
		l.shape(&kubetest.LimitedLevel("level", 1, 64, int32(nominal[1]), 1).Spec, nominal[0])
		if l.maxSeats != want {
			t.Errorf("nominal %d, hand %d: at most %d seats, want %d", nominal[0], nominal[1], l.maxSeats, want)
		}
	}
}
