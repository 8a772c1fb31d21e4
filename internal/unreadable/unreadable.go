package unreadable

// This file remembers which stored objects cannot be decoded. One of them must not take the others with it:
//
//	roles, flow schemas, webhooks, definitions   are put in force without it; a role that cannot be read grants nothing
//	LIST, WATCH                                  leave it out
//	GET                                          500, and the message names it
//	PUT, PATCH                                   the same; but what only managedFields are wrong with, the write puts right
//	DELETE, of one or of a collection            goes on without managedFields if it can be read so; else the object is removed, whatever
//	                                             its finalizers say: nobody could take them away. Preconditions hold, and what a
//	                                             namespace or a definition holds goes first
//	a namespace that empties                     removes it
//	/readyz, a metric, the log                   say so; the check's name is "unreadable" and it tells a number, no names
//	apilet check                                 names it
//
// What cannot be decrypted is another matter: its key may come back, so that the store's error stands for it, in lists too, and nothing removes it. It is
// remembered here as long as it is so, for the same check and the log.
//
// A survey of the live objects, once after the start, finds those that nobody has asked for.

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
	unreadableMax = 10_000 // are remembered; nothing is wrong with a server that knows no more but the number
	sealedMax     = 1000   // likewise of those that cannot be decrypted,
	sealedTried   = 10     // of which so many are tried again when somebody asks how many they are
)

// Unreadables are the live objects that cannot be decoded. A nil one knows none.
type Unreadables struct {
	st  *store.Store
	log zerolog.Logger

	some atomic.Bool // known is not empty: so that those who list need no lock

	mu     sync.Mutex       // guards what follows
	known  map[string]int64 // key to revision
	sealed map[string]bool  // keys of those that could not be decrypted when that was last tried
}

// NewUnreadables knows no objects yet; log hears of those that come.
func NewUnreadables(st *store.Store, log zerolog.Logger) *Unreadables {
	return &Unreadables{st: st, log: log, known: map[string]int64{}, sealed: map[string]bool{}}
}

// NoteSealed remembers an object that cannot be decrypted; the log hears of each once, until it can. Nothing leaves it out for that, and nothing
// removes it: its key may come back.
func (u *Unreadables) NoteSealed(key string, cause error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.sealed[key] || len(u.sealed) >= sealedMax {
		return
	}
	u.sealed[strings.Clone(key)] = true
	u.log.Error().Err(cause).Str("key", key).Msg("a stored object cannot be decrypted")
}

