package corrupt

// This file tracks the stored objects that cannot be decoded. Such an object must not affect
// other objects:
//
//	roles, flow schemas, webhooks, definitions   take effect without it; an unreadable role grants nothing
//	LIST, WATCH                                  omit it
//	GET                                          returns a 500 that names it
//	PUT, PATCH                                   do the same; but if only managedFields are invalid, the write repairs them
//	DELETE, of one object or of a collection     drops managedFields if the rest can be decoded; otherwise removes the object
//	                                             regardless of its finalizers, because no client could remove them. Preconditions
//	                                             apply. The contents of a namespace or a definition are deleted first
//	deletion of its namespace                    removes it
//	/readyz, a metric, the log                   report it; the check "unreadable" shows a number, no names
//	apilet check                                 names it
//
// Encrypted objects are handled differently if the key is missing, because the key may be added
// again. Reading such an object or a list fails with the error of the store, and the object is
// not removed. They are tracked here for the same check and for the log until they can be
// decrypted.
//
// A survey of all live objects after the start finds unreadable objects that no client has
// requested.

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"github.com/tidwall/gjson"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"apilet/internal/scheme"
	"apilet/internal/store"
)

const (
	unreadableMax = 10_000 // maximum number of tracked objects
	sealedMax     = 1000   // maximum number of tracked objects that cannot be decrypted
	sealedTried   = 10     // maximum number of these that CountSealed finds before it stops retrying
)

// Objects contains the live objects that cannot be decoded. A nil Objects tracks none.
type Objects struct {
	st  *store.Store
	log zerolog.Logger

	some atomic.Bool // true if known is not empty, so that a list does not have to lock mu

	mu     sync.Mutex       // guards the fields below
	known  map[string]int64 // key to revision
	sealed map[string]bool  // keys of the objects that could not be decrypted
}

// NewObjects returns an empty Objects that logs new entries to log.
func NewObjects(st *store.Store, log zerolog.Logger) *Objects {
	return &Objects{st: st, log: log, known: map[string]int64{}, sealed: map[string]bool{}}
}

// AddSealed records that an object cannot be decrypted. The object is only logged once. The
// object is not omitted from lists and not removed, because the key may be added again.
func (u *Objects) AddSealed(key string, cause error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.sealed[key] || len(u.sealed) >= sealedMax {
		return
	}
	u.sealed[strings.Clone(key)] = true
	u.log.Error().Err(cause).Str("key", key).Msg("a stored object cannot be decrypted")
}

// CountSealed returns the number of tracked objects that still cannot be decrypted. It stops
// checking after sealedTried such objects and counts the others without checking them.
func (u *Objects) CountSealed() int {
	u.mu.Lock()
	keys := slices.Collect(maps.Keys(u.sealed))
	u.mu.Unlock()
	still := 0
	for _, key := range keys {
		if still == sealedTried {
			break
		}
		_, err := u.st.Get(key)
		if settled := err == nil || errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrDamaged); !settled {
			still++ // an error of the store does not mean that the object can be decrypted
			continue
		}
		u.mu.Lock()
		delete(u.sealed, key)
		u.mu.Unlock()
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.sealed)
}

// Add records that an object cannot be decoded. A version of the object is only logged once.
func (u *Objects) Add(rec *store.Record, cause error) {
	if u == nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.known[rec.Key] == rec.Rev || len(u.known) >= unreadableMax {
		return
	}
	u.known[strings.Clone(rec.Key)] = rec.Rev
	u.some.Store(true)
	u.log.Error().Err(cause).Str("key", rec.Key).Int64("revision", rec.Rev).Msg("a stored object cannot be read and is omitted; DELETE removes it")
}

// Has reports whether this version of an object is known to be unreadable.
func (u *Objects) Has(rec *store.Record) bool {
	if u == nil || !u.some.Load() {
		return false
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.known[rec.Key] == rec.Rev && rec.Rev != 0
}

// Count returns the number of unreadable objects, after it removes objects that were deleted or
// updated.
func (u *Objects) Count() int {
	u.mu.Lock()
	known := make(map[string]int64, len(u.known))
	for key, rev := range u.known {
		known[key] = rev
	}
	u.mu.Unlock()
	for key, rev := range known {
		rec, err := u.st.Get(key)
		if errors.Is(err, store.ErrNotFound) || err == nil && rec.Rev != rev {
			u.remove(key, rev)
			delete(known, key)
		}
	}
	return len(known)
}

func (u *Objects) remove(key string, rev int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.known[key] == rev {
		delete(u.known, key)
	}
	u.some.Store(len(u.known) > 0)
}

// Check is the health check. The error must not contain names, because it may be returned to any
// client.
func (u *Objects) Check() error {
	if n := u.CountSealed(); n > 0 {
		return fmt.Errorf("%d stored objects or more cannot be decrypted; the server's log names them, --encryption-provider-config has to have their keys", n)
	}
	if n := u.Count(); n > 0 {
		return fmt.Errorf("%d stored objects cannot be read; the server's log and apilet check name them, DELETE removes them", n)
	}
	return nil
}

// Scan checks every live object. It sleeps half of the time.
func (u *Objects) Scan(ctx context.Context, decodes DecodeCheck) error {
	begin := time.Now()
	for c, err := range u.st.Chunks(store.Span{Prefix: "/", SkipDamaged: true}) {
		if err = cmp.Or(err, ctx.Err()); err != nil {
			return err
		}
		for i := range c.Records {
			if err := decodes(c.Records[i].Key, c.Records[i].JSON); err != nil {
				u.Add(&c.Records[i], err)
			}
		}
		if c.Next == "" {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Since(begin)):
		}
		begin = time.Now()
	}
	return nil
}

