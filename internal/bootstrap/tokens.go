package bootstrap

// This file: Secrets of type kubernetes.io/service-account-token get the token that they are made for, as by the token controller of
// kube-controller-manager: some milliseconds after they were written, by a write of the server's own. So neither the answer of a create nor a
// dry run shows a token: who may create Secrets and read none learns nothing. A Secret whose token somebody takes out gets another.
//
// A filler is a reader of the log of Secrets. One whose account is not there waits for it (the controller would delete it): of those the
// filler keeps a note, and looks at the log of accounts, too. What fails is tried again after a second, then two, up to a minute.

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"apilet/internal/auth/serviceaccount"
	"apilet/internal/gc"
	"apilet/internal/registry"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

const secretRange = "//secrets/"

// A TokenReconciler fills in the Secrets that hold tokens.
type TokenReconciler struct {
	st       *store.Store
	wr       *registry.Writer
	log      zerolog.Logger
	secrets  *scheme.Resource
	accounts *scheme.Resource
}

// NewTokenReconciler does nothing yet.
func NewTokenReconciler(st *store.Store, reg *scheme.Registry, wr *registry.Writer, log zerolog.Logger) *TokenReconciler {
	return &TokenReconciler{st: st, wr: wr, log: log, secrets: reg.Lookup("", "v1", "secrets"), accounts: reg.Lookup("", "v1", "serviceaccounts")}
}

// Run fills in what there is, then what is written, until ctx ends. report is told what came of each round.
func (s *TokenReconciler) Run(ctx context.Context, report func(error)) error {
	f := &filler{TokenReconciler: s, lacking: map[string]struct{}{}, waiting: map[string]map[string]struct{}{}}
	pause := refusedFirst
	for log := s.st.Follow(secretRange, accountRange); ctx.Err() == nil; {
		if err := log.CatchUp(ctx, f.forget, f.see); err != nil {
			return err
		}
		var again time.Time
		failed := f.work(ctx)
		if report(failed); failed != nil {
			again, pause = time.Now().Add(pause), min(2*pause, refusedLast)
		} else {
			pause = refusedFirst
		}
		log.Wait(ctx, again, nil)
	}
	return nil
}

// A filler is one run of it. One goroutine has it.
type filler struct {
	*TokenReconciler
	lacking map[string]struct{} // keys of Secrets to look at

	mu      sync.Mutex                     // guards what follows while several are looked at
	waiting map[string]map[string]struct{} // keys of Secrets whose account is not there, by the account's
}

// tokenMark is in the JSON of each Secret that concerns a filler.
var tokenMark = []byte(corev1.SecretTypeServiceAccountToken)

func (f *filler) forget() {
	clear(f.lacking)
	clear(f.waiting)
}

// see notes a Secret that was written, and has those looked at that wait for an account.
func (f *filler) see(ev *store.Event) {
	if strings.HasPrefix(ev.Key, accountRange) {
		f.seeAccount(ev)
		return
	}
	if bytes.Contains(ev.Prev, tokenMark) || ev.Deleted {
		f.unwait(ev)
	}
	if !ev.Deleted && bytes.Contains(ev.JSON, tokenMark) {
		f.lacking[ev.Key] = struct{}{}
	}
}

// unwait forgets for what a Secret waited before an event. Nobody else is at work then.
func (f *filler) unwait(ev *store.Event) {
	for _, json := range [][]byte{ev.Prev, ev.JSON} {
		account := f.accountKey(ev.Key, json)
		delete(f.waiting[account], ev.Key)
		if len(f.waiting[account]) == 0 {
			delete(f.waiting, account)
		}
	}
}

func (f *filler) seeAccount(ev *store.Event) {
	if !ev.Deleted {
		maps.Copy(f.lacking, f.waiting[ev.Key])
		delete(f.waiting, ev.Key)
	}
}

// accountKey is under what the account of a stored Secret is found; "" for a Secret of another type.
func (f *filler) accountKey(key string, secret []byte) string {
	name, ok := serviceaccount.AccountOf(secret)
	if !ok {
		return ""
	}
	namespace, _ := scheme.NamespacedName(key)
	return f.accounts.Key(namespace, name)
}

// work fills in several at once, so that their commits share an fsync. Those that fail stay for later.
func (f *filler) work(ctx context.Context) error {
	keys := slices.Collect(maps.Keys(f.lacking))
	f.lacking = map[string]struct{}{} // a map never shrinks
	var failed []error
	_ = registry.Parallel(keys, gc.CollectorSeats, func(key string) error {
		if err := f.fill(ctx, key); err != nil && ctx.Err() == nil {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.lacking[key], failed = struct{}{}, append(failed, err)
		}
		return nil
	})
	if len(failed) == 0 {
		return nil
	}
	return failed[0]
}

// fill fills in one Secret. What a rule has against that (it is immutable, or too large) is no failure: the next write of it brings it here again.
func (f *filler) fill(ctx context.Context, key string) error {
	rec, err := f.st.Get(key)
	if err != nil {
		return ignoreGone(err)
	}
	account := f.accountKey(key, rec.JSON)
	if account == "" {
		return nil
	}
	if _, err := f.st.Get(account); errors.Is(err, store.ErrNotFound) {
		f.wait(key, account)
		return nil
	}
	namespace, name := scheme.NamespacedName(key)
	_, _, err = f.wr.Modify(ctx, registry.Target{Resource: f.secrets, Namespace: namespace, Name: name}, registry.Options{Manager: gc.CollectorName},
		func(old scheme.Object, _ *store.Record) (scheme.Object, error) {
			secret := old.DeepCopyObject().(*corev1.Secret)
			return secret, f.wr.Auth.Accounts.FillSecret(secret)
		})
	if apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsRequestEntityTooLargeError(err) || registry.Hopeless(err) {
		f.log.Debug().Err(err).Str("namespace", namespace).Str("secret", name).Msg("a Secret gets no token")
		return nil
	}
	return ignoreGone(err)
}

func ignoreGone(err error) error {
	if errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrDamaged) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func (f *filler) wait(key, account string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.waiting[account] == nil {
		f.waiting[account] = map[string]struct{}{}
	}
	f.waiting[account][key] = struct{}{}
}
