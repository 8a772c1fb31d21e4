package main

import (
	"strings"
	"testing"
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
	if err != nil || s.name != "kube" || s.url != "https://127.0.0.1:6443" || s.token != "abc" || len(s.pids) != 2 {
		t.Errorf("%+v, %v", s, err)
	}
	for _, wrong := range []string{"http://x", "a=http://x,pid=z", "a=http://x,color=red"} {
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