// A DecodeCheck returns the reason why a stored object cannot be decoded, or nil if it can.
type DecodeCheck func(key string, json []byte) error

// NewDecodeCheck returns a check that decodes objects by their types, or as custom resources if
// the type is unknown.
func NewDecodeCheck(reg *scheme.Registry) DecodeCheck {
	rows := map[string]*scheme.Resource{}
	for _, res := range reg.All() {
		if !res.Virtual && (rows[res.Base] == nil || res.ServesStorageVersion()) {
			rows[res.Base] = res
		}
	}
	return func(key string, json []byte) error {
		base, _, _, _ := scheme.SplitKey(key)
		if res := rows[base]; res != nil {
			return res.CheckReadable(json)
		}
		return (&scheme.Resource{}).CheckReadable(json)
	}
}

// An unreadableError is the error (500) for the client.
type unreadableError struct {
	*apierrors.StatusError
	cause error
}

func (e *unreadableError) Is(target error) bool { return target == scheme.ErrUnreadable }

func (e *unreadableError) As(target any) bool { return errors.As(e.StatusError, target) }

func (e *unreadableError) Unwrap() error { return e.cause }

// StatusError returns an error of DecodeStored as a response to the client.
func StatusError(err error, res *scheme.Resource, name string) error {
	gr := res.GroupResource()
	return &unreadableError{apierrors.NewInternalError(fmt.Errorf("%s %q is stored and cannot be read (%w); DELETE removes it", gr.String(), name, err)), err}
}

// ---- Contents of unreadable objects

// Contents describes the objects that must be deleted before the object, if it is a namespace or
// a CRD.
type Contents struct {
	Prefixes []string // prefixes of their keys
	Served   bool     // another controller deletes them once the object is marked as deleting
}

// ContentOf returns the contents of an unreadable object if it is a Namespace or a CRD. If there
// is a built-in type with the name of the CRD, the CRD is not in effect and the contents are
// empty.
func ContentOf(reg *scheme.Registry, res *scheme.Resource, name string) (inside Contents) {
	switch {
	case res.Group == "" && res.Plural == "namespaces":
		inside.Served = true
		for _, other := range reg.All() {
			if other.Namespaced && !other.Virtual && !slices.Contains(inside.Prefixes, other.KeyPrefix(name)) {
				inside.Prefixes = append(inside.Prefixes, other.KeyPrefix(name))
			}
		}
	case res.Plural == "customresourcedefinitions":
		plural, group, _ := strings.Cut(name, ".")
		base := "/" + group + "/" + plural + "/"
		if isBuiltin(reg, base) {
			break
		}
		inside.Prefixes = []string{base}
		inside.Served = slices.ContainsFunc(reg.All(), func(other *scheme.Resource) bool { return other.Base == base })
	}
	return inside
}

// isBuiltin reports whether the keys below base belong to a built-in type, whether or not it is
// served.
func isBuiltin(reg *scheme.Registry, base string) bool {
	return slices.ContainsFunc(slices.Concat(scheme.Builtins, scheme.Optional, reg.All()), func(res *scheme.Resource) bool {
		return res.Custom == nil && res.Base == base
	})
}

// Any reports whether the store has any of the contents.
func (c *Contents) Any(st *store.Store) bool {
	return slices.ContainsFunc(c.Prefixes, func(prefix string) bool {
		objects, _, _ := st.Count(prefix)
		return objects > 0
	})
}

// MarkDeletingRaw returns the change that marks an object as deleting without decoding it. ok is
// false if metadata is not the first member of the document, where Resource.EncodeStored writes it.
func MarkDeletingRaw(rec *store.Record, now time.Time) (_ store.Change, ok bool) {
	const head = `{"metadata":{`
	// in the first metadata object, if the document has several
	at := gjson.GetBytes(rec.JSON, "metadata").Get("resourceVersion")
	if !bytes.HasPrefix(rec.JSON, []byte(head)) || at.Type != gjson.String || at.Index < len(head) {
		return store.Change{}, false
	}
	mark := fmt.Sprintf(`%s"deletionTimestamp":%q,`, head, now.UTC().Format(time.RFC3339))
	json := append([]byte(mark), rec.JSON[len(head):at.Index+1]...)
	revAt := len(json)
	json = append(json, rec.JSON[at.Index+len(at.Raw)-1:]...)
	return store.Change{Op: store.OpUpdate, Key: rec.Key, Expect: rec.Rev, JSON: json, RevAt: revAt, Deleting: true}, true
}
