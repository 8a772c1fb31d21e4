package history_test

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/tidwall/gjson"
	"k8s.io/apimachinery/pkg/labels"

	"apilet/internal/apitest"
	"apilet/internal/selector"
)

// TestLabelTermsAreLabelSelectors compares terms made ready with the library's selectors, on labels as they are stored.
func TestLabelTermsAreLabelSelectors(t *testing.T) {
	t.Parallel()
	pick := func(from ...string) string { return from[rand.IntN(len(from))] }
	key, val := func() string { return pick("a", "b", "c.io/d") }, func() string { return pick("1", "2", "30", "x", "") }
	term := func() string {
		k := key()
		return pick(k, "!"+k, k+"="+val(), k+"!="+val(), k+" in ("+val()+","+val()+")", k+" notin ("+val()+","+val()+")", k+">"+pick("1", "7"), k+"<"+pick("2", "31"))
	}
	for range apitest.Rounds(20_000) {
		var terms []string
		for range 1 + rand.IntN(4) {
			terms = append(terms, term())
		}
		set := labels.Set{}
		for range rand.IntN(4) {
			set[key()] = val()
		}
		parsed, err := labels.Parse(strings.Join(terms, ","))
		if err != nil {
			t.Fatal(terms, err)
		}
		requirements, _ := parsed.Requirements()
		stored, _ := json.Marshal(set)
		ready := selector.NewLabels(requirements)
		if got, want := ready.Match(gjson.ParseBytes(stored)), parsed.Matches(set); got != want {
			t.Fatalf("%s on %s: %v, want %v", strings.Join(terms, ","), stored, got, want)
		}
	}
}
