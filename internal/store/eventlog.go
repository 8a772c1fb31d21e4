package store

// This file defines records and the event log, from which watchers read.
//
// Watchers pull. A watcher keeps track of the last revision that it has received and reads all
// events after that revision. Since there is no queue for each watcher, slow watchers do not need
// more memory than fast ones. In this example pods and leases are written in turn, the ring has
// four slots, and a watcher of leases is at revision 4:
//
//	slot        0      1      2      3       pods:   last 8
//	event       8 pod  5 l.   6 l.   7 pod   leases: last 6
//	before      7      3      5      4
//
// Events 6 and 5 are above 4. The event before 5 is 3, so the search stops there. The watcher
// receives events 5 and 6 and then continues at revision 8. A watcher at revision 2 would need
// event 3, which has left the ring, so it reads the file.

import (
	"slices"
	"strings"
)

const keyLengthMax = 4096

// A Record is a version of an object. Its JSON is the object with resourceVersion but without
// kind and apiVersion. The JSON is shared and must not be modified.
type Record struct {
	Key       string // the resource's base, namespace and name
	Rev       int64  // revision that wrote this version
	CreateRev int64  // revision that created the object
	PrevRev   int64  // revision of the replaced version or 0
	Time      int64  // Unix time in milliseconds, or 0 if unknown
	// Deleted is set if the record is a tombstone. In this case JSON is the last state of the
	// object, with the revision of the tombstone.
	Deleted  bool
	Deleting bool // the object carries a deletionTimestamp
	// Lost is set if the replaced version was damaged and could not be read. In this case a
	// tombstone has no JSON.
	Lost   bool
	Stale  bool     // would be encoded differently now, so an identical write is not a no-op (complete only after Get)
	Author AuthorID // author of the change; see Store.Author
	JSON   []byte   // as stored

	sealed bool // JSON is encrypted
}

// public returns the record for use outside the store, with a copy of its JSON. If the record
// created the object, PrevRev is set to 0, even if there is an older tombstone.
func (r Record) public(key string, json []byte) Record {
	r.Key, r.JSON = key, json
	if r.CreateRev == r.Rev {
		r.PrevRev = 0
	}
	return r
}

// keyPrefixes returns the prefixes of the resource and of the namespace for a key of the form
// /group/resource/namespace/name. These prefixes are used to count objects. If the key does not
// have this form, ok is false.
func keyPrefixes(key string) (resource, namespace string, ok bool) {
	var at [4]int
	n := 0
	for i := range len(key) {
		if key[i] != '/' {
			continue
		}
		if n == len(at) {
			return "", "", false
		}
		at[n] = i
		n++
	}
	if n != len(at) || at[0] != 0 || at[2] == at[1]+1 || at[3] == len(key)-1 || len(key) > keyLengthMax {
		return "", "", false
	}
	return key[:at[2]+1], key[:at[3]+1], true
}

// An Event contains a record and the JSON of the version that it replaced. Prev is nil if the
// object was created. If the object was deleted, Prev is the JSON of the last version.
type Event struct {
	Record
	Prev []byte // shared, like JSON

	prevSealed bool // Prev is encrypted
}

func (e *Event) size() int { return len(e.JSON) + len(e.Prev) }

const (
	ringEvents = 4096 // maximum number of events in memory
	// ringBytes is the maximum size of these events. Older events are read from the file.
	ringBytes = 8 << 20
)

// Everything can be passed instead of a resource to select the events of all resources.
const Everything = ""

// eventLog is a ring buffer that contains the newest events of all resources. Its size does not
// depend on the number of resources. Events are numbered in order of arrival. An event with number
// n is stored in slot n modulo the size of the ring. (Revisions cannot be used for this, because
// they may have gaps in a replica.) Each event refers to the previous event of the same resource.
// Watchers follow these references back from the newest event.
type eventLog struct {
	slots  []logSlot
	oldest int64 // number of the oldest event in the ring
	next   int64 // number of the next event
	newest int64 // the log is complete up to this revision
	// evicted is the revision of the last event that was removed from the ring. It starts as
	// currentRev at opening, because the log does not contain earlier events.
	evicted int64
	floor   int64 // currentRev at opening
	bytes   int
	topics  map[string]*topic // by resource prefix
}

type logSlot struct {
	Event
	before logPlace // previous event of the same resource
}

// A logPlace refers to an event that is, or was, in the ring. With number -1 it refers to an event
// before the log began.
type logPlace struct{ number, rev int64 }

type topic struct {
	last logPlace      // newest event of the resource
	wake chan struct{} // closed when the next event is added, or nil
}

func newEventLog(rev int64) eventLog {
	return eventLog{slots: make([]logSlot, ringEvents), newest: rev, evicted: rev, floor: rev, topics: map[string]*topic{}}
}

func (l *eventLog) topic(resource string) *topic {
	t := l.topics[resource]
	if t == nil {
		t = &topic{last: logPlace{-1, l.floor}}
		l.topics[strings.Clone(resource)] = t
	}
	return t
}

func (l *eventLog) slot(number int64) *logSlot { return &l.slots[number%ringEvents] }

