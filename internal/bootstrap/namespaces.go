package bootstrap

// This file: what a namespace has from its beginning, because pods, charts and tests count on it. In a cluster two controllers of
// kube-controller-manager bring it, some milliseconds after the namespace; here it is there when the namespace's create is answered.
//
//	ServiceAccount default              in whose name pods run that name none, and `kubectl create token default` signs
//	ConfigMap      kube-root-ca.crt     the authority by which clients know this server: where it has one of its own
//
// Both come back when they are deleted, and the ConfigMap when its data is changed, for as long as the namespace is not on its way out.
// A server that finds namespaces without them (of an older file, or restored from another server) adds them after its start. So what is
// created here is what is missing, whoever asks and however often: the request that makes a namespace and the loop that reads the log
// may come to the same namespace at once, and the second finds nothing to do. What is refused (a quota without room, an immutable
// ConfigMap), or cannot be read, is tried again after a second, then two, up to a minute; others do not wait for it.
//
// With --tls-cert-file there is no ConfigMap: the file says who the server is, and not who vouches for it.

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"github.com/tidwall/gjson"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"apilet/internal/gc"
	"apilet/internal/registry"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

const (
	accountRange   = "//serviceaccounts/"
	configMapRange = "//configmaps/"

	defaultAccount   = "default"
	rootCAMap        = "kube-root-ca.crt"
	rootCAKey        = "ca.crt"
	reconcileTimeout = 10 * time.Second // of a request that makes a namespace; the loop below has the time that it needs

	refusedFirst = time.Second // until what was refused is tried again; doubled each time up to
	refusedLast  = time.Minute

	rootCADescription = "The authority that vouches for this API server, for clients that reach it as kubernetes.default.svc."
)

// A NamespaceReconciler gives namespaces their first objects.
type NamespaceReconciler struct {
	st     *store.Store
	wr     *registry.Writer
	rootCA []byte // PEM; nil without an authority of the server's own
	log    zerolog.Logger

	accounts, configMaps *scheme.Resource
	postponed            chan struct{} // a namespace has been added to refused

	mu      sync.Mutex         // guards refused
	refused map[string]refusal // by namespace: those that lack an object, which admission did not let in
}

// A refusal is when it is asked again.
type refusal struct {
	pause time.Duration
	due   time.Time
}

// NewNamespaceReconciler does nothing yet. rootCA is the authority in PEM that kube-root-ca.crt is to hold; nil: there is no such ConfigMap.
func NewNamespaceReconciler(st *store.Store, reg *scheme.Registry, wr *registry.Writer, rootCA []byte, log zerolog.Logger) *NamespaceReconciler {
	return &NamespaceReconciler{st: st, wr: wr, rootCA: rootCA, log: log,
		accounts: reg.Lookup("", "v1", "serviceaccounts"), configMaps: reg.Lookup("", "v1", "configmaps"),
		postponed: make(chan struct{}, 1), refused: map[string]refusal{}} // one waiting word stands for all
}

// NamespaceCreated reconciles a namespace that has just been made. Failing that is no reason to fail its create, which is stored.
func (s *NamespaceReconciler) NamespaceCreated(namespace string) {
	ctx, cancel := context.WithTimeout(context.Background(), reconcileTimeout) // the server's own: no webhook sees it
	defer cancel()
	if err := s.reconcile(ctx, namespace); err != nil {
		s.log.Error().Err(err).Str("namespace", namespace).Msg("cannot create the default objects of a namespace")
	}
}

// ReconcileAll reconciles several namespaces at once, so that their commits share an fsync.
func (s *NamespaceReconciler) ReconcileAll(ctx context.Context, namespaces []string) error {
	return registry.Parallel(namespaces, gc.CollectorSeats, func(namespace string) error { return s.reconcile(ctx, namespace) })
}

// reconcile makes what a namespace lacks. One that is not there, or going, lacks nothing.
func (s *NamespaceReconciler) reconcile(ctx context.Context, namespace string) error {
	if rec, err := s.st.Get(registry.NamespaceKey(namespace)); errors.Is(err, store.ErrNotFound) || rec.Deleting {
		s.forget(namespace)
		return nil
	}
	missing := []func() error{func() error { return s.addAccount(ctx, namespace) }, func() error { return s.publishRootCA(ctx, namespace) }}
	err := registry.Parallel(missing, len(missing), func(add func() error) error { return add() })
	switch {
	case apierrors.IsNotFound(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause): // it went meanwhile
		s.forget(namespace)
		return nil
	case apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || registry.Hopeless(err): // no reason to leave the other namespaces alone
		s.postpone(namespace, err)
		return nil
	case err == nil:
		s.forget(namespace)
	}
	return err
}

