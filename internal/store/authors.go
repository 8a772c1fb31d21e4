package store

// This file records the author and the time of each change. Each record contains the time in
// milliseconds and the author's number. Together they take 7 bytes, or 8 bytes from the 128th
// author on. The bucket authors maps the number to a user, a user agent, a verb, a subresource and,
// if the request names one, a field manager. The writer adds the entry in the same transaction as
// the first record that uses it:
//
//	authors  key: the author's number, 4. The bucket's sequence is the last number used; numbers are never reused
//	             0     4  CRC of the key and of all other bytes
//	             4        user, agent, verb, subresource and manager, each after its length (uvarint)
//
// Clients choose their user agent and can send a different one with each request. To keep the table
// small, the store truncates the texts and limits the number of entries. If an author does not fit,
// the store records less detail, in these steps:
//
//	alice with kubectl/v1.36        1,408 entries  a user gets at most a quarter of the number left for all others
//	alice with another program      512 entries    the same
//	an account of namespace b       128 entries    the same
//	another user
//
// If a client fills the table, only its own details are lost. The first such user can use 281 of
// the 1,408 entries, and the tenth can use 37. After that, about 150 entries are still free. All
// service accounts of a namespace count as one user, because a client that can create one account
// can create a thousand. If a compaction finds the table half full, it checks which authors the
// remaining records refer to and deletes the others.
//
// The time in a record is the start of the commit. If the clock is set back by less than a minute,
// the times do not decrease. If it is set back by more, new records use the new time. Records do
// not contain a time or an author if they were written while filling a replica. If a change was
// made by another server in the cluster, the record does not contain an author. In this case the
// time is set when the change arrives.

import (
	"errors"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"apilet/internal/store/boltfile"
)

const (
	userBytesMax  = 256
	agentBytesMax = 128
	verbBytesMax  = 32
	authorsMax    = 2048           // maximum number of authors in the table
	authorsSweep  = authorsMax / 2 // number of authors from which compaction looks for unused ones
	authorsEvery  = time.Hour      // minimum time between two such searches
	restShare     = 4              // a user can use up to 1/restShare of the free entries
	clockSlack    = time.Minute
	otherAuthor   = "other"
	accountPrefix = "system:serviceaccount:" // followed by NAMESPACE:NAME
)

// authorTable is the in-memory copy of the bucket authors.
type authorTable struct {
	mu       sync.RWMutex              // guards the fields below
	byNumber map[AuthorID]*authorEntry // all authors by number
	ids      map[Author]*authorEntry   // all authors by content
	// counts contains the number of authors in each share. If the party is empty, all authors in
	// the room are counted.
	counts map[share]int
	last   AuthorID // highest number used
}

// share is the key that is used to count the entries of a party in a room.
type share struct {
	room  int
	party string // user or system:serviceaccount:NAMESPACE
}

// rooms defines how many authors can be stored with a user agent, without a user agent, and as a
// namespace of service accounts.
var rooms = [...]int{authorsMax - 640, 512, 128}

type authorEntry struct {
	Author
	id   AuthorID
	used int64 // last revision written by the author since the file was opened
}

// load reads the bucket. It skips damaged entries, which the scrub reports.
func (t *authorTable) load(authors boltfile.Tree) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.byNumber, t.ids, t.counts, t.last = map[AuthorID]*authorEntry{}, map[Author]*authorEntry{}, map[share]int{}, 0
	t.last = AuthorID(authors.Sequence)
	c := authors.Cursor()
	for k, v := c.First(); k != nil; k, v = c.Next() {
		if id, a, err := decodeAuthor(k, v); err == nil {
			t.add(&authorEntry{Author: a, id: id})
			t.last = max(t.last, id)
		}
	}
}

// add adds an entry. The caller must hold mu or be opening the store.
func (t *authorTable) add(e *authorEntry) {
	t.byNumber[e.id], t.ids[e.Author] = e, e
	t.count(e, +1)
}

// remove removes an entry. The caller must hold mu.
func (t *authorTable) remove(e *authorEntry) {
	delete(t.byNumber, e.id)
	delete(t.ids, e.Author)
	t.count(e, -1)
}

func (t *authorTable) count(e *authorEntry, n int) {
	of := e.share()
	for _, at := range [...]share{of, {room: of.room}} {
		if t.counts[at] += n; t.counts[at] == 0 {
			delete(t.counts, at)
		}
	}
}