// Sealed counts those that still cannot be decrypted. A few of them stand for all.
func (u *Unreadables) Sealed() int {
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

// Note remembers an object; the log hears of each version once.
func (u *Unreadables) Note(rec *store.Record, cause error) {
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
	u.log.Error().Err(cause).Str("key", rec.Key).Int64("revision", rec.Rev).Msg("a stored object cannot be read and is left out; DELETE removes it")
}

// Has says that a version of an object is known to be unreadable.
func (u *Unreadables) Has(rec *store.Record) bool {
	if u == nil || !u.some.Load() {
		return false
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.known[rec.Key] == rec.Rev && rec.Rev != 0
}

// Count forgets those that were deleted or written anew, and counts the rest.
func (u *Unreadables) Count() int {
	u.mu.Lock()
	known := make(map[string]int64, len(u.known))
	for key, rev := range u.known {
		known[key] = rev
	}
	u.mu.Unlock()
	for key, rev := range known {
		rec, err := u.st.Get(key)
		if errors.Is(err, store.ErrNotFound) || err == nil && rec.Rev != rev {
			u.forget(key, rev)
			delete(known, key)
		}
	}
	return len(known)
}

func (u *Unreadables) forget(key string, rev int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.known[key] == rev {
		delete(u.known, key)
	}
	u.some.Store(len(u.known) > 0)
}

// Check is the health check. Its text may be seen by anybody: no names.
func (u *Unreadables) Check() error {
	if n := u.Sealed(); n > 0 {
		return fmt.Errorf("%d stored objects or more cannot be decrypted; the server's log names them, --encryption-provider-config has to have their keys", n)
	}
	if n := u.Count(); n > 0 {
		return fmt.Errorf("%d stored objects cannot be read; the server's log and apilet check name them, DELETE removes them", n)
	}
	return nil
}

// Survey looks at every live object, half of the time at rest.
func (u *Unreadables) Survey(ctx context.Context, decodes DecodeCheck) error {
	begin := time.Now()
	for c, err := range u.st.Chunks(store.Span{Prefix: "/", Sound: true}) {
		if err = cmp.Or(err, ctx.Err()); err != nil {
			return err
		}
		for i := range c.Records {
			if err := decodes(c.Records[i].Key, c.Records[i].JSON); err != nil {
				u.Note(&c.Records[i], err)
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

// A DecodeCheck says why a stored object cannot be decoded; nil: it can.
type DecodeCheck func(key string, json []byte) error

// NewDecodeCheck decodes objects by their types, and as custom resources where no type is known.
func NewDecodeCheck(reg *scheme.Registry) DecodeCheck {
	rows := map[string]*scheme.Resource{}
	for _, res := range reg.All() {
		if !res.Virtual && (rows[res.Base] == nil || res.StoresAsIs()) {
			rows[res.Base] = res
		}
	}
	return func(key string, json []byte) error {
		base, _, _, _ := scheme.SplitKey(key)
		if res := rows[base]; res != nil {
			return res.Readable(json)
		}
		return (&scheme.Resource{}).Readable(json)
	}
}

// An unreadableError is the 500 that names the object.
type unreadableError struct {
	*apierrors.StatusError
	cause error
}

func (e *unreadableError) Is(target error) bool { return target == scheme.ErrUnreadable }

func (e *unreadableError) As(target any) bool { return errors.As(e.StatusError, target) }

func (e *unreadableError) Unwrap() error { return e.cause }

// NamedUnreadable words an error of DecodeStored for the client.
func NamedUnreadable(err error, res *scheme.Resource, name string) error {
	gr := res.GroupResource()
	return &unreadableError{apierrors.NewInternalError(fmt.Errorf("%s %q is stored and cannot be read (%w); DELETE removes it", gr.String(), name, err)), err}
}

// ---- What is in what cannot be read

// Contents are where the objects lie that go with another one: those in a namespace, and those of a definition.
type Contents struct {
	Prefixes []string // of keys
	Served   bool     // somebody empties it, once it is marked as deleting
}

// ContentOf returns the content of an object that cannot be read: the objects in a Namespace, or those of a definition. A definition may have
// the name of a built-in type, but is never in effect then. The objects of that type are not its content.
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

// isBuiltin reports whether the keys below base are those of a type that no definition defines, whether it is served or not.
func isBuiltin(reg *scheme.Registry, base string) bool {
	return slices.ContainsFunc(slices.Concat(scheme.Builtins, scheme.Optional, reg.All()), func(res *scheme.Resource) bool {
		return res.Custom == nil && res.Base == base
	})
}

// Any says that some of it is there.
func (c *Contents) Any(st *store.Store) bool {
	return slices.ContainsFunc(c.Prefixes, func(prefix string) bool {
		objects, _, _ := st.Count(prefix)
		return objects > 0
	})
}

// MarkedRaw is the change that marks an object as deleting without decoding it. Its metadata comes first (Resource.EncodeStored); ok is false
// where they do not, of a document that is none.
func MarkedRaw(rec *store.Record, now time.Time) (_ store.Change, ok bool) {
	const head = `{"metadata":{`
	at := gjson.GetBytes(rec.JSON, "metadata").Get("resourceVersion") // in the first metadata object, if the document has several
	if !bytes.HasPrefix(rec.JSON, []byte(head)) || at.Type != gjson.String || at.Index < len(head) {
		return store.Change{}, false
	}
	mark := fmt.Sprintf(`%s"deletionTimestamp":%q,`, head, now.UTC().Format(time.RFC3339))
	json := append([]byte(mark), rec.JSON[len(head):at.Index+1]...)
	revAt := len(json)
	json = append(json, rec.JSON[at.Index+len(at.Raw)-1:]...)
	return store.Change{Op: store.OpUpdate, Key: rec.Key, Expect: rec.Rev, JSON: json, RevAt: revAt, Deleting: true}, true
}
