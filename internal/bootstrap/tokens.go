package bootstrap

// This file adds tokens to Secrets of type kubernetes.io/service-account-token, like the token
// controller of kube-controller-manager: some milliseconds after the Secret was written, with a
// write of its own. The token is not included in the response to a create or a dry run. A user with
// permission to create Secrets but not to read them does not see it. A token that was removed from
// a Secret is replaced.
//
// A filler reads the log of Secrets. If the service account of a Secret does not exist, the Secret
// waits for it, whereas the controller would delete the Secret. For these Secrets, the filler also
// reads the log of service accounts. If a write fails, it is retried after a second, then after two
// seconds, and so on up to a minute.

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

// A TokenReconciler adds tokens to Secrets.
type TokenReconciler struct {
	st       *store.Store
	wr       *registry.Writer
	log      zerolog.Logger
	secrets  *scheme.Resource
	accounts *scheme.Resource
}

// NewTokenReconciler returns a reconciler. The caller must call Run.
func NewTokenReconciler(st *store.Store, reg *scheme.Registry, wr *registry.Writer, log zerolog.Logger) *TokenReconciler {
	return &TokenReconciler{st: st, wr: wr, log: log, secrets: reg.Lookup("", "v1", "secrets"), accounts: reg.Lookup("", "v1", "serviceaccounts")}
}

// Run processes all Secrets. It then processes changed Secrets until ctx is done. It calls report
// with the result of each round.
func (s *TokenReconciler) Run(ctx context.Context, report func(error)) error {
	f := &filler{TokenReconciler: s, lacking: map[string]struct{}{}, waiting: map[string]map[string]struct{}{}}
	pause := firstRetry
	for log := s.st.Follow(secretRange, accountRange); ctx.Err() == nil; {
		if err := log.CatchUp(ctx, f.forget, f.applyEvent); err != nil {
			return err
		}
		var again time.Time
		failed := f.processAll(ctx)
		if report(failed); failed != nil {
			again, pause = time.Now().Add(pause), min(2*pause, maxRetry)
		} else {
			pause = firstRetry
		}
		log.Wait(ctx, again, nil)
	}
	return nil
}

// A filler holds the state of Run. Only its goroutine uses it.
type filler struct {
	*TokenReconciler
	lacking map[string]struct{} // keys of Secrets to process

	mu      sync.Mutex                     // guards the fields below while Secrets are processed concurrently
	waiting map[string]map[string]struct{} // keys of waiting Secrets, by the key of the missing service account
}

// tokenMark occurs in the JSON of each Secret that a filler must process.
var tokenMark = []byte(corev1.SecretTypeServiceAccountToken)

func (f *filler) forget() {
	clear(f.lacking)
	clear(f.waiting)
}

// applyEvent processes an event. It notes changed Secrets, and the Secrets that wait for a new
// service account.
func (f *filler) applyEvent(ev *store.Event) {
	if strings.HasPrefix(ev.Key, accountRange) {
		f.seeAccount(ev)
		return
	}
	if bytes.Contains(ev.Prev, tokenMark) || ev.Deleted {
		f.stopWaiting(ev)
	}
	if !ev.Deleted && bytes.Contains(ev.JSON, tokenMark) {
		f.lacking[ev.Key] = struct{}{}
	}
}

// stopWaiting removes a Secret from waiting. Secrets are not processed at the same time, so it does
// not lock mu.
func (f *filler) stopWaiting(ev *store.Event) {
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

// accountKey returns the key of the service account of a stored Secret, or "" if the Secret has
// another type.
func (f *filler) accountKey(key string, secret []byte) string {
	name, ok := serviceaccount.AccountOf(secret)
	if !ok {
		return ""
	}
	namespace, _ := scheme.NamespacedName(key)
	return f.accounts.Key(namespace, name)
}

// processAll processes Secrets concurrently, so that their commits share an fsync. If that fails,
// the key is kept for the next attempt.
func (f *filler) processAll(ctx context.Context) error {
	keys := slices.Collect(maps.Keys(f.lacking))
	f.lacking = map[string]struct{}{} // a map never shrinks
	var failed []error
	_ = registry.Parallel(keys, gc.CollectorWorkers, func(key string) error {
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

// fill adds the token to one Secret. It returns nil if the Secret may not be changed, because it is
// immutable or too large. The next write of the Secret leads to another attempt.
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
	if apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsRequestEntityTooLargeError(err) || registry.IsPermanent(err) {
		f.log.Debug().Err(err).Str("namespace", namespace).Str("secret", name).Msg("a Secret receives no token")
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
