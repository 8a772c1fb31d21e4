package crd

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"apilet/internal/registry"
	"apilet/internal/scheme"
)

// TestPastsAreMadeOnce: of one set of definitions, whichever of its moments is asked for, and each definition for all the sets that have it.
func TestPastsAreMadeOnce(t *testing.T) {
	t.Parallel()
	d, _ := defined(t)
	insert := func(plural string) int64 {
		t.Helper()
		text := strings.NewReplacer("gadgets", plural, "gadget", strings.TrimSuffix(plural, "s"), "Gadget", "K"+plural, `"gd"`, `"`+plural[:3]+`"`).Replace(definitionFile(t, "gadgets"))
		obj, _, err := d.row.Decode([]byte(text), "application/json", "")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := d.wr.Insert(t.Context(), d.row, obj, registry.Options{}); err != nil {
			t.Fatal(err)
		}
		return d.st.Revision()
	}
	at := func(rev int64) *scheme.Registry {
		t.Helper()
		reg, err := d.RegistryAt(t.Context(), rev)
		if err != nil {
			t.Fatal(err)
		}
		return reg
	}
	first := d.st.Revision()
	last := insert("alphas")
	if at(last) != d.reg || at(last+100) != d.reg {
		t.Error("what was served since the last change of a definition is not what is served now")
	}
	insert("betas")
	middle, second := at(last), at(first)
	if middle == d.reg || middle == second || middle.Lookup("example.com", "v1", "alphas") == nil || middle.Lookup("example.com", "v1", "betas") != nil ||
		second.Lookup("example.com", "v1", "alphas") != nil {
		t.Error("a past has other types than were served")
	}
	if middle.Lookup("example.com", "v1", "gadgets") != second.Lookup("example.com", "v1", "gadgets") {
		t.Error("a definition that two sets have was made twice")
	}
	for _, rev := range []int64{first, first - 1} { // the one before is of a Namespace
		if at(rev) != second {
			t.Errorf("revision %d: another registry for the same set", rev)
		}
	}
	if at(last) != middle {
		t.Error("a set that is kept was made again")
	}

	// Whoever waits while another set is made waits no longer than the request.
	insert("gammas")
	unknown := d.changed.Load() - 1
	d.pastCache.buildLock <- struct{}{}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := d.RegistryAt(ctx, unknown); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("who waited: %v", err)
	}
	if at(first) != second {
		t.Error("a set that is kept waits for one that is made")
	}
	<-d.pastCache.buildLock

	// What nobody asks for is let go.
	d.forgetIdle(time.Now().Add(2 * pastIdle))
	if len(d.pastCache.kept) != 0 || len(d.pastCache.defined) != 0 {
		t.Errorf("%d pasts and %d definitions are kept", len(d.pastCache.kept), len(d.pastCache.defined))
	}
}

// TestDefinitionOfThenOutlivesACompaction: of a definition that was the same at several moments the latest that was asked for is read.
func TestDefinitionOfThenOutlivesACompaction(t *testing.T) {
	t.Parallel()
	d, _ := defined(t)
	s := &schemas{st: d.st, key: d.row.Key("", "gadgets.example.com")}
	s.at.Store(2)
	for _, rev := range []int64{1, 7, 3} {
		s.readAt(rev)
	}
	if s.at.Load() != 7 {
		t.Errorf("it is read at revision %d", s.at.Load())
	}
}
