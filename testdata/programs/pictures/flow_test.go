package pictures

// This file draws the pictures of flow control: a hand of cards, the two scheduling rules and the
// borrowed seats.

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"apilet/internal/flowcontrol"
)

// level returns a limited level with queues that does not lend seats.
func level(name string, queues, hand, length int32) *flowcontrolv1.PriorityLevelConfiguration {
	return &flowcontrolv1.PriorityLevelConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: flowcontrolv1.PriorityLevelConfigurationSpec{
		Type: flowcontrolv1.PriorityLevelEnablementLimited,
		Limited: &flowcontrolv1.LimitedPriorityLevelConfiguration{NominalConcurrencyShares: new(int32(100)), LendablePercent: new(int32(0)),
			LimitResponse: flowcontrolv1.LimitResponse{Type: flowcontrolv1.LimitResponseTypeQueue,
				Queuing: &flowcontrolv1.QueuingConfiguration{Queues: queues, HandSize: hand, QueueLengthLimit: length}}}}}
}

// schema returns a FlowSchema that matches all users and has a flow per user.
func schema(name, level string) *flowcontrolv1.FlowSchema {
	return &flowcontrolv1.FlowSchema{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: flowcontrolv1.FlowSchemaSpec{
		PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: level}, MatchingPrecedence: 100,
		DistinguisherMethod: &flowcontrolv1.FlowDistinguisherMethod{Type: flowcontrolv1.FlowDistinguisherMethodByUserType},
		Rules: []flowcontrolv1.PolicyRulesWithSubjects{{
			Subjects:      []flowcontrolv1.Subject{{Kind: flowcontrolv1.SubjectKindUser, User: &flowcontrolv1.UserSubject{Name: "*"}}},
			ResourceRules: []flowcontrolv1.ResourcePolicyRule{{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}, Namespaces: []string{"*"}, ClusterScope: true}}}}}}
}

func digest(user string) *flowcontrol.Digest {
	return &flowcontrol.Digest{User: user, ResourceRequest: true, Verb: "list", Version: "v1", Resource: "configmaps", Received: time.Now()}
}

// handOf finds the queues of a user's hand by sending enough requests to use all of them.
func handOf(t *testing.T, user string, queues, hand int32) (cards []int) {
	synctest.Test(t, func(t *testing.T) {
		d := flowcontrol.NewDispatcher(1, time.Hour)
		d.Configure([]*flowcontrolv1.FlowSchema{schema("herd", "level")}, []*flowcontrolv1.PriorityLevelConfiguration{level("level", queues, hand, 50)})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		// the first request has the only seat, the others each wait in the shortest queue
		for range int(hand) + 1 {
			wg.Go(func() {
				_ = d.Dispatch(ctx, digest(user), flowcontrol.Estimate{InitialSeats: 1}, func(*flowcontrol.Ticket) { <-ctx.Done() })
			})
			synctest.Wait()
		}
		var page strings.Builder
		d.Dump(&page, "dump_requests", false)
		for line := range strings.Lines(page.String()) {
			fields := strings.Split(line, ",")
			if n, err := strconv.Atoi(strings.TrimSpace(fields[min(2, len(fields)-1)])); err == nil && n >= 0 {
				cards = append(cards, n)
			}
		}
		cancel()
		wg.Wait()
	})
	slices.Sort(cards)
	return slices.Compact(cards)
}

