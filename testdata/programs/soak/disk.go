package main

// This file causes faults of a single server, its disk or its file.

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// ofOneServer returns the faults for a server on a file.
func (s *subject) ofOneServer() []*trouble {
	return []*trouble{s.restarted("SIGTERM", syscall.SIGTERM), s.restarted("SIGKILL", syscall.SIGKILL), s.fullDisk(), s.damagedObject(),
		s.lostCertificate(), s.restored()}
}

// restarted stops the server with the given signal and starts it again. Watches on a stopping
// server receive a 429.
func (s *subject) restarted(name string, how syscall.Signal) *trouble {
	return &trouble{name: name, sees: leave{cut: true}, brief: true,
		plant: func() (string, error) { return "", s.servers[0].end(how) },
		mend:  s.servers[0].start}
}

// ---- A full disk ----

// diskMiB is the size of the file system that only the shaken server uses.
const diskMiB = 96

const tooMuch = 512 << 10 // size in bytes of an object that does not fit on the full disk

// fullDisk fills the disk with another file. The server is killed and restarted meanwhile.
func (s *subject) fullDisk() *trouble {
	filler := filepath.Join(filepath.Dir(s.data()), "filler")
	full := func(method, path string, a answer) bool {
		return (method != "GET" || path == "/debug/backup") && a.code == http.StatusInternalServerError && bytes.Contains(a.body, []byte("no space left"))
	}
	made := 0
	return &trouble{name: "full disk", sees: leave{cut: true, refuses: full, nothing: true, logs: true},
		plant: func() (string, error) {
			if !ownDisk() {
				return "", fmt.Errorf("%w: no file system of its own is to be had here", errLeftOut)
			}
			if err := fill(filler); err != nil {
				return "", err
			}
			if err := await("an object is refused for want of room", func() bool {
				body := fmt.Sprintf(`{"metadata":{"name":"too-much-%d"},"data":{"pad":"%s"}}`, made, strings.Repeat("x", tooMuch))
				_, err := s.call("POST", "/api/v1/namespaces/default/configmaps", body, jsonBody)
				if err == nil {
					made++
				}
				return errors.As(err, new(refusedError))
			}); err != nil {
				return "", err
			}
			err := errors.Join(s.servers[0].end(syscall.SIGKILL), s.servers[0].start())
			return fmt.Sprintf("%d objects of half a MiB found room; a SIGKILL meanwhile", made), err
		},
		mend: func() error {
			if err := os.Remove(filler); err != nil {
				return err
			}
			for i := range made {
				s.must("DELETE", fmt.Sprintf("/api/v1/namespaces/default/configmaps/too-much-%d", i), "", 200)
			}
			// it was rejected
			s.must("GET", fmt.Sprintf("/api/v1/namespaces/default/configmaps/too-much-%d", made), "", 404)
			made = 0
			return nil
		}}
}

// fill writes a file until the disk has no free byte.
func fill(path string) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	for piece := make([]byte, 1<<20); len(piece) > 0; {
		if _, err := file.Write(piece); errors.Is(err, syscall.ENOSPC) {
			piece = piece[:len(piece)/2]
		} else if err != nil {
			return err
		}
	}
	return nil
}

// ---- A damaged object ----

const (
	marker     = "/api/v1/namespaces/default/configmaps/marker"
	markerText = "what the marker says, which no other object does"
)

// damagedObject stops the server and flips a bit of the marker. The bit is flipped back later.
func (s *subject) damagedObject() *trouble {
	damaged := flipped(markerText)
	lies := func(method, path string, a answer) bool {
		touched := path == "/debug/backup" || strings.HasPrefix(path, marker)
		return touched && a.code == http.StatusInternalServerError && bytes.Contains(a.body, []byte("damaged"))
	}
	return &trouble{name: "damaged object", sees: leave{cut: true, refuses: lies, nothing: true, logs: true},
		plant: func() (string, error) {
			n, err := s.changeFile(markerText, damaged)
			if err != nil || n == 0 {
				return "", fmt.Errorf("the marker was found %d times: %w", n, err)
			}
			if a, err := s.call("GET", marker, "", ""); !errors.As(err, new(refusedError)) {
				s.fault("GET of the damaged object: %d %.200s %v", a.code, a.body, err)
			}
			ready, err := s.askServer(s.servers[0], "/readyz?verbose")
			if err == nil && ready.code != http.StatusInternalServerError {
				s.fault("with a damaged object /readyz is a %d", ready.code)
			}
			return fmt.Sprintf("in %d places; its GET is a 500, /readyz says %.16s", n, strings.Join(grep(ready.body, "[-]"), " ")), err
		},
		mend: func() error {
			if _, err := s.changeFile(damaged, markerText); err != nil {
				return err
			}
			if a := s.ask(marker); a.code != 200 || !bytes.Contains(a.body, []byte(markerText)) {
				s.fault("GET of the object that was damaged: %d %.300s", a.code, a.body)
			}
			return nil
		}}
}

