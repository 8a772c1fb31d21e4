package certs

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"apilet/internal/apitest"
)

// TestKeysThatOthersCanReadArePutRight: the authority stays, since clients trust it; the serving pair is made anew.
func TestKeysThatOthersCanReadArePutRight(t *testing.T) {
	t.Parallel()
	apitest.NeedsModes(t)
	for _, mode := range []os.FileMode{0o644, 0o640, 0o604, 0o660, 0o777} {
		for _, name := range []string{"ca", "apiserver"} {
			dir := filepath.Join(t.TempDir(), "certs")
			first, log, err := openTestCerts(t, dir)
			if err != nil || strings.Contains(log, couldRead) {
				t.Fatal(err, log)
			}
			key := filepath.Join(dir, name+".key")
			apitest.Chmod(t, key, mode)
			again, log, err := openTestCerts(t, dir)
			if err != nil || strings.Count(log, couldRead) != 1 || !strings.Contains(log, key) {
				t.Fatalf("%s of mode %o: %v, logged %s", key, mode, err, log)
			}
			if got := modeOf(key); got&groupAndOthers != 0 {
				t.Errorf("%s had mode %o and has %o", key, mode, got)
			}
			if !bytes.Equal(again.Authority.KeyPEM, first.Authority.KeyPEM) {
				t.Errorf("%s of mode %o: another authority", key, mode)
			}
			sameServing := bytes.Equal(again.Serving.Load().Certificate[0], first.Serving.Load().Certificate[0])
			if sameServing != (name == "ca") {
				t.Errorf("%s of mode %o: the serving certificate stayed: %v", key, mode, sameServing)
			}
			if _, log, _ := openTestCerts(t, dir); strings.Contains(log, couldRead) {
				t.Errorf("said twice: %s", log)
			}
		}
	}
}

// TestFolderThatOthersMayWriteIsPutRight, unless it is everybody's; it may be read as before, and what is in it stays.
func TestFolderThatOthersMayWriteIsPutRight(t *testing.T) {
	t.Parallel()
	apitest.NeedsModes(t)
	for mode, want := range map[os.FileMode]os.FileMode{0o777: 0o755, 0o770: 0o750, 0o702: 0o700, 0o755: 0o755, 0o777 | os.ModeSticky: 0o777} {
		dir := filepath.Join(t.TempDir(), "certs")
		first, _, err := openTestCerts(t, dir)
		if err != nil {
			t.Fatal(err)
		}
		apitest.Chmod(t, dir, mode)
		again, log, err := openTestCerts(t, dir)
		if told := strings.Contains(log, "in this folder"); err != nil || told != (mode&othersWrite != 0) || told && !strings.Contains(log, dir) {
			t.Errorf("a folder of mode %o: %v, logged %s", mode, err, log)
		}
		if got := modeOf(dir); got != want {
			t.Errorf("a folder of mode %o has %o, want %o", mode, got, want)
		}
		if !bytes.Equal(again.Authority.KeyPEM, first.Authority.KeyPEM) {
			t.Errorf("a folder of mode %o: another authority", mode)
		}
	}
}
