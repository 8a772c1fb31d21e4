package certs

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"apilet/internal/apitest"
	"apilet/internal/clock"
)

func TestCertFolderIsKept(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "certs")
	if _, _, err := openTestCerts(t, dir, "a.example"); err != nil {
		t.Fatal(err)
	}
	if info, _ := os.Stat(dir); info.Mode().Perm() != 0o700 {
		t.Errorf("the folder has mode %v", info.Mode())
	}
	before := map[string][]byte{}
	for _, name := range []string{"ca.crt", "ca.key", "apiserver.crt", "apiserver.key"} {
		before[name] = apitest.ReadFile(t, filepath.Join(dir, name))
		if info, _ := os.Stat(filepath.Join(dir, name)); info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v", name, info.Mode())
		}
	}
	if _, log, err := openTestCerts(t, dir, "a.example"); err != nil || log != "" {
		t.Errorf("opening it again: %v %s", err, log)
	}
	for name, content := range before {
		if !bytes.Equal(content, apitest.ReadFile(t, filepath.Join(dir, name))) {
			t.Errorf("%s has changed", name)
		}
	}
	if files, _ := os.ReadDir(dir); len(files) != 4 {
		t.Errorf("the folder has %v", files)
	}
}

// TestServingCertificateIsMadeAnew when the one that is there does not fit. The authority stays.
func TestServingCertificateIsMadeAnew(t *testing.T) {
	stranger, _, err := openTestCerts(t, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	shortLived := func(f *Folder) *KeyPair {
		tmpl := servingTemplate([]string{"localhost"})
		tmpl.NotBefore, tmpl.NotAfter = f.Authority.Cert.NotBefore, time.Now().Add(RenewBefore-time.Hour)
		pair, err := newPair(tmpl, f.Authority)
		if err != nil {
			t.Fatal(err)
		}
		return pair
	}
	for want, spoil := range map[string]func(f *Folder){
		"it does not name new.example": func(*Folder) {},
		"it ends at":                   func(f *Folder) { f.save("apiserver", shortLived(f)) },
		"another authority has signed it": func(f *Folder) {
			p, _ := stranger.issue(servingTemplate([]string{"localhost"}))
			f.save("apiserver", p)
		},
		"does not match": func(f *Folder) {
			apitest.WriteFile(t, f.file("apiserver.key"), apitest.ReadFile(t, stranger.file("apiserver.key")))
		},
		"no such file":          func(f *Folder) { os.Remove(f.file("apiserver.key")) },
		"failed to find any PE": func(f *Folder) { apitest.WriteFile(t, f.file("apiserver.crt"), nil) },
	} {
		dir := t.TempDir()
		f, _, err := openTestCerts(t, dir)
		if err != nil {
			t.Fatal(err)
		}
		ca := apitest.ReadFile(t, f.file("ca.crt"))
		spoil(f)
		f, log, err := openTestCerts(t, dir, "new.example")
		if err != nil || want != "no such file" && !strings.Contains(log, want) || !strings.Contains(log, "creating a new serving certificate") && want != "no such file" {
			t.Errorf("%s: %v, logged %s", want, err, log)
			continue
		}
		if err := f.Serving.Load().Leaf.VerifyHostname("new.example"); err != nil {
			t.Errorf("%s: %v", want, err)
		}
		if _, err := tls.LoadX509KeyPair(f.file("apiserver.crt"), f.file("apiserver.key")); err != nil || !bytes.Equal(ca, apitest.ReadFile(t, f.file("ca.crt"))) {
			t.Errorf("%s: afterwards %v, or another authority", want, err)
		}
	}
}

// TestRunningServerRenews: what renewCerts calls every few hours.
func TestRunningServerRenews(t *testing.T) {
	for _, dir := range []string{"", t.TempDir()} {
		hosts := []string{"localhost"}
		f, err := OpenCertFolder(Config{Dir: dir, Hosts: func() []string { return hosts }, Now: time.Now, Log: zerolog.Nop()})
		if err != nil {
			t.Fatal(err)
		}
		first := f.Serving.Load()
		if err := f.Renew(); err != nil || !bytes.Equal(f.Serving.Load().Certificate[0], first.Certificate[0]) {
			t.Errorf("in %q a certificate that fits was made anew, or %v", dir, err)
		}
		hosts = append(hosts, "10.1.2.3")
		if err := f.Renew(); err != nil || f.Serving.Load().Leaf.VerifyHostname("10.1.2.3") != nil {
			t.Errorf("in %q the new address is not in the certificate, %v", dir, err)
		}
	}
}

// TestDamagedAuthorityIsAnError, and is left as it is: clients trust it.
func TestDamagedAuthorityIsAnError(t *testing.T) {
	stranger, _, err := openTestCerts(t, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(f *Folder){
		"half a certificate": func(f *Folder) {
			c := apitest.ReadFile(t, f.file("ca.crt"))
			apitest.WriteFile(t, f.file("ca.crt"), c[:len(c)/2])
		},
		"an empty certificate": func(f *Folder) { apitest.WriteFile(t, f.file("ca.crt"), nil) },
		"no key":               func(f *Folder) { os.Remove(f.file("ca.key")) },
		"another's key":        func(f *Folder) { apitest.WriteFile(t, f.file("ca.key"), stranger.Authority.KeyPEM) },
		"no authority":         func(f *Folder) { p, _ := f.IssueAdmin(); f.save("ca", p) },
	} {
		dir := t.TempDir()
		f, _, err := openTestCerts(t, dir)
		if err != nil {
			t.Fatal(err)
		}
		spoil(f)
		spoilt := apitest.ReadFile(t, f.file("ca.crt"))
		_, _, err = openTestCerts(t, dir)
		if err == nil || !strings.Contains(err.Error(), "ca.crt") || !strings.Contains(err.Error(), "restore both") {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && strings.Contains(err.Error(), "PRIVATE") {
			t.Errorf("%s: the error shows a key", name)
		}
		if !bytes.Equal(spoilt, apitest.ReadFile(t, f.file("ca.crt"))) {
			t.Errorf("%s: the file was replaced", name)
		}
	}
}

// TestClocksThatAreWrong make no certificate that others refuse, and none of an authority's life keeps a start back: for each folder that a wrong
// clock made, what a start with the right one shows is good for those who trust the authority's key.
func TestClocksThatAreWrong(t *testing.T) {
	right := time.Now()
	for name, wrong := range map[string]time.Time{
		"in 1970":            clock.New(func() time.Time { return time.Unix(0, 0) }).Now(),
		"a day behind":       right.AddDate(0, 0, -1),
		"a day ahead":        right.AddDate(0, 0, 1),
		"twelve years ahead": right.AddDate(12, 0, 0),
	} {
		at, log := wrong, &apitest.Log{}
		open := func(dir string) *Folder {
			f, err := OpenCertFolder(Config{Dir: dir, Hosts: func() []string { return []string{"localhost"} }, Now: func() time.Time { return at }, Log: zerolog.New(log)})
			if err != nil {
				t.Fatalf("made %s: %v", name, err)
			}
			return f
		}
		dir := t.TempDir()
		first := open(dir)
		good := func(what string, f *Folder, trusted *KeyPair, leaf *x509.Certificate, now time.Time) {
			roots := x509.NewCertPool()
			roots.AddCert(trusted.Cert)
			if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil {
				t.Errorf("made %s: %s: %v", name, what, err)
			}
		}
		admin, err := first.IssueAdmin()
		if err != nil {
			t.Fatal(err)
		}
		good("the administrator's certificate, then", first, first.Authority, admin.Cert, wrong)

		at = right
		if err := first.Renew(); err != nil { // the clock is set while the server runs
			t.Fatal(err)
		}
		if first.Authority.Cert.NotAfter.After(right) {
			good("the server's certificate, once the clock was set", first, first.Authority, first.Serving.Load().Leaf, right)
		}
		again := open(dir)
		good("the server's certificate after a restart", again, again.Authority, again.Serving.Load().Leaf, right)
		if !bytes.Equal(first.Authority.KeyPEM, again.Authority.KeyPEM) {
			t.Errorf("made %s: the authority has another key", name)
		}
		if until := admin.Cert.NotAfter; until.After(right) {
			good("the administrator's certificate after a restart", again, again.Authority, admin.Cert, right)
		}
		at = wrong
		back := open(dir)
		if !bytes.Equal(back.Serving.Load().Certificate[0], again.Serving.Load().Certificate[0]) && wrong.Before(right) {
			t.Errorf("made %s: a clock that is behind again made another certificate: %s", name, log.String())
		}
	}
}

// TestExpiredAuthorityGoesOnOnItsKey: a start makes its certificate anew, and what it has signed stays good for whoever gets that.
func TestExpiredAuthorityGoesOnOnItsKey(t *testing.T) {
	dir := t.TempDir()
	f, _, err := openTestCerts(t, dir)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := *f.Authority.Cert
	tmpl.NotBefore, tmpl.NotAfter, tmpl.SerialNumber = time.Unix(0, 0), time.Unix(0, 0).AddDate(10, 0, 0), nil
	expired, err := sign(&tmpl, f.Authority.key, nil)
	if err != nil {
		t.Fatal(err)
	}
	admin, err := f.IssueAdmin()
	if err != nil || f.save("ca", expired) != nil {
		t.Fatal(err)
	}
	f, log, err := openTestCerts(t, dir)
	if err != nil || !strings.Contains(log, "give ca.crt to clients") {
		t.Fatalf("%v, logged %s", err, log)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(apitest.ReadFile(t, f.file("ca.crt")))
	for what, cert := range map[string]*x509.Certificate{"serving": f.Serving.Load().Leaf, "of before": admin.Cert} {
		if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, log, err := openTestCerts(t, dir); err != nil || log != "" {
		t.Errorf("opened once more: %v, logged %s", err, log)
	}
}

// TestCertFolderSurvivesAPowerCut after each of its steps: what a start finds is complete or made anew, and never another authority than
// the one that was there.
func TestCertFolderSurvivesAPowerCut(t *testing.T) {
	whole, _, err := openTestCerts(t, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	order := []string{"ca.key", "ca.crt", "apiserver.key", "apiserver.crt"} // as they are written
	for done := range len(order) + 1 {
		dir := t.TempDir()
		for _, name := range order[:done] {
			apitest.WriteFile(t, filepath.Join(dir, name), apitest.ReadFile(t, whole.file(name)))
		}
		apitest.WriteFile(t, filepath.Join(dir, ".apilet-123.tmp"), []byte("half"))
		f, _, err := openTestCerts(t, dir)
		if err != nil {
			t.Errorf("after %d files: %v", done, err)
			continue
		}
		if kept := bytes.Equal(f.Authority.CertPEM, whole.Authority.CertPEM); kept != (done >= 2) {
			t.Errorf("after %d files the authority was kept: %v", done, kept)
		}
		roots := x509.NewCertPool()
		roots.AddCert(f.Authority.Cert)
		if _, err := f.Serving.Load().Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: "localhost"}); err != nil {
			t.Errorf("after %d files: %v", done, err)
		}
	}
}

// TestFollowedFileIsReadOncePerChange: the same pointer as long as nothing changes. A change counts as soon as it is time to look again.
func TestFollowedFileIsReadOncePerChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := apitest.TempFile(t, "f", "1")
		reads := 0
		f, err := NewDynamic(zerolog.Nop(), func(contents [][]byte) (*string, error) {
			reads++
			text := string(contents[0])
			return &text, nil
		}, path)
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if a, b := f.Current(), f.Current(); a != b || *a != "1" || reads != 1 {
				t.Errorf("%q, %q after %d reads", *a, *b, reads)
			}
			time.Sleep(CheckInterval)
		}
		f.Current()
		apitest.WriteFile(t, path, []byte("22"))
		time.Sleep(CheckInterval - time.Nanosecond)
		if got := *f.Current(); got != "1" || reads != 1 {
			t.Errorf("looked too soon: %q after %d reads", got, reads)
		}
		time.Sleep(time.Nanosecond)
		if got := *f.Current(); got != "22" || reads != 2 {
			t.Errorf("%q after %d reads", got, reads)
		}
		if _, err := NewDynamic(zerolog.Nop(), func([][]byte) (*string, error) { return nil, fs.ErrInvalid }, path); err == nil {
			t.Error("the first reading's error was dropped")
		}
	})
}