// find returns the entry for the given author, or nil if it does not exist.
func (t *authorTable) find(a Author) *authorEntry {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.ids[a]
}

// share returns the share in which the author is counted.
func (a *Author) share() share {
	of := share{room: 0, party: a.User}
	if a.Agent == otherAuthor {
		of.room = 1
	}
	if namespaceAndName, ok := strings.CutPrefix(a.User, accountPrefix); ok {
		namespace, name, _ := strings.Cut(namespaceAndName, ":")
		if of.party = accountPrefix + namespace; name == otherAuthor && of.room == 1 {
			of.room = 2
		}
	}
	return of
}

// withLess returns the author with less detail.
func (a Author) withLess() Author {
	of := a.share()
	switch {
	case of.room == 0:
		a.Agent, a.Manager = otherAuthor, ""
	case of.room == 1 && of.party != a.User:
		a.User = of.party + ":" + otherAuthor
	default:
		a.User = otherAuthor
	}
	return a
}

// ---- Writing

// txAuthors is used to assign the numbers of authors in a write transaction. It is used only by the
// writer.
type txAuthors struct {
	table *authorTable   // nil if authors are not recorded
	added []*authorEntry // added in this transaction
}

// number returns the number of an author who writes at rev, and adds the author if necessary.
func (w *txAuthors) number(l *boltfile.WriteTx, g *boltfile.Guard, a Author, rev int64) (AuthorID, error) {
	e := w.known(a)
	if e == nil {
		a = a.bounded()
		e = w.known(a)
	}
	for e == nil && a.User != otherAuthor && !w.hasRoom(a) {
		a = a.withLess()
		e = w.known(a)
	}
	if e == nil {
		var err error
		if e, err = w.add(l, g, a); err != nil {
			return 0, err
		}
	}
	e.used = rev
	return e.id, nil
}

// known returns the entry of an author, including authors added in this transaction.
func (w *txAuthors) known(a Author) *authorEntry {
	for i := range w.added {
		if w.added[i].Author == a {
			return w.added[i]
		}
	}
	return w.table.find(a)
}

// hasRoom reports whether the author's party has fewer entries in the room than a quarter of the
// free ones.
func (w *txAuthors) hasRoom(a Author) bool {
	of := a.share()
	w.table.mu.RLock()
	mine, all := w.table.counts[of], w.table.counts[share{room: of.room}]
	w.table.mu.RUnlock()
	for _, e := range w.added {
		if at := e.share(); at.room == of.room {
			all++
			if at.party == of.party {
				mine++
			}
		}
	}
	return mine < (rooms[of.room]-all+restShare-1)/restShare
}

// add writes a new entry for the author.
func (w *txAuthors) add(l *boltfile.WriteTx, g *boltfile.Guard, a Author) (*authorEntry, error) {
	bucket, err := g.Bucket(l, boltfile.InAuthors)
	if err != nil {
		return nil, err
	}
	e := &authorEntry{Author: a, id: AuthorID(max(bucket.Sequence(), uint64(w.table.last)) + 1)}
	key := authorKey(e.id)
	if err := errors.Join(bucket.Put(key, encodeAuthor(key, a)), l.SetSequence(boltfile.InAuthors, uint64(e.id))); err != nil {
		return nil, err
	}
	w.added = append(w.added, e)
	return e, nil
}

// publish makes the authors added by a committed transaction visible to readers.
func (t *authorTable) publish(fresh []*authorEntry) {
	if len(fresh) == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range fresh {
		t.add(e)
		t.last = max(t.last, e.id)
	}
}

// bounded returns the author with truncated texts in valid UTF-8.
func (a Author) bounded() Author {
	return Author{boundedText(a.User, userBytesMax), boundedText(a.Agent, agentBytesMax), boundedText(a.Verb, verbBytesMax),
		boundedText(a.Subresource, verbBytesMax), boundedText(a.Manager, agentBytesMax)}
}

// boundedText returns a copy, so that the result does not retain the buffers of the request.
func boundedText(text string, most int) string {
	if len(text) > most {
		for most > 0 && !utf8.RuneStart(text[most]) {
			most--
		}
		text = text[:most]
	}
	return strings.Clone(strings.ToValidUTF8(text, "?"))
}
