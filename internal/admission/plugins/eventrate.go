package plugins

// This file is EventRateLimit: so many Events a second, of the whole server, of a namespace, of a user, or of a source about an object. Its
// configuration says how many:
//
//	apiVersion: eventratelimit.admission.k8s.io/v1alpha1
//	kind: Configuration
//	limits:
//	- {type: Server, qps: 50, burst: 200}
//	- {type: Namespace, qps: 10, burst: 50, cacheSize: 1000}
//	- {type: User, ...}, {type: SourceAndObject, ...}
//
// Each limit has a bucket of tokens for each key, burst of them at first, to which qps are added each second; a write of an Event takes one
// out of a bucket of each limit. Of the buckets cacheSize (4,096) are remembered, those that were used last. Rules and words are those of
// kube-apiserver's plugin/pkg/admission/eventratelimit: Events of events.k8s.io are not limited there, either, and a dry run takes nothing.

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

// limitTypes are what Events may be limited by, as kube-apiserver lists them.
var limitTypes = []string{"Namespace", "Server", "SourceAndObject", "User"}

// eventLimit is one limit of the configuration.
type eventLimit struct {
	Type      string `json:"type"`
	QPS       int32  `json:"qps"`
	Burst     int32  `json:"burst"`
	CacheSize int32  `json:"cacheSize"`
}

// readEventLimits reads its configuration.
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

// validateEventLimits is also about a configuration that is missing: there is no limit that goes without saying.
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

// eventLimiter holds writes of Events against all limits.
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
	for _, limit := range l { // each of them, so that each counts
		if key := limit.key(a); !limit.take(key) {
			errs = append(errs, fmt.Errorf("limit reached on type %v for key %v", limit.Type, key))
		}
	}
	if err := utilerrors.NewAggregate(errs); err != nil {
		return apierrors.NewTooManyRequestsError(err.Error())
	}
	return nil
}

// eventBuckets are one limit's.
type eventBuckets struct {
	eventLimit
	clock func() time.Time

	mu     sync.Mutex // guards what follows
	known  map[[sha256.Size]byte]*list.Element
	recent *list.List // of *eventBucket: the one that was used last comes first
}

type eventBucket struct {
	key    [sha256.Size]byte // of what may be as long as an Event
	tokens float64
	since  time.Time
}

// key names the bucket of a write.
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

// take takes a token out of a bucket, if there is one.
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

// bucketLocked finds or makes a bucket, and forgets the one that was used longest ago where there are too many.
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

// denyAll is AlwaysDeny, for those who try what a refusal looks like. The server's own writes pass: without its first namespaces nothing
// could be refused.
func denyAll(_ context.Context, a *admission.Attributes) error {
	if a.Request == nil {
		return nil
	}
	return a.Forbidden(errors.New("admission control is denying all modifications"))
}
