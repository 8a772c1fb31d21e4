package main

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"apilet/internal/etcd/layout"
	"apilet/internal/scheme"
)

func TestRatioIsHowManyTimesBetterTheFirstIs(t *testing.T) {
	more := result{name: "x", unit: "1/s", better: "more", values: [][]float64{{9, 30, 10}, {5, 4, 6}}}
	if got := more.ratio(); got != 2 {
		t.Errorf("more: %v", got)
	}
	less := result{name: "y", unit: "MiB", better: "less", values: [][]float64{{9, 30, 10}, {5, 4, 6}}}
	if got := less.ratio(); got != 0.5 {
		t.Errorf("less: %v", got)
	}
	if pic := picture([]result{more, less}); strings.Count(pic, "<rect") != 2 {
		t.Error(pic)
	}
}

func TestServerIsReadFromItsArgument(t *testing.T) {
	s, err := newServer("kube=https://127.0.0.1:6443/,token=abc,pid=1+2")
	if err != nil || s.name != "kube" || s.address != "127.0.0.1:6443" || !s.secure || s.prefix != "" || s.token != "abc" || len(s.pids) != 2 {
		t.Errorf("%+v, %v", s, err)
	}
	for _, wrong := range []string{"http://x", "a=http://x,pid=z", "a=http://x,color=red", "a=x", "a=ftp://x"} {
		if s, err := newServer(wrong); err == nil {
			t.Errorf("%s: %+v", wrong, s)
		}
	}
}

func TestContinueIsFoundInAListsHead(t *testing.T) {
	for list, want := range map[string]string{
		`{"kind":"List","metadata":{"resourceVersion":"7","continue":"abc-_","remainingItemCount":1},"items":[]}`: "abc-_",
		`{"kind":"List","metadata":{"resourceVersion":"7"},"items":[]}`:                                           "",
	} {
		if got, err := continueOf([]byte(list)); got != want || err != nil {
			t.Errorf("%s: %q, %v", list, got, err)
		}
	}
}

// TestStoredMapIsAnObject checks that the values that are written to etcd directly match the
// objects that would be written by the servers.
func TestStoredMapIsAnObject(t *testing.T) {
	lay := layout.New(kubePrefix, scheme.NewRegistry())
	key, ok := lay.StoreKey(kubePrefix + "/configmaps/default/many-000007")
	if !ok {
		t.Fatal("no object has that key")
	}
	var read [2][]byte
	for i, protobuf := range []bool{false, true} {
		value, err := storedMap(7, protobuf)
		if err != nil {
			t.Fatal(err)
		}
		stored, err := lay.Decode(key, []byte(value))
		if err != nil {
			t.Errorf("protobuf %v: %v", protobuf, err)
		}
		read[i] = stored.JSON
	}
	if !bytes.Contains(read[0], []byte(`"name":"many-000007"`)) || len(read[0]) < bodyBytes || !bytes.Equal(read[0], read[1]) {
		t.Errorf("%s\n%s", read[0], read[1])
	}
}

func TestQuantileIsOneOfTheValues(t *testing.T) {
	values := []float64{5, 1, 4, 2, 3}
	for share, want := range map[float64]float64{0: 1, 0.5: 3, 0.99: 5, 1: 5} {
		if got := quantile(values, share); got != want {
			t.Errorf("%v: %v", share, got)
		}
	}
	if !slices.Equal(values, []float64{5, 1, 4, 2, 3}) {
		t.Error("the values were moved")
	}
}

func TestPaceIsOfWholeRounds(t *testing.T) {
	if n := pacedCount(time.Second); n != pacedWrites || n%pacedWriters != 0 {
		t.Errorf("%d writes in a second", n)
	}
}

func TestCasesAreFoundByName(t *testing.T) {
	if found := named(onOneEtcd, "create, 16"); len(found) != 1 || found[0].aim != 1.5 || len(named(onOneEtcd, "")) != len(onOneEtcd) {
		t.Errorf("%v", found)
	}
}

func TestProcessorsTimeIsReadFromTheSystem(t *testing.T) {
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Skip("no /proc here")
	}
	begun := time.Now()
	before, err := cpu(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for x := 0; ; x++ { // until the clock of the system advances by 10 ms
		if now, err := cpu(os.Getpid()); err != nil || now > before {
			return
		}
		if time.Since(begun) > time.Minute {
			t.Fatal("a minute's work is not seen")
		}
	}
}
