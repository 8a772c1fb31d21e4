package bootstrap

// This file creates the default objects of a namespace, on which pods, charts and tests rely. In
// Kubernetes, they are created by two controllers of kube-controller-manager, some milliseconds
// after the namespace. Here they exist when the create request of the namespace is answered.
//
//	ServiceAccount default              used by pods that name no other, and by `kubectl create token default`
//	ConfigMap      kube-root-ca.crt     the certificate of this server's authority, if it has its own authority
//
// If one is deleted, it will be created again. If the data of the ConfigMap is changed, it is
// corrected. This does not apply to a namespace that is being deleted. After the start, the server
// adds them to namespaces without them, for example in an older or restored file. The request that
// creates a namespace and the loop that reads the log may process the same namespace at the same
// time. Therefore only missing objects are created. If a write is rejected (exceeded quota,
// immutable ConfigMap) or an object cannot be read, it is retried after a second, then after two
// seconds, and so on up to a minute. Other namespaces do not wait for it.
//
// With --tls-cert-file there is no ConfigMap, because the file does not contain the authority.

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

	defaultAccount = "default"
	rootCAMap      = "kube-root-ca.crt"
	rootCAKey      = "ca.crt"
	// reconcileTimeout applies to a request that creates a namespace. The loop in Run has no
	// timeout.
	reconcileTimeout = 10 * time.Second

	// firstRetry is the time until the first retry. It is doubled for each retry, up to
	// maxRetry.
	firstRetry = time.Second
	maxRetry   = time.Minute

	rootCADescription = "The authority that vouches for this API server, for clients that reach it as kubernetes.default.svc."
)

// A NamespaceReconciler creates the default objects of namespaces.
type NamespaceReconciler struct {
	st     *store.Store
	wr     *registry.Writer
	rootCA []byte // PEM, or nil
	log    zerolog.Logger

	accounts, configMaps *scheme.Resource
	postponed            chan struct{} // receives a value when a namespace is added to refused

	mu      sync.Mutex           // guards refused
	refused map[string]retryTime // namespaces in which an object could not be created
}

// A refusal is the time of the next retry for a namespace.
type retryTime struct {
	pause time.Duration
	due   time.Time
}

// NewNamespaceReconciler returns a reconciler. rootCA is the PEM certificate for kube-root-ca.crt.
// If it is nil, that ConfigMap is not created.
func NewNamespaceReconciler(st *store.Store, reg *scheme.Registry, wr *registry.Writer, rootCA []byte, log zerolog.Logger) *NamespaceReconciler {
	return &NamespaceReconciler{st: st, wr: wr, rootCA: rootCA, log: log,
		accounts: reg.Lookup("", "v1", "serviceaccounts"), configMaps: reg.Lookup("", "v1", "configmaps"),
		postponed: make(chan struct{}, 1), refused: map[string]retryTime{}} // one buffered value is enough
}

// NamespaceCreated reconciles a new namespace. It logs errors, because the namespace has already
// been stored.
func (s *NamespaceReconciler) NamespaceCreated(namespace string) {
	ctx, cancel := context.WithTimeout(context.Background(), reconcileTimeout) // webhooks are not called, because there is no request
	defer cancel()
	if err := s.reconcile(ctx, namespace); err != nil {
		s.log.Error().Err(err).Str("namespace", namespace).Msg("cannot create the default objects of a namespace")
	}
}

// ReconcileAll reconciles namespaces concurrently, so that their commits share an fsync.
func (s *NamespaceReconciler) ReconcileAll(ctx context.Context, namespaces []string) error {
	return registry.Parallel(namespaces, gc.CollectorWorkers, func(namespace string) error { return s.reconcile(ctx, namespace) })
}

// reconcile creates the missing objects of a namespace. It does nothing if the namespace does not
// exist or is being deleted.
func (s *NamespaceReconciler) reconcile(ctx context.Context, namespace string) error {
	if rec, err := s.st.Get(registry.NamespaceKey(namespace)); errors.Is(err, store.ErrNotFound) || rec.Deleting {
		s.forget(namespace)
		return nil
	}
	missing := []func() error{func() error { return s.addAccount(ctx, namespace) }, func() error { return s.publishRootCA(ctx, namespace) }}
	err := registry.Parallel(missing, len(missing), func(add func() error) error { return add() })
	switch {
	case apierrors.IsNotFound(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause): // it was deleted meanwhile
		s.forget(namespace)
		return nil
	case apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || registry.IsPermanent(err): // the other namespaces must continue
		s.postpone(namespace, err)
		return nil
	case err == nil:
		s.forget(namespace)
	}
	return err
}

// postpone schedules a retry for a namespace.
func (s *NamespaceReconciler) postpone(namespace string, err error) {
	s.mu.Lock()
	pause := min(max(2*s.refused[namespace].pause, firstRetry), maxRetry)
	s.refused[namespace] = retryTime{pause, time.Now().Add(pause)}
	s.mu.Unlock()
	if pause == firstRetry && !errors.Is(err, store.ErrDamaged) { // damage has already been logged
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

// due returns the namespaces to retry now, and the time of the next retry. The time is zero if
// there is no retry.
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

// isPublished reports whether the data of a stored ConfigMap consists of the certificate.
func (s *NamespaceReconciler) isPublished(configMap []byte) bool {
	data := gjson.GetBytes(configMap, "data").Map()
	return len(data) == 1 && data[rootCAKey].Str == string(s.rootCA)
}

// ---- The loop

// Run reconciles all namespaces, and later the ones whose default objects are deleted or changed.
func (s *NamespaceReconciler) Run(ctx context.Context) error {
	for log := s.st.Follow(accountRange, configMapRange); ctx.Err() == nil; {
		lacking, err := s.incomplete(ctx, log)
		again, next := s.due()
		if err = errors.Join(err, s.ReconcileAll(ctx, lacking), s.ReconcileAll(ctx, again)); err != nil {
			return err
		}
		if len(again) == 0 { // otherwise the retries were rejected again and have a new time
			log.Wait(ctx, next, s.postponed)
		}
	}
	return nil
}

// incomplete returns the namespaces whose default objects were deleted or changed according to the
// log. It returns all namespaces on the first call, and when the log no longer contains all changes
// since the last call.
func (s *NamespaceReconciler) incomplete(ctx context.Context, log *store.Follower) ([]string, error) {
	var unread error
	lacking := map[string]bool{}
	err := log.CatchUp(ctx, func() {
		log.From(s.st.Revision())
		for rec, err := range s.st.All(store.Span{Prefix: gc.NamespacePrefix, SkipDamaged: true}) {
			if err != nil {
				unread = err
				return
			}
			_, name := scheme.NamespacedName(rec.Key)
			lacking[strings.Clone(name)] = true // the clone does not keep the chunk's keys in memory
		}
	}, func(ev *store.Event) {
		if namespace, name := scheme.NamespacedName(ev.Key); s.concerns(name, ev) {
			lacking[namespace] = true
		}
	})
	return slices.Collect(maps.Keys(lacking)), cmp.Or(err, unread)
}

// concerns reports whether an object must be created or corrected after the event.
func (s *NamespaceReconciler) concerns(name string, ev *store.Event) bool {
	switch {
	case strings.HasPrefix(ev.Key, accountRange):
		return name == defaultAccount && ev.Deleted
	case name != rootCAMap || s.rootCA == nil:
		return false
	}
	return ev.Deleted || !s.isPublished(ev.JSON)
}
