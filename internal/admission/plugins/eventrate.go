package plugins

// This file implements EventRateLimit, which limits the rate of Events per server, per namespace,
// per user, or per source and object. The limits are configured:
//
//	apiVersion: eventratelimit.admission.k8s.io/v1alpha1
//	kind: Configuration
//	limits:
//	- {type: Server, qps: 50, burst: 200}
//	- {type: Namespace, qps: 10, burst: 50, cacheSize: 1000}
//	- {type: User, ...}, {type: SourceAndObject, ...}
//
// Each limit has a token bucket for each key. A bucket initially has burst tokens and gains qps
// tokens per second. Writing an Event takes a token from a bucket of each limit. A limit keeps the
// cacheSize (default 4,096) most recently used buckets. The rules and messages match
// kube-apiserver's plugin/pkg/admission/eventratelimit. Events in the group events.k8s.io are not
// limited there either. A dry run takes no tokens.

import (
	"cmp"
	"container/list"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"apilet/internal/admission"
)

const defaultBuckets = 4096

// limitTypes lists the types of limits in the order of kube-apiserver.
var limitTypes = []string{"Namespace", "Server", "SourceAndObject", "User"}

// eventLimit is one limit of the configuration.
type eventLimit struct {
	Type      string `json:"type"`
	QPS       int32  `json:"qps"`
	Burst     int32  `json:"burst"`
	CacheSize int32  `json:"cacheSize"`
}

// readEventLimits parses the configuration of the plug-in.
func readEventLimits(text []byte) ([]eventLimit, error) {
	var file struct {
		metav1.TypeMeta `json:",inline"`
		Limits          []eventLimit `json:"limits"`
	}
	if err := yaml.UnmarshalStrict(text, &file); err != nil {
		return nil, err
	}
	if want := "eventratelimit.admission.k8s.io/v1alpha1"; file.Kind != "Configuration" || file.APIVersion != want {
		return nil, fmt.Errorf("%s of %s is no Configuration of %s", file.Kind, file.APIVersion, want)
	}
	return file.Limits, validateEventLimits(file.Limits)
}

// validateEventLimits returns an error if the limits are invalid or missing. There is no default
// limit.
func validateEventLimits(limits []eventLimit) error {
	var errs field.ErrorList
	at := field.NewPath("limits")
	if len(limits) == 0 {
		errs = append(errs, field.Invalid(at, nil, "must not be empty"))
	}
	for i, limit := range limits {
		known := false
		for _, name := range limitTypes {
			known = known || limit.Type == name
		}
		if !known {
			errs = append(errs, field.NotSupported(at.Index(i).Child("type"), limit.Type, limitTypes))
		}
		if limit.Burst <= 0 {
			errs = append(errs, field.Invalid(at.Index(i).Child("burst"), limit.Burst, "must be positive"))
		}
		if limit.QPS <= 0 {
			errs = append(errs, field.Invalid(at.Index(i).Child("qps"), limit.QPS, "must be positive"))
		}
		if limit.CacheSize < 0 && limit.Type != "Server" {
			errs = append(errs, field.Invalid(at.Index(i).Child("cacheSize"), limit.CacheSize, "must not be negative"))
		}
	}
	return errs.ToAggregate()
}

// eventLimiter checks writes of Events against all limits.
type eventLimiter []*eventBuckets

func newEventLimiter(limits []eventLimit, clock func() time.Time) eventLimiter {
	if clock == nil {
		clock = time.Now
	}
	var all eventLimiter
	for _, limit := range limits {
		all = append(all, &eventBuckets{eventLimit: limit, clock: clock, known: map[[sha256.Size]byte]*list.Element{}, recent: list.New()})
	}
	return all
}

func (l eventLimiter) validate(_ context.Context, a *admission.Attributes) error {
	if a.DryRun {
		return nil
	}
	var errs []error
	for _, limit := range l { // without early return, so that each limit counts the write
		if key := limit.key(a); !limit.take(key) {
			errs = append(errs, fmt.Errorf("limit reached on type %v for key %v", limit.Type, key))
		}
	}
	if err := utilerrors.NewAggregate(errs); err != nil {
		return apierrors.NewTooManyRequestsError(err.Error())
	}
	return nil
}

// eventBuckets contains the buckets of one limit.
type eventBuckets struct {
	eventLimit
	clock func() time.Time

	mu     sync.Mutex // guards the following fields
	known  map[[sha256.Size]byte]*list.Element
	recent *list.List // of *eventBucket; the most recently used is first
}

type eventBucket struct {
	key    [sha256.Size]byte // hash, because a key may be as long as an Event
	tokens float64
	since  time.Time
}

// key returns the key of the bucket for a write.
func (b *eventBuckets) key(a *admission.Attributes) string {
	switch b.Type {
	case "Namespace":
		return a.Namespace()
	case "User":
		if a.Request != nil {
			return a.Request.User.Name
		}
	case "SourceAndObject":
		if event, ok := a.Object.(*corev1.Event); ok {
			about := &event.InvolvedObject
			return strings.Join([]string{event.Source.Component, event.Source.Host, about.Kind, about.Namespace, about.Name, string(about.UID), about.APIVersion}, "")
		}
	}
	return ""
}

// take takes a token from the bucket for the key and reports whether there was one.
func (b *eventBuckets) take(key string) bool {
	sum := sha256.Sum256([]byte(key))
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.clock()
	bucket := b.bucketLocked(sum, now)
	bucket.tokens = min(float64(b.Burst), bucket.tokens+max(0, now.Sub(bucket.since).Seconds())*float64(b.QPS))
	bucket.since = now
	if bucket.tokens < 1 {
		return false
	}
	bucket.tokens--
	return true
}

// bucketLocked returns the bucket for the key. If it has to create one, it may evict the least
// recently used bucket.
func (b *eventBuckets) bucketLocked(key [sha256.Size]byte, now time.Time) *eventBucket {
	if found := b.known[key]; found != nil {
		b.recent.MoveToFront(found)
		return found.Value.(*eventBucket)
	}
	bucket := &eventBucket{key: key, tokens: float64(b.Burst), since: now}
	b.known[key] = b.recent.PushFront(bucket)
	if last := b.recent.Back(); b.recent.Len() > cmp.Or(int(b.CacheSize), defaultBuckets) {
		delete(b.known, b.recent.Remove(last).(*eventBucket).key)
	}
	return bucket
}

// ---- AlwaysDeny ----

// denyAll implements AlwaysDeny, which is meant for tests. Writes by the server itself are
// allowed, because the server cannot start without its initial namespaces.
func denyAll(_ context.Context, a *admission.Attributes) error {
	if a.Request == nil {
		return nil
	}
	return a.Forbidden(errors.New("admission control is denying all modifications"))
}
