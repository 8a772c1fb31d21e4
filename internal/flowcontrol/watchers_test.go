package flowcontrol

import (
	"testing"
)

func TestWatchersAreCountedByWhatTheyWatch(t *testing.T) {
	t.Parallel()
	var wc WatcherCounts
	dig := func(namespace, name string) *Digest {
		return &Digest{Resource: "pods", Namespace: namespace, Name: name}
	}
	var stop []func()
	for _, w := range []struct{ namespace, name, selector string }{{"", "", ""}, {"ns", "", ""}, {"ns", "p", ""}, {"other", "", ""},
		{"", "", "spec.nodeName=n1"}, {"", "", "spec.nodeName="}} {
		stop = append(stop, wc.Register(dig(w.namespace, w.name), w.selector))
	}
	for info, want := range map[[2]string]int{{"ns", "p"}: 4, {"ns", ""}: 3, {"ns", "q"}: 3, {"other", "p"}: 3, {"", ""}: 2} {
		if got := wc.Interested("", "pods", info[0], info[1]); got != want {
			t.Errorf("%v: %d watchers, want %d", info, got, want)
		}
	}
	for _, f := range stop {
		f()
	}
	if wc.Len() != 0 {
		t.Error("left over:", wc.n)
	}
}
