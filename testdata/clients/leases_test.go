package clients

// This file tests programs that run in several instances: they elect a leader by a Lease and record
// Events.

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/tools/record"
)

// candidate runs a leader election until it is canceled. It sends id to leading when it has become
// the leader. A lease outlasts the test, so that the leader only changes if it resigns.
func candidate(t *testing.T, cs kubernetes.Interface, id string, leading chan<- string) (resign func()) {
	t.Helper()
	lock := &resourcelock.LeaseLock{LeaseMeta: named("leader"), Client: cs.CoordinationV1(), LockConfig: resourcelock.ResourceLockConfig{Identity: id}}
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{Lock: lock, ReleaseOnCancel: true,
		LeaseDuration: 10 * patience, RenewDeadline: 5 * patience, RetryPeriod: 200 * time.Millisecond,
		Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: func(context.Context) { leading <- id }, OnStoppedLeading: func() {}}})
	check(t, "elector", err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		elector.Run(ctx)
	}()
	return func() {
		cancel()
		<-done
	}
}

func TestLeaderElectionPassesTheLeaseOn(t *testing.T) {
	t.Parallel()
	cs, leading := startEphemeral(t).typed(), make(chan string, 2)
	resign := map[string]func(){"a": candidate(t, cs, "a", leading), "b": candidate(t, cs, "b", leading)}
	first := receive(t, "somebody leads", leading)
	select {
	case second := <-leading:
		t.Fatalf("%s and %s lead", first, second)
	case <-time.After(time.Second): // five attempts of the other
	}
	start := time.Now()
	resign[first]()
	second := receive(t, "the other one leads", leading)
	t.Logf("%s took over from %s after %v", second, first, time.Since(start).Round(time.Millisecond))
	if second == first {
		t.Errorf("%s leads after it resigned", first)
	}
	lease, err := cs.CoordinationV1().Leases(ns).Get(t.Context(), "leader", metav1.GetOptions{})
	check(t, "get lease", err)
	if *lease.Spec.HolderIdentity != second || *lease.Spec.LeaseTransitions < 1 {
		t.Errorf("lease %+v", lease.Spec)
	}
	resign[second]()
}

func TestRecorderCountsRepeatedEvents(t *testing.T) {
	t.Parallel()
	ctx, cs := t.Context(), startEphemeral(t).typed()
	m, err := cs.CoreV1().ConfigMaps(ns).Create(ctx, configMap("m"), metav1.CreateOptions{})
	check(t, "create", err)
	broadcaster := record.NewBroadcaster()
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: cs.CoreV1().Events("")})
	recorder := broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "tester"})
	for range 3 {
		recorder.Eventf(m, corev1.EventTypeWarning, "Tested", "thrice %s", "told")
	}
	eventually(t, "one event, counted to three", func() bool {
		list, err := cs.CoreV1().Events(ns).List(ctx, metav1.ListOptions{FieldSelector: "reason=Tested,involvedObject.name=m,type=Warning"})
		check(t, "list", err)
		return len(list.Items) == 1 && list.Items[0].Count == 3 && list.Items[0].Message == "thrice told" && list.Items[0].InvolvedObject.UID == m.UID
	})
	newer, err := cs.EventsV1().Events(ns).List(ctx, metav1.ListOptions{})
	check(t, "list as events.k8s.io", err)
	if len(newer.Items) != 1 || newer.Items[0].Regarding.Name != "m" || newer.Items[0].DeprecatedCount != 3 {
		t.Errorf("as events.k8s.io: %+v", newer.Items)
	}
}

func TestRecorderOfEventsK8sIoMakesSeries(t *testing.T) {
	t.Parallel()
	ctx, cs := t.Context(), startEphemeral(t).typed()
	m, err := cs.CoreV1().ConfigMaps(ns).Create(ctx, configMap("m"), metav1.CreateOptions{})
	check(t, "create", err)
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: cs.EventsV1()})
	defer broadcaster.Shutdown()
	check(t, "start", broadcaster.StartRecordingToSinkWithContext(ctx))
	recorder := broadcaster.NewRecorder(scheme.Scheme, "example.com/tester")
	once := func() (list *eventsv1.EventList) {
		recorder.Eventf(m, nil, corev1.EventTypeNormal, "Tested", "Testing", "told")
		eventually(t, "the event is there", func() bool {
			list, err = cs.EventsV1().Events(ns).List(ctx, metav1.ListOptions{})
			check(t, "list", err)
			return len(list.Items) > 0
		})
		return list
	}
	if first := once().Items[0]; first.Series != nil || first.Action != "Testing" || first.ReportingController != "example.com/tester" {
		t.Errorf("first event %+v", first)
	}
	eventually(t, "the second makes a series", func() bool {
		list := once()
		return len(list.Items) == 1 && list.Items[0].Series != nil && list.Items[0].Series.Count >= 2
	})
	core, err := cs.CoreV1().Events(ns).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=m"})
	check(t, "list as v1", err)
	if len(core.Items) != 1 || core.Items[0].Message != "told" || core.Items[0].Source.Component != "" {
		t.Errorf("as v1: %+v", core.Items)
	}
}