// append adds an event, whose revision must not be below newest, and returns the channel to close.
func (l *eventLog) append(resource string, ev Event) (wake chan struct{}) {
	if at := l.find(ev.PrevRev); at != nil && at.Key == ev.Key {
		ev.Prev = at.JSON // use the bytes that are already in memory
	}
	if l.next-l.oldest == ringEvents {
		l.evict()
	}
	t := l.topic(resource)
	*l.slot(l.next) = logSlot{Event: ev, before: t.last}
	l.newest, t.last = ev.Rev, logPlace{l.next, ev.Rev}
	l.next++
	for l.bytes += ev.size(); l.bytes > ringBytes; {
		l.evict()
	}
	wake, t.wake = t.wake, nil
	return wake
}

// find returns the slot of the event with a revision, or nil if it is not in the ring. The first
// guess is right if there are no gaps.
func (l *eventLog) find(rev int64) *logSlot {
	if rev <= l.evicted || l.next == l.oldest {
		return nil
	}
	if guess := l.next - 1 - (l.newest - rev); guess >= l.oldest && l.slot(guess).Rev == rev {
		return l.slot(guess)
	}
	if number := l.after(rev - 1); number < l.next && l.slot(number).Rev == rev {
		return l.slot(number)
	}
	return nil
}

// findKey is like find for a revision in which several keys have changed.
func (l *eventLog) findKey(rev int64, key string) *logSlot {
	if at := l.find(rev); at == nil || at.Key == key {
		return at
	}
	for number := l.after(rev - 1); number < l.next && l.slot(number).Rev == rev; number++ {
		if at := l.slot(number); at.Key == key {
			return at
		}
	}
	return nil
}

// after returns the number of the first event in the ring above a revision.
func (l *eventLog) after(rev int64) int64 {
	low, high := l.oldest, l.next
	for low < high {
		if middle := (low + high) / 2; l.slot(middle).Rev <= rev {
			low = middle + 1
		} else {
			high = middle
		}
	}
	return low
}

// wakeAll returns the wake-up channel of Everything, which is closed after each commit, or nil if
// there is no waiter.
func (l *eventLog) wakeAll() (wake chan struct{}) {
	if t := l.topics[Everything]; t != nil {
		wake, t.wake = t.wake, nil
	}
	return wake
}

func (l *eventLog) evict() {
	s := l.slot(l.oldest)
	l.bytes -= s.size()
	l.evicted = s.Rev
	*s = logSlot{}
	l.oldest++
}

// since counts the resource's events after a revision and returns the revision of the first. known
// is false if the ring does not reach back that far.
func (l *eventLog) since(resource string, after int64) (n int, first int64, known bool) {
	if resource == Everything {
		known = after >= l.evicted
		if number := l.after(after); known && number < l.next {
			n, first = int(l.next-number), l.slot(number).Rev
		}
		return n, first, known
	}
	last := logPlace{-1, l.floor}
	if t := l.topics[resource]; t != nil {
		last = t.last
	}
	for at := last; at.rev > after; at = l.slot(at.number).before {
		if at.number < l.oldest {
			return 0, 0, false
		}
		n, first = n+1, at.rev
	}
	return n, first, true
}

// read appends up to max events to dst, starting with the first of the n events that since has
// counted. It may append more than max events if they have the same revision. It also returns the
// last revision for which dst contains all events.
func (l *eventLog) read(resource string, n, max int, dst []Event) ([]Event, int64) {
	if n == 0 {
		return dst, l.newest
	}
	if resource == Everything {
		return l.readAll(n, max, dst)
	}
	at, upTo := l.topics[resource].last, l.newest
	for n > max {
		older, size := l.slot(at.number).before, 1
		for ; size < n && older.rev == at.rev; size++ {
			older = l.slot(older.number).before
		}
		if size == n { // never split a revision
			break
		}
		n, at, upTo = n-size, older, older.rev
	}
	dst = slices.Grow(dst, n)[:len(dst)+n]
	for i := 1; i <= n; i++ {
		dst[len(dst)-i] = l.slot(at.number).Event
		at = l.slot(at.number).before
	}
	return dst, upTo
}

// readAll is read for Everything.
func (l *eventLog) readAll(n, max int, dst []Event) ([]Event, int64) {
	first, upTo := l.next-int64(n), l.newest
	if n > max {
		end := first + int64(max)
		for end < l.next && l.slot(end).Rev == l.slot(end-1).Rev { // never split a revision
			end++
		}
		if n = int(end - first); end < l.next {
			upTo = l.slot(end - 1).Rev
		}
	}
	dst = slices.Grow(dst, n)
	for i := range int64(n) {
		dst = append(dst, l.slot(first+i).Event)
	}
	return dst, upTo
}

// An Author contains the user, the client program and the verb of a change. The zero Author means
// unknown.
type Author struct {
	User, Agent, Verb, Subresource string // "" if unknown or none
	Manager                        string // field manager, if the request names one; otherwise it is the first word of Agent
}

// An AuthorID is the number of an author in the file. 0 means unknown.
type AuthorID uint32
