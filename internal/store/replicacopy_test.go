package store

import (
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"apilet/internal/apitest"
)

// TestCopiesOfARunningReplica copies the files of a replica in several pieces while the replica is
// updated. If the copy can be opened, its contents must match the log at that revision. Otherwise
// it must be rejected, or discarded and filled again.
func TestCopiesOfARunningReplica(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	path, log := filepath.Join(t.TempDir(), "replica"), &modelLog{live: map[string]int64{}}
	st := openReplicaStore(t, path, modelReplica("one"))
	fill(t, st, log, rnd)
	follow := func() {
		for range rnd.IntN(20) {
			keys := []string{fmt.Sprintf("//pods/ns/o%d", rnd.IntN(60)), fmt.Sprintf("//leases/ns/o%d", rnd.IntN(60))}
			from := len(log.entries)
			log.advance(rnd, keys)
			if err := st.Replicate(t.Context(), log.entries[from:], log.rev); err != nil {
				t.Fatal(err)
			}
		}
		if st.Revision() > 50 && rnd.IntN(4) == 0 {
			if _, err := mustUpkeep(t, st).Compact(t.Context(), st.Revision()-20); err != nil {
				t.Fatal(err)
			}
		}
	}
	copied, thrownAway, opened, refused := filepath.Join(t.TempDir(), "copy"), 0, 0, 0
	for n := range apitest.Rounds(60) {
		follow()
		b := readInPieces(t, path, func() {
			if n%3 > 0 {
				follow()
			}
		})
		note, err := os.ReadFile(path + replicaSuffix)
		if err != nil {
			t.Fatal(err)
		}
		for suffix, content := range map[string][]byte{"": b, replicaSuffix: note} {
			if err := os.WriteFile(copied+suffix, content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		again, err := Open(copied, Options{Replica: modelReplica("one")})
		if err != nil {
			if refused++; !strings.Contains(err.Error(), copied) {
				t.Error(err)
			}
			continue
		}
		if filled, err := again.Filled(); err != nil || !filled {
			thrownAway++
		} else {
			opened++
			for _, prefix := range []string{"//pods/", "//leases/"} {
				if got, want := listAt(t, again, prefix, 0), log.at(prefix, again.Revision()); !maps.Equal(got, want) {
					t.Errorf("round %d: %d objects of %d at revision %d", n, len(got), len(want), again.Revision())
				}
			}
		}
		again.Close()
	}
	if t.Logf("%d opened, %d thrown away, %d refused", opened, thrownAway, refused); opened == 0 || thrownAway == 0 {
		t.Error("not everything has come up")
	}
}

// readInPieces reads a file and calls between after each piece.
func readInPieces(t *testing.T, path string, between func()) (b []byte) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	piece := make([]byte, 16<<10)
	for {
		n, err := file.Read(piece)
		b = append(b, piece[:n]...)
		if err == io.EOF {
			return b
		}
		if err != nil {
			t.Fatal(err)
		}
		between()
	}
}