func drawHands(t *testing.T) *drawing {
	const queues, hand, columns, size = 128, 6, 32, 20
	d := newDrawing(720, 210, "A deck of 128 queues; the hands of an elephant and of two mice, six queues each")
	users := []string{"elephant", "mouse-1", "mouse-2"}
	hands := map[string][]int{}
	for _, user := range users {
		hands[user] = handOf(t, user, queues, hand)
		if len(hands[user]) != hand {
			t.Fatalf("%s has the hand %v", user, hands[user])
		}
	}
	for q := range queues {
		x, y := 40+float64(q%columns)*size, 40+float64(q/columns)*(size+8)
		d.rect(x, y, size-3, size+3, "box")
		for i, user := range users {
			if slices.Contains(hands[user], q) {
				class := "c" + strconv.Itoa(i+1)
				if i == 0 {
					d.rect(x, y, size-3, size+3, class) // full
				} else {
					d.rect(x+2, y+float64(i)*8, size-7, 6, class)
				}
			}
		}
	}
	d.text(40, 24, "bold", "A level of %d queues, numbered from left to right; each flow is dealt %d", queues, hand)
	for i, user := range users {
		d.rect(40+float64(i)*220, 172, 12, 12, "c"+strconv.Itoa(i+1))
		d.text(58+float64(i)*220, 183, "small", "%s: %s", user, strings.Trim(fmt.Sprint(hands[user]), "[]"))
	}
	d.text(40, 203, "small", "The elephant can fill its six queues. A mouse is turned away only if all of its own are among them.")
	return d
}

// ---- Two flows with two rules

const (
	seats = 8
	// until then flow A uses seven seats and B needs one
	uneven   = 12 * time.Second
	whole    = 20 * time.Second
	bin      = 250 * time.Millisecond
	duration = 100 * time.Millisecond // of each request
)

// begins returns the time of the client's first request. Afterwards the client sends its next
// request immediately after each response. No two events happen at the same time, because their
// order would be undefined.
func begins(flow, client int) time.Duration {
	switch {
	case flow == 0 && client < seats-1:
		return time.Duration(client) * 13 * time.Millisecond
	case flow == 1 && client == 0:
		return (seats - 1) * 13 * time.Millisecond
	}
	return uneven + time.Millisecond + time.Duration(2*client+flow)*100*time.Microsecond
}

// wants returns the number of requests of a flow at the given time.
func wants(flow int, at time.Duration) (n int) {
	for client := range 2 * seats {
		if begins(flow, client) <= at {
			n++
		}
	}
	return n
}

// A tally contains the number of seats used by two flows and their accounts in the scheduler, by
// time.
type tally struct {
	seats [2][bins]float64
	// seat-seconds at the end of each bin; for our rule the lower and the higher account
	accounts [2][bins]float64
	virtual  [bins]float64
}

const bins = int(whole / bin)

func (y *tally) add(flow int, from, to time.Duration) {
	for from < to && from < whole {
		i := from / bin
		end := min(to, (i+1)*bin)
		y.seats[flow][i] += float64(end-from) / float64(bin)
		from = end
	}
}