// postpone has a namespace looked at again later.
func (s *NamespaceReconciler) postpone(namespace string, err error) {
	s.mu.Lock()
	pause := min(max(2*s.refused[namespace].pause, refusedFirst), refusedLast)
	s.refused[namespace] = refusal{pause, time.Now().Add(pause)}
	s.mu.Unlock()
	if pause == refusedFirst && !errors.Is(err, store.ErrDamaged) { // of damage the log knows
		s.log.Warn().Err(err).Str("namespace", namespace).Msg("cannot create the default objects of a namespace; retrying silently")
	}
	select {
	case s.postponed <- struct{}{}:
	default:
	}
}

func (s *NamespaceReconciler) forget(namespace string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.refused, namespace)
}

// due are the namespaces whose time has come, and when the next one's comes; zero where there is none.
func (s *NamespaceReconciler) due() (namespaces []string, first time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for namespace, r := range s.refused {
		switch {
		case !time.Now().Before(r.due):
			namespaces = append(namespaces, namespace)
		case first.IsZero() || r.due.Before(first):
			first = r.due
		}
	}
	return namespaces, first
}

func (s *NamespaceReconciler) addAccount(ctx context.Context, namespace string) error {
	if _, err := s.st.Get(s.accounts.Key(namespace, defaultAccount)); !errors.Is(err, store.ErrNotFound) {
		return err
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: defaultAccount}}
	return s.insert(ctx, s.accounts, account)
}

func (s *NamespaceReconciler) insert(ctx context.Context, res *scheme.Resource, obj scheme.Object) error {
	_, err := s.wr.Insert(ctx, res, obj, registry.Options{Manager: gc.CollectorName})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

func (s *NamespaceReconciler) publishRootCA(ctx context.Context, namespace string) error {
	if s.rootCA == nil {
		return nil
	}
	rec, err := s.st.Get(s.configMaps.Key(namespace, rootCAMap))
	switch {
	case errors.Is(err, store.ErrNotFound):
		published := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: rootCAMap,
			Annotations: map[string]string{"kubernetes.io/description": rootCADescription}}, Data: s.rootCAData()}
		return s.insert(ctx, s.configMaps, published)
	case err != nil || s.isPublished(rec.JSON):
		return err
	}
	t := registry.Target{Resource: s.configMaps, Namespace: namespace, Name: rootCAMap}
	_, _, err = s.wr.Modify(ctx, t, registry.Options{Manager: gc.CollectorName}, func(old scheme.Object, _ *store.Record) (scheme.Object, error) {
		mended := old.DeepCopyObject().(*corev1.ConfigMap)
		mended.Data = s.rootCAData()
		return mended, nil
	})
	return err
}

func (s *NamespaceReconciler) rootCAData() map[string]string {
	return map[string]string{rootCAKey: string(s.rootCA)}
}

// isPublished says that a stored ConfigMap has the authority, and nothing else.
func (s *NamespaceReconciler) isPublished(configMap []byte) bool {
	data := gjson.GetBytes(configMap, "data").Map()
	return len(data) == 1 && data[rootCAKey].Str == string(s.rootCA)
}

// ---- The loop

// Run reconciles all namespaces, then those whose first objects somebody deletes or changes.
func (s *NamespaceReconciler) Run(ctx context.Context) error {
	for log := s.st.Follow(accountRange, configMapRange); ctx.Err() == nil; {
		lacking, err := s.lacking(ctx, log)
		again, next := s.due()
		if err = errors.Join(err, s.ReconcileAll(ctx, lacking), s.ReconcileAll(ctx, again)); err != nil {
			return err
		}
		if len(again) == 0 { // refused once more, they would be due later
			log.Wait(ctx, next, s.postponed)
		}
	}
	return nil
}

// lacking are the namespaces that the log tells something of: all of them, where it does not tell what has happened.
func (s *NamespaceReconciler) lacking(ctx context.Context, log *store.Follower) ([]string, error) {
	var unread error
	lacking := map[string]bool{}
	err := log.CatchUp(ctx, func() {
		log.From(s.st.Revision())
		for rec, err := range s.st.All(store.Span{Prefix: gc.NamespaceRange, Sound: true}) {
			if err != nil {
				unread = err
				return
			}
			_, name := scheme.NamespacedName(rec.Key)
			lacking[strings.Clone(name)] = true // not all the keys of the chunk with it
		}
	}, func(ev *store.Event) {
		if namespace, name := scheme.NamespacedName(ev.Key); s.concerns(name, ev) {
			lacking[namespace] = true
		}
	})
	return slices.Collect(maps.Keys(lacking)), cmp.Or(err, unread)
}

// concerns says that after an event something may have to be made or mended.
func (s *NamespaceReconciler) concerns(name string, ev *store.Event) bool {
	switch {
	case strings.HasPrefix(ev.Key, accountRange):
		return name == defaultAccount && ev.Deleted
	case name != rootCAMap || s.rootCA == nil:
		return false
	}
	return ev.Deleted || !s.isPublished(ev.JSON)
}
