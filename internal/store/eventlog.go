package store

// This file has what a write leaves behind for those who watch: a record, and in the event log an event.
//
// Watchers pull. Each holds the revision up to which it has seen its resource and asks for what came after; nobody queues anything
// for it, so a slow watcher costs no more than a fast one. An example of the log, with pods and leases written in turn, the ring
// shortened to four slots, and a watcher of leases at revision 4:
//
//	slot        0      1      2      3       pods:   last 8
//	event       8 pod  5 l.   6 l.   7 pod   leases: last 6
//	before      7      3      5      4
//
// 6 and 5 are above 4, the one before 5 is 3, which is not: the watcher gets 5 and 6 and stands at 8. Another at 2 would need 3,
// which has left the ring: it reads the file.

import (
	"slices"
	"strings"
)

const keyLengthMax = 4096

// A Record is one version of one object. Its JSON is the object without kind and apiVersion, resourceVersion included, and is
// shared: nobody changes it.
type Record struct {
	Key       string   // a resource's base, namespace and name
	Rev       int64    // the revision that wrote this version
	CreateRev int64    // the revision that created the object
	PrevRev   int64    // the version that this one replaced, 0 for a create
	Time      int64    // when it was written, in milliseconds since 1970; 0: unknown
	Deleted   bool     // a tombstone; json is the last state, with the tombstone's revision as resourceVersion
	Deleting  bool     // the object carries a deletionTimestamp
	Lost      bool     // what it replaced was damaged, and nobody knows what that was; a tombstone has no JSON then
	Stale     bool     // it lies otherwise than it would be written now: a write of the same is no idle one (Get alone tells)
	Author    AuthorID // who wrote it; Store.Author tells
	JSON      []byte   // as stored

	sealed bool // JSON is what sealing has made of it
}

// public is what leaves the store: json copied out of the file, and no tombstone before a create.
func (r Record) public(key string, json []byte) Record {
	r.Key, r.JSON = key, json
	if r.CreateRev == r.Rev {
		r.PrevRev = 0
	}
	return r
}

// keyPrefixes cuts /group/resource/namespace/name into the prefixes that are counted: that of its resource and that of its
// namespace in it. ok is false for anything else.
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

// An Event is a record with the JSON that it replaced (nil for a create; for a tombstone the json before it).
type Event struct {
	Record
	Prev []byte // shared like JSON

	prevSealed bool // Prev is what sealing has made of it
}

func (e *Event) size() int { return len(e.JSON) + len(e.Prev) }

const (
	ringEvents = 4096    // newest events that are kept in memory,
	ringBytes  = 8 << 20 // and how many bytes of them; older ones are read from the file
)

// Everything stands for all resources where one is asked for: whoever follows it sees every event.
const Everything = ""

// eventLog holds the newest events of all resources in one ring, so that its size is bounded however many resources there are. Events are
// numbered in the order in which they came; an event's slot is its number modulo the ring's length. (Revisions would not do: a replica's
// have gaps.) Each event names the one before it of the same resource; watchers follow that from the newest back.
type eventLog struct {
	slots   []logSlot
	oldest  int64 // the number of the oldest event in the ring
	next    int64 // the number of the next event to come
	newest  int64 // the revision up to which the log is complete
	evicted int64 // the revision of the last event that left the ring; at first currentRev at opening: the log knows nothing up to there
	floor   int64 // currentRev at opening
	bytes   int
	topics  map[string]*topic // by resource prefix
}

type logSlot struct {
	Event
	before logPlace // no event of the resource lies between it and the slot's
}

// A logPlace names an event that the ring has, or had, or, with number -1, never had.
type logPlace struct{ number, rev int64 }

type topic struct {
	last logPlace      // no event of the resource lies above it
	wake chan struct{} // closed at the resource's next event; nil while nobody waits
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

// append adds the event of a revision not below newest, and returns the channel to close.
func (l *eventLog) append(resource string, ev Event) (wake chan struct{}) {
	if at := l.find(ev.PrevRev); at != nil && at.Key == ev.Key {
		ev.Prev = at.JSON // the same bytes, and here already
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

// find returns the slot of an event by its revision, nil when the ring does not have it. Without gaps the first guess is right.
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

// findKey is find for one of the keys that have changed in a revision.
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

// after is the number of the first event in the ring above a revision.
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

// wakeAll returns the channel of those who follow everything, to be closed after a commit; nil when nobody waits.
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

// since counts the resource's events after a revision and finds the first. known is false when the ring does not reach back.
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

// read appends the first max of the resource's n events after a revision, which since has counted (more where a revision has more), and
// returns the revision up to which dst is complete.
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
		if size == n { // one revision is not cut
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

// readAll is read for everything.
func (l *eventLog) readAll(n, max int, dst []Event) ([]Event, int64) {
	first, upTo := l.next-int64(n), l.newest
	if n > max {
		end := first + int64(max)
		for end < l.next && l.slot(end).Rev == l.slot(end-1).Rev { // one revision is not cut
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

// An Author is who made a change, with which program, by which verb. The zero Author is nobody known.
type Author struct {
	User, Agent, Verb, Subresource string // "" where that is not known, or is none
	Manager                        string // of fields, where the request names one: else it is the first word of Agent
}

// An AuthorID is an author's number in the file; 0 is nobody known.
type AuthorID uint32