// ours runs the scenario with the server's scheduler.
func ours(t *testing.T) *tally {
	var y tally
	synctest.Test(t, func(t *testing.T) {
		d := flowcontrol.NewDispatcher(seats, time.Hour)
		d.Configure([]*flowcontrolv1.FlowSchema{schema("herd", "level")}, []*flowcontrolv1.PriorityLevelConfiguration{level("level", 64, 6, 50)})
		start := time.Now()
		var mu sync.Mutex // guards y
		var wg sync.WaitGroup
		wg.Go(func() {
			reg := prometheus.NewRegistry()
			reg.MustRegister(d)
			time.Sleep(bin - time.Millisecond)
			for i := range bins {
				readBooks(t, reg, &y, i)
				time.Sleep(bin)
			}
		})
		for flow := range 2 {
			for i := range 2 * seats {
				wg.Go(func() {
					time.Sleep(begins(flow, i))
					for time.Since(start) < whole {
						err := d.Dispatch(t.Context(), digest("flow"+strconv.Itoa(flow)), flowcontrol.Estimate{InitialSeats: 1}, func(*flowcontrol.Ticket) {
							from := time.Since(start)
							time.Sleep(duration)
							mu.Lock()
							defer mu.Unlock()
							y.add(flow, from, time.Since(start))
						})
						if err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
		}
		wg.Wait()
	})
	return &y
}

// readBooks records virtual time and the lowest and highest account of the waiting flows, from the
// server's metrics.
func readBooks(t *testing.T, reg *prometheus.Registry, y *tally, at int) {
	families, err := reg.Gather()
	if err != nil {
		t.Error(err)
	}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			labels := map[string]string{}
			for _, pair := range m.GetLabel() {
				labels[pair.GetName()] = pair.GetValue()
			}
			switch value := m.GetGauge().GetValue(); {
			case labels["priority_level"] != "level":
			case strings.HasSuffix(family.GetName(), "_current_r"):
				y.virtual[at] = value
			case strings.HasSuffix(family.GetName(), "_next_s_bounds") && labels["bound"] == "min":
				y.accounts[0][at] = value
			case strings.HasSuffix(family.GetName(), "_next_s_bounds"):
				y.accounts[1][at] = value
			}
		}
	}
}

// kubernetes runs the scenario with the rule of k8s.io/apiserver/pkg/util/flowcontrol/fairqueuing.
// Virtual time advances by the even share. The tag of a queue is increased by the duration of its
// requests, and it is at least the virtual time when the first request arrived.
func kubernetes() *tally {
	const step, guess = time.Millisecond, .003
	var (
		y         tally
		virtual   float64
		tag       [2]float64
		waiting   [2][]float64 // virtual time at arrival
		executing [2][]time.Duration
	)
	for now := time.Duration(0); now < whole; now += step {
		inUse, asked, active := 0, 0, 0
		for f := range 2 {
			executing[f] = slices.DeleteFunc(executing[f], func(end time.Duration) bool {
				if end > now {
					return false
				}
				tag[f] += duration.Seconds() - guess // the actual duration instead of the estimate
				return true
			})
			for len(executing[f])+len(waiting[f]) < wants(f, now) {
				if len(executing[f])+len(waiting[f]) == 0 {
					tag[f] = virtual
				}
				waiting[f] = append(waiting[f], virtual)
			}
			if len(waiting[f]) > 0 {
				tag[f] = math.Max(tag[f], waiting[f][0])
			}
			inUse += len(executing[f])
			asked += len(executing[f]) + len(waiting[f])
			if asked > 0 && len(executing[f])+len(waiting[f]) > 0 {
				active++
			}
		}
		for ; inUse < seats && len(waiting[0])+len(waiting[1]) > 0; inUse++ {
			f := 0
			if len(waiting[0]) == 0 || len(waiting[1]) > 0 && tag[1] < tag[0] {
				f = 1
			}
			waiting[f] = waiting[f][1:]
			tag[f] += guess
			if len(waiting[f]) > 0 {
				tag[f] = math.Max(tag[f], waiting[f][0])
			}
			executing[f] = append(executing[f], now+duration)
			y.add(f, now, now+duration)
		}
		at := int(now / bin)
		y.accounts[0][at], y.accounts[1][at], y.virtual[at] = tag[0], tag[1], virtual
		virtual += float64(min(asked, seats)) / float64(max(active, 1)) * step.Seconds()
	}
	return &y
}

// starved returns the time during which a flow has less than half a seat although both flows have
// waiting requests.
func (y *tally) starved(flow int) (long time.Duration) {
	for _, held := range y.seats[flow][uneven/bin:] {
		if held < 0.5 {
			long += bin
		}
	}
	return long
}

func drawVirtualTime(t *testing.T) *drawing {
	d := newDrawing(720, 426, "Seats that two flows hold over time, and their accounts and virtual time, by apilet's rule and by Kubernetes'")
	mine, theirs := ours(t), kubernetes()
	if got := mine.starved(0); got > bin {
		t.Errorf("flow A is starved for %v by our rule", got)
	}
	if got := theirs.starved(0); got < 3*time.Second || got > 6*time.Second {
		t.Errorf("flow A is starved for %v by Kubernetes' rule: the model is wrong", got)
	}
	for i, part := range []struct {
		y    *tally
		name string
	}{{mine, "apilet: a free seat goes to the flow that was served least"},
		{theirs, fmt.Sprintf("Kubernetes: A has used more than its share, and is given nothing for %.1f s", theirs.starved(0).Seconds())}} {
		top := 50 + float64(i)*190
		d.text(40, top-28, "bold", "%s", part.name)
		held := plot{d, 40, top, 300, 110, whole.Seconds(), seats}
		held.axes(4, 2, "seconds", "seats")
		books := plot{d, 400, top, 300, 110, whole.Seconds(), 120}
		books.axes(4, 30, "seconds", "accounts and virtual time, in seat-seconds")
		for _, p := range []plot{held, books} {
			at := p.at(uneven.Seconds(), 0)
			d.line(at[0], p.y, at[0], p.y+p.h, "line dash")
		}
		for flow, class := range []string{"s1 thick", "s2 thick"} {
			held.steps(part.y.seats[flow][:], class)
			books.steps(part.y.accounts[flow][:], class)
		}
		books.steps(part.y.virtual[:], "line dash thick")
	}
	d.text(40, 402, "small", "%d seats. Blue: flow A, orange: flow B, dashed: virtual time. For 12 s A has work for seven seats and B for one;", seats)
	d.text(40, 418, "small", "then both want all. With apilet the books are closed while nobody waits; then both accounts grow alike.")
	return d
}

// ---- Lent seats

func drawLent(t *testing.T) *drawing {
	const total, end = 60, 100 * time.Second
	shown := []string{"workload-low", "global-default", "leader-election"}
	limits := map[string][]float64{}
	synctest.Test(t, func(t *testing.T) {
		d := flowcontrol.NewDispatcher(total, time.Hour)
		objs := flowcontrol.WithMandatory(flowcontrol.SuggestedObjects())
		d.Configure(objs.Schemas, objs.Levels)
		ctx, cancel := context.WithTimeout(t.Context(), end+time.Second)
		defer cancel()
		var wg sync.WaitGroup
		wg.Go(func() { d.Run(ctx) })
		load := func(dig flowcontrol.Digest, clients int, from, to time.Duration) {
			for range clients {
				wg.Go(func() {
					time.Sleep(from)
					for start := time.Now(); time.Since(start) < to-from && ctx.Err() == nil; {
						dig := dig
						dig.Received = time.Now()
						_ = d.Dispatch(ctx, &dig, flowcontrol.Estimate{InitialSeats: 1}, func(*flowcontrol.Ticket) { time.Sleep(500 * time.Millisecond) })
					}
				})
			}
		}
		alice := *digest("alice")
		alice.Groups = []string{"system:authenticated"}
		account := *digest("system:serviceaccount:shop:app")
		account.Groups = []string{"system:serviceaccounts", "system:authenticated"}
		load(alice, 80, 5200*time.Millisecond, 75*time.Second)
		load(account, 80, 45200*time.Millisecond, 75*time.Second)
		reg := prometheus.NewRegistry()
		reg.MustRegister(d)
		time.Sleep(500 * time.Millisecond) // between two events
		for range int(end / time.Second) {
			families, err := reg.Gather()
			if err != nil {
				t.Fatal(err)
			}
			for _, family := range families {
				if family.GetName() != "apiserver_flowcontrol_current_limit_seats" {
					continue
				}
				for _, m := range family.GetMetric() {
					name := m.GetLabel()[0].GetValue()
					limits[name] = append(limits[name], m.GetGauge().GetValue())
				}
			}
			time.Sleep(time.Second)
		}
		cancel()
		wg.Wait()
	})
	d := newDrawing(720, 290, "The seats of three priority levels while demand changes")
	p := plot{d, 50, 40, 640, 190, end.Seconds(), total}
	p.axes(10, 10, "seconds", "seats that a level may use now; the server has 60")
	for i, name := range shown {
		if len(limits[name]) == 0 {
			t.Fatalf("no level %s among %d", name, len(limits))
		}
		p.steps(limits[name], "thick s"+strconv.Itoa(i+1))
		d.rect(50+float64(i)*150, 262, 12, 12, "c"+strconv.Itoa(i+1))
		d.text(68+float64(i)*150, 272, "small", "%s", name)
	}
	d.text(50, 287, "small", "A user wants 80 seats from 5 s to 75 s (global-default), a service account 80 from 45 s to 75 s (workload-low).")
	return d
}