// changeFile stops the server, replaces a text in the file, and starts the server again.
func (s *subject) changeFile(is, becomes string) (places int, err error) {
	if err := s.servers[0].end(syscall.SIGTERM); err != nil {
		return 0, err
	}
	places, err = replaceInFile(s.data(), is, becomes)
	return places, errors.Join(err, s.servers[0].start())
}

// grep returns all lines that start with the prefix.
func grep(text []byte, prefix string) (lines []string) {
	for line := range bytes.Lines(text) {
		if bytes.HasPrefix(line, []byte(prefix)) {
			lines = append(lines, string(bytes.TrimSpace(line)))
		}
	}
	return lines
}

// flipped returns the text with one changed bit in the middle.
func flipped(text string) string {
	b := []byte(text)
	b[len(b)/2] ^= 1
	return string(b)
}

// replaceInFile replaces all occurrences of a text in the file and returns the number of
// replacements. Both texts must have the same length.
func replaceInFile(path, is, becomes string) (places int, err error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	for at := 0; ; at += len(is) {
		next := bytes.Index(content[at:], []byte(is))
		if next < 0 {
			return places, file.Sync()
		}
		at += next
		if _, err := file.WriteAt([]byte(becomes), int64(at)); err != nil {
			return places, err
		}
		places++
	}
}

// ---- A certificate ----

// lostCertificate removes the server's certificate and key. A restart must create new ones, signed
// by the authority that clients trust.
func (s *subject) lostCertificate() *trouble {
	folder := filepath.Join(s.dir, "certs")
	return &trouble{name: "certificate lost", sees: leave{cut: true}, brief: true,
		plant: func() (string, error) {
			was, err := s.servers[0].certificate()
			if err != nil {
				return "", err
			}
			if err := errors.Join(os.Remove(filepath.Join(folder, "apiserver.crt")), os.Remove(filepath.Join(folder, "apiserver.key"))); err != nil {
				return "", err
			}
			if still, err := s.servers[0].certificate(); err != nil || !still.Equal(was) {
				s.fault("without its files the server shows another certificate, or %v", err)
			}
			if err := errors.Join(s.servers[0].end(syscall.SIGTERM), s.servers[0].start()); err != nil {
				return "", err
			}
			is, err := s.servers[0].certificate()
			if err != nil || is.Equal(was) {
				s.fault("a lost certificate was not made anew: %v", err)
			}
			return "another certificate, the same authority", nil
		},
		mend: func() error { return nil }}
}

// ---- A restored backup ----

// restored creates a backup, lets clients write, and then replaces the file by the backup. The
// writes in between are lost, as with any restored backup. The server must return 410 to clients
// that know of them.
func (s *subject) restored() *trouble {
	copied := filepath.Join(s.dir, "backup.db")
	at := map[*kind]map[string]entry{} // the ledger at the time of the backup
	return &trouble{name: "backup restored", sees: leave{cut: true},
		plant: func() (string, error) {
			s.ledger.gate.Lock()
			defer s.ledger.gate.Unlock()
			for _, k := range kinds {
				at[k] = s.ledger.copy(k)
			}
			a := s.must("GET", "/debug/backup", "", 200)
			return fmt.Sprintf("%.1f MiB", float64(len(a.body))/(1<<20)), os.WriteFile(copied, a.body, 0o600)
		},
		mend: func() error {
			s.ledger.gate.Lock()
			defer s.ledger.gate.Unlock()
			if err := s.servers[0].end(syscall.SIGTERM); err != nil {
				return err
			}
			s.rewound.Add(1)
			s.lineage.Add(1)
			if err := errors.Join(os.Remove(s.data()), copyFile(copied, s.data())); err != nil {
				return err
			}
			s.ledger.replace(at)
			return s.servers[0].start()
		}}
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Sync(), out.Close())
}
