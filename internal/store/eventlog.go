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
	Key       string
	Rev       int64 // the revision that wrote this version
	CreateRev int64 // the revision that created the object
	PrevRev   int64 // the version that this one replaced, 0 for a create
	Deleted   bool  // a tombstone; json is the last state, with the tombstone's revision as resourceVersion
	Deleting  bool  // the object carries a deletionTimestamp
	JSON      []byte
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
	Prev []byte
}

func (e *Event) size() int { return len(e.JSON) + len(e.Prev) }

const (
	RingEvents = 4096
	ringBytes  = 8 << 20
)

// Everything stands for all resources where one is asked for: whoever follows it sees every event.
const Everything = ""

// eventLog holds the newest events of all resources in one ring, so that its size is bounded however many resources there are.
// Revisions have no gaps, so an event's place is its revision modulo the ring's length. Each event names the one before it of the
// same resource; watchers follow that from the newest back.
type eventLog struct {
	slots  []logSlot
	oldest int64 // the oldest revision in the ring, newest+1 when it is empty
	newest int64
	floor  int64 // currentRev at opening: of events up to there the log knows nothing
	bytes  int
	topics map[string]*topic // by resource prefix
}

type logSlot struct {
	Event
	before int64 // no event of the resource lies between this revision and the slot's
}

type topic struct {
	last int64         // no event of the resource lies above this revision
	wake chan struct{} // closed at the resource's next event; nil while nobody waits
}

func newEventLog(rev int64) eventLog {
	return eventLog{slots: make([]logSlot, RingEvents), oldest: rev + 1, newest: rev, floor: rev, topics: map[string]*topic{}}
}

func (l *eventLog) topic(resource string) *topic {
	t := l.topics[resource]
	if t == nil {
		t = &topic{last: l.floor}
		l.topics[strings.Clone(resource)] = t
	}
	return t
}

func (l *eventLog) slot(rev int64) *logSlot { return &l.slots[rev%RingEvents] }

// append adds the event of revision newest+1 and returns the channel to close.
func (l *eventLog) append(resource string, ev Event) (wake chan struct{}) {
	if ev.PrevRev >= l.oldest {
		ev.Prev = l.slot(ev.PrevRev).JSON // the same bytes, and here already
	}
	if l.newest-l.oldest+1 == RingEvents {
		l.evict()
	}
	t := l.topic(resource)
	*l.slot(ev.Rev) = logSlot{Event: ev, before: t.last}
	l.newest, t.last = ev.Rev, ev.Rev
	for l.bytes += ev.size(); l.bytes > ringBytes; {
		l.evict()
	}
	wake, t.wake = t.wake, nil
	return wake
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
	*s = logSlot{}
	l.oldest++
}

// since counts the resource's events after a revision and finds the first. known is false when the ring does not reach back.
func (l *eventLog) since(resource string, after int64) (n int, first int64, known bool) {
	if resource == Everything {
		known = after >= l.oldest-1
		if known && after < l.newest {
			n, first = int(l.newest-after), after+1
		}
		return n, first, known
	}
	last := l.floor
	if t := l.topics[resource]; t != nil {
		last = t.last
	}
	for rev := last; rev > after; rev = l.slot(rev).before {
		if rev < l.oldest {
			return 0, 0, false
		}
		n, first = n+1, rev
	}
	return n, first, true
}

// read appends the first max of the resource's n events after a revision, which since has counted, and returns the revision up to
// which dst is complete.
func (l *eventLog) read(resource string, n, max int, dst []Event) ([]Event, int64) {
	if n == 0 {
		return dst, l.newest
	}
	if resource == Everything {
		first := l.newest - int64(n) + 1
		n = min(n, max)
		dst = slices.Grow(dst, n)
		for i := range n {
			dst = append(dst, l.slot(first+int64(i)).Event)
		}
		return dst, first + int64(n) - 1
	}
	rev, upTo := l.topics[resource].last, l.newest
	for ; n > max; n-- {
		rev = l.slot(rev).before
		upTo = rev
	}
	dst = slices.Grow(dst, n)[:len(dst)+n]
	for i := 1; i <= n; i++ {
		dst[len(dst)-i] = l.slot(rev).Event
		rev = l.slot(rev).before
	}
	return dst, upTo
}
