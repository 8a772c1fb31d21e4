package signature

import (
	"context"
	"crypto"
	"encoding/base64"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/golang-jwt/jwt/v5"
)

// A slowMethod reports each check to the test and waits for its permission. It accepts nothing.
type slowMethod struct {
	running, most atomic.Int64
	started, end  chan struct{}
}

func (m *slowMethod) Alg() string                      { return "slow" }
func (m *slowMethod) Sign(string, any) ([]byte, error) { return nil, errors.ErrUnsupported }
func (m *slowMethod) Verify(_ string, _ []byte, key any) error {
	n := m.running.Add(1)
	for most := m.most.Load(); n > most && !m.most.CompareAndSwap(most, n); most = m.most.Load() {
	}
	m.started <- struct{}{}
	<-m.end
	m.running.Add(-1)
	return errors.New("not signed")
}

// TestChecksThatRunAtOnceAreBounded starts many requests and asserts that no more than the places run.
func TestChecksThatRunAtOnceAreBounded(t *testing.T) {
	const clients = 40
	m := &slowMethod{started: make(chan struct{}, clients), end: make(chan struct{})}
	var gate Gate
	token := &Token{method: m}
	var done sync.WaitGroup
	for range clients {
		done.Go(func() {
			if err := gate.Verify(context.Background(), token, []crypto.PublicKey{"k"}); err != ErrInvalid {
				t.Error(err)
			}
		})
	}
	for range clients {
		<-m.started
		m.end <- struct{}{}
	}
	done.Wait()
	if most := m.most.Load(); most > int64(cap(gate.slots)) || gate.Checks() != clients {
		t.Errorf("%d of %d checks ran at once, %d in total", most, cap(gate.slots), gate.Checks())
	}
}

// TestWaitingEndsWithTheRequest: a client that has left takes no place and costs no check.
func TestWaitingEndsWithTheRequest(t *testing.T) {
	m := &slowMethod{started: make(chan struct{}, 100), end: make(chan struct{})}
	var gate Gate
	_ = gate.Do(context.Background(), func() error { return nil }) // makes the places
	for range cap(gate.slots) {
		gate.slots <- struct{}{}
	}
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error)
	go func() { result <- gate.Verify(ctx, &Token{method: m}, []crypto.PublicKey{"k"}) }()
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) || gate.Checks() != 0 {
		t.Errorf("%v after %d checks", err, gate.Checks())
	}
}

// An endingContext ends when it has been asked a number of times.
type endingContext struct {
	context.Context
	left int
}

func (c *endingContext) Err() error {
	if c.left--; c.left < 0 {
		return context.DeadlineExceeded
	}
	return nil
}

func TestKeysAreTriedUntilTheRequestEnds(t *testing.T) {
	none := &jwt.SigningMethodECDSA{Name: "refuses"}
	keys := make([]crypto.PublicKey, 365)
	for left, want := range map[int]int64{0: 0, 1: 0, 4: 3, 1000: MaxKeys} {
		var gate Gate
		err := gate.Verify(&endingContext{context.Background(), left}, &Token{method: none}, keys)
		if got := gate.Checks(); got != want || err == nil {
			t.Errorf("a context that ends after %d questions: %v after %d keys, want %d", left, err, got, want)
		}
	}
}

func TestHeadersThatAreRefused(t *testing.T) {
	encode := base64.RawURLEncoding.EncodeToString
	for header, good := range map[string]bool{
		`{"alg":"RS256","kid":"a","typ":"JWT"}`:      true,
		`{"alg":"RS256","b64":true}`:                 true,
		`{"alg":"RS256","crit":["b64"],"b64":false}`: false,
		`{"alg":"RS256","crit":["exp"]}`:             false,
		`{"alg":"RS256","crit":[]}`:                  false,
		`{"alg":"RS256","crit":null}`:                false,
		`{"alg":"RS256","cr\u0069t":["x"]}`:          false,
		`{"alg":["RS256"]}`:                          false,
		`{"alg":"RS256","kid":7}`:                    false,
		`{"kid":"a"}`:                                false,
		`{"alg":"x"}`:                                false,
		`[]`:                                         false,
		`{"alg":"RS256"`:                             false,
	} {
		if _, err := Parse(encode([]byte(header)) + "." + encode([]byte("{}")) + ".YQ"); good != (err == nil) {
			t.Errorf("%s: %v", header, err)
		}
	}
	for _, token := range []string{"", "a.b", "a.b.c.d", "!.!.!", "..."} {
		if _, err := Parse(token); err == nil {
			t.Errorf("%q is taken", token)
		}
	}
}
