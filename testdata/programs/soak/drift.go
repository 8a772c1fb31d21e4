package main

// This file sets the clock of a server and causes faults of the clock.
//
// The clock of a single Go program cannot be changed from outside: time namespaces only affect the
// monotonic clock, and a static binary does not call a C library that could be replaced. Therefore
// the server is built with a modified time package (go build -overlay). It is Go's package, but
// time.Now adds the offset in a file. apilet's code is unchanged, and all packages see the same
// clock. The monotonic clock is not affected, as when an administrator sets a machine's clock.

import (
	"context"
	_ "embed"
	endian "encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// shiftedSource is added to the time package. It finds the file with the offset by the environment
// variable shiftVariable.
//
//go:embed shifted.go.txt
var shiftedSource []byte

const shiftVariable = "SOAK_CLOCK"

// buildDrifting builds a server whose clock can be set.
func buildDrifting(ctx context.Context, dir, to string) error {
	root, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return err
	}
	theirs := filepath.Join(strings.TrimSpace(string(root)), "src", "time")
	source, err := os.ReadFile(filepath.Join(theirs, "time.go"))
	if err != nil {
		return err
	}
	changed, err := withShift(string(source))
	if err != nil {
		return err
	}
	ours := filepath.Join(dir, "time")
	overlay, _ := json.Marshal(map[string]any{"Replace": map[string]string{
		filepath.Join(theirs, "time.go"):         filepath.Join(ours, "time.go"),
		filepath.Join(theirs, "soak_shifted.go"): filepath.Join(ours, "shifted.go")}})
	if err := errors.Join(os.MkdirAll(ours, 0o700), os.WriteFile(filepath.Join(ours, "time.go"), []byte(changed), 0o600),
		os.WriteFile(filepath.Join(ours, "shifted.go"), shiftedSource, 0o600), os.WriteFile(filepath.Join(ours, "overlay.json"), overlay, 0o600)); err != nil {
		return err
	}
	build := exec.CommandContext(ctx, "go", "build", "-overlay", filepath.Join(ours, "overlay.json"), "-tags", "noetcd", "-o", to, "apilet")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// withShift adds the offset to the source of time.Now.
func withShift(source string) (string, error) {
	const line = "func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n"
	if strings.Count(source, line) != 1 {
		return "", errors.New("time.Now of this Go is another one than this program knows")
	}
	return strings.Replace(source, line, line+"\tsec, nsec = shifted(sec, nsec)\n", 1), nil
}

// A drift is the offset of a server's clock from the machine's, stored in an eight-byte file.
type drift struct{ path string }

// set changes the offset. Negative offsets set the clock back.
func (d *drift) set(ahead time.Duration) error {
	file, err := os.OpenFile(d.path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = file.Write(endian.NativeEndian.AppendUint64(nil, uint64(ahead)))
	return err
}

// adrift configures the server to use a clock that can be set.
func (s *subject) adrift() {
	s.drift = &drift{path: filepath.Join(s.dir, "clock")}
	s.servers[0].env = []string{shiftVariable + "=" + s.drift.path}
}

// ---- Faults ----

const (
	minutes = 7 * time.Minute
	decades = 20 * 365 * 24 * time.Hour
	hasSet  = "the machine's clock has been set"
)

// ofTheClock returns the faults for a server whose clock can be set. The server may log errors if
// the clock is behind.
func (s *subject) ofTheClock() []*trouble {
	return []*trouble{s.clockAhead(), s.clockBack(), s.clockDecadesAhead(), s.clockStartsIn1970(), s.clockBackTo1970()}
}

// setClock sets the clock of the running server and waits until the server has noticed.
func (s *subject) setClock(ahead time.Duration) error {
	since := s.servers[0].logged()
	if err := s.drift.set(ahead); err != nil {
		return err
	}
	return s.servers[0].awaitSaid(since, hasSet)
}

// setRight corrects the clock of the running server.
func (s *subject) setRight() error {
	if err := s.setClock(0); err != nil {
		return err
	}
	if behind, err := s.behind(); err != nil || behind != 0 {
		return fmt.Errorf("put right, and behind by %v: %w", behind, err)
	}
	s.created("put right", time.Now(), time.Now())
	return nil
}

// behind returns how far the clock of the server is behind, according to its metrics.
func (s *subject) behind() (time.Duration, error) {
	a, err := s.askServer(s.servers[0], "/metrics")
	return time.Duration(number(clockBehind, a.body) * float64(time.Second)), err
}

// created creates an object and checks its creation timestamp. It allows for a busy machine.
func (s *subject) created(when string, from, to time.Time) time.Time {
	const slack = time.Minute
	const path = "/api/v1/namespaces/default/configmaps"
	s.must("DELETE", path+"/clock", "", 200, 404)
	// 409: the object was created, but the connection was closed
	a := s.must("POST", path, `{"metadata":{"name":"clock"}}`, 201, 409)
	if a.code == http.StatusConflict {
		a = s.ask(path + "/clock")
	}
	var made struct {
		Metadata struct{ CreationTimestamp time.Time }
	}
	_ = json.Unmarshal(a.body, &made)
	at := made.Metadata.CreationTimestamp
	if at.Before(from.Add(-slack)) || at.After(to.Add(slack)) {
		s.fault("%s: an object was created at %v, want %v to %v", when, at, from, to)
	}
	return at
}

// issue requests a service account token that is valid for an hour.
func (s *subject) issue() string {
	var made struct{ Status struct{ Token string } }
	_ = json.Unmarshal(s.must("POST", "/api/v1/namespaces/default/serviceaccounts/default/token", `{"spec":{"expirationSeconds":3600}}`, 201).body, &made)
	return made.Status.Token
}

// holds checks whether the server accepts a token.
func (s *subject) holds(when, token string, want bool) {
	var review struct{ Status struct{ Authenticated bool } }
	_ = json.Unmarshal(s.must("POST", "/apis/authentication.k8s.io/v1/tokenreviews", fmt.Sprintf(`{"spec":{"token":%q}}`, token), 201).body, &review)
	if review.Status.Authenticated != want {
		s.fault("%s: a token is good: %t, want %t", when, !want, want)
	}
}

// certified checks the server's certificate with the correct clock and the original authority.
func (s *subject) certified(when string) {
	if _, err := s.servers[0].certificate(); err != nil {
		s.fault("%s: the certificate: %v", when, err)
	}
}

func (s *subject) clockAhead() *trouble {
	return &trouble{name: "clock 7 min ahead", sees: leave{logs: true},
		plant: func() (string, error) {
			token := s.issue()
			if err := s.setClock(minutes); err != nil {
				return "", err
			}
			s.created("7 min ahead", time.Now().Add(minutes), time.Now().Add(minutes))
			s.holds("7 min ahead", token, true)
			return "seen, tokens hold", nil
		}, mend: s.setRight}
}

func (s *subject) clockBack() *trouble {
	held := ""
	return &trouble{name: "clock 7 min back", sees: leave{logs: true},
		plant: func() (string, error) {
			token := s.issue()
			if err := s.setClock(-minutes); err != nil {
				return "", err
			}
			s.created("7 min back", time.Now().Add(-minutes), time.Now())
			// like kube-apiserver's tokens, it is not valid before it was issued
			s.holds("7 min back, issued before", token, false)
			s.holds("7 min back", s.issue(), true)
			held = token
			return "seen; a token of before is not good yet, a new one is", nil
		},
		mend: func() error {
			err := s.setRight()
			s.holds("put right, issued before", held, true)
			return err
		}}
}

// clockDecadesAhead sets the clock to a time after the expiration of all certificates. The server
// is killed and restarted at that time. The clock is corrected while the server is running.
func (s *subject) clockDecadesAhead() *trouble {
	return &trouble{name: "clock 20 years ahead", sees: leave{cut: true, logs: true},
		plant: func() (string, error) {
			token := s.issue()
			if err := s.setClock(decades); err != nil {
				return "", err
			}
			s.certified("20 years ahead")
			s.holds("20 years ahead, issued before", token, false)
			s.holds("20 years ahead", s.issue(), true)
			if err := errors.Join(s.servers[0].end(syscall.SIGKILL), s.servers[0].start()); err != nil {
				return "", err
			}
			s.certified("started 20 years ahead")
			at := s.created("started 20 years ahead", time.Now().Add(decades), time.Now().Add(decades))
			return fmt.Sprintf("objects of %d, old tokens refused, a SIGKILL there", at.Year()), nil
		}, mend: s.setRight}
}

// clockStartsIn1970 simulates a board without a battery. The server continues from the time of its
// newest write until the clock is set.
func (s *subject) clockStartsIn1970() *trouble {
	return &trouble{name: "start in 1970", sees: leave{cut: true, logs: true},
		plant: func() (string, error) {
			token := s.issue()
			before := s.created("before", time.Now(), time.Now())
			if err := errors.Join(s.servers[0].end(syscall.SIGTERM), s.drift.set(-time.Duration(time.Now().UnixNano())), s.servers[0].start()); err != nil {
				return "", err
			}
			behind, err := s.behind()
			if err != nil || behind < decades {
				s.fault("started in 1970, and behind by %v: %v", behind, err)
			}
			s.certified("1970")
			s.created("1970", before, time.Now())
			s.holds("1970, issued before", token, true)
			s.holds("1970", s.issue(), true)
			return fmt.Sprintf("not believed: it says that it is %.0f years behind", behind.Hours()/24/365), nil
		}, mend: s.setRight}
}

func (s *subject) clockBackTo1970() *trouble {
	return &trouble{name: "clock back to 1970", sees: leave{logs: true},
		plant: func() (string, error) {
			token := s.issue()
			before := s.created("before", time.Now(), time.Now())
			if err := s.setClock(-time.Duration(time.Now().UnixNano())); err != nil {
				return "", err
			}
			s.certified("back to 1970")
			s.created("back to 1970", before, time.Now())
			s.holds("back to 1970, issued before", token, true)
			return "seen, and not believed", nil
		}, mend: s.setRight}
}
