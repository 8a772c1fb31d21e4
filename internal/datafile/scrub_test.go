package datafile

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"apilet/internal/store"
)

// TestScrubTellsOfDamage in the health check and the log, each problem once, until the file is
// sound again. A round that the server's end cuts short says nothing about the file.
func TestScrubTellsOfDamage(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "data.db")
	open := func() *store.Store {
		st, err := store.Open(path, store.Options{Fatal: func(err error) { t.Errorf("fatal: %v", err) }})
		if err != nil {
			t.Fatal(err)
		}
		return st
	}
	st := open()
	const planted = "planted-in-the-document"
	doc := `{"metadata":{"name":"a","resourceVersion":""},"data":{"a":"` + planted + `"}}`
	if _, err := st.Commit(t.Context(), store.Change{Op: store.OpCreate, Key: "//configmaps/shop/a", JSON: []byte(doc), RevAt: strings.Index(doc, `""`) + 1}); err != nil {
		t.Fatal(err)
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	sound, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	damaged := bytes.ReplaceAll(sound, []byte(planted), []byte(strings.ToUpper(planted)))
	if bytes.Equal(sound, damaged) {
		t.Fatal("the document is not in the file")
	}
	write := func(content []byte) {
		file, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		if _, err := file.WriteAt(content, 0); err != nil {
			t.Fatal(err)
		}
	}
	write(damaged)
	st = open()
	defer st.Close()
	maintenance, err := store.NewMaintenance(st)
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	scrub := &Scrub{Store: st, Maintenance: maintenance, Log: zerolog.New(&log)}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if scrub.round(ended) || scrub.CheckLastScrub() != nil || log.Len() > 0 {
		t.Errorf("a round that was cut short: %v, log %s", scrub.CheckLastScrub(), log.String())
	}
	for range 2 {
		if scrub.round(t.Context()) || scrub.CheckLastScrub() == nil {
			t.Fatal("the damage was not found")
		}
	}
	if n := strings.Count(log.String(), "the data file is damaged"); n != len(*scrub.problems.Load()) || strings.Contains(log.String(), strings.ToUpper(planted)) {
		t.Errorf("%d problems, log:\n%s", len(*scrub.problems.Load()), log.String())
	}
	if _, err := st.Get("//configmaps/shop/a"); err == nil || scrub.CheckDamage() == nil {
		t.Errorf("a read of the damaged document: %v, health %v", err, scrub.CheckDamage())
	}
	scrub.round(ended)
	if scrub.CheckLastScrub() == nil {
		t.Error("a round that was cut short has taken the finding away")
	}
	write(sound)
	if !scrub.round(t.Context()) || scrub.CheckLastScrub() != nil || scrub.CheckDamage() != nil {
		t.Errorf("after the file was mended: %v, %v", scrub.CheckLastScrub(), scrub.CheckDamage())
	}
}
