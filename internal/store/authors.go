package store

// This file says who wrote a record, and when. A record has its time in milliseconds and the number of an author: 7 bytes together, 8 from
// the 128th author on. What a number stands for (a user, a user agent, a verb, a subresource, a field
// manager where the request names one) lies in the bucket authors, written in the
// transaction of the first record that names it:
//
//	authors  key: the author's number, 4. Its sequence is the last number given out; none is given out twice
//	             0     4  CRC of the key and of all the rest
//	             4        user, agent, verb, subresource and manager, each behind its length (uvarint)
//
// Whoever may write chooses the user agent, and may choose another one for each request. So there is a bound to all of it: texts are cut, and
// the table has room for so many. What has no room is told less of, step by step:
//
//	alice with kubectl/v1.36        room for 1,408     nobody takes more of it than a quarter of what is left for all others
//	alice with another program      room for 512       likewise
//	an account of namespace b       room for 128       likewise
//	somebody else
//
// So who fills the table hides nobody but himself: of 1,408 places the first who tries takes 281, the tenth 37, and a hundred and fifty are left.
// All service accounts of a namespace are one in this, for who makes one can make a thousand. A compaction that finds the table half full looks
// which authors the records that are left still name, and lets the others go.
//
// Times are the clock's when the commit began. They do not run back where the clock is put right by less than a minute; a clock that was
// hours ahead is followed back. Records that fill a replica have neither time nor author. Later writes of other servers on its cluster have
// a time only, the time of their arrival here.

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
	authorsMax    = 2048           // authors in the table
	authorsSweep  = authorsMax / 2 // from here on compaction looks for those that nobody names
	authorsEvery  = time.Hour      // at most so often
	restShare     = 4              // who has a place leaves so many times as many
	clockSlack    = time.Minute
	otherAuthor   = "other"
	accountPrefix = "system:serviceaccount:" // then NAMESPACE:NAME
)

// authorTable is the bucket authors in memory.
type authorTable struct {
	mu    sync.RWMutex              // guards what follows
	named map[AuthorID]*authorEntry // all
	ids   map[Author]*authorEntry   // the same
	taken map[share]int             // how many of them there are of each share, and of each room under the share of nobody
	last  AuthorID                  // given out
}

// A share is what one party has of a room.
type share struct {
	room  int
	party string // a user, or system:serviceaccount:NAMESPACE
}

// rooms are how many authors there may be: with their agents; users; namespaces of accounts.
var rooms = [...]int{authorsMax - 640, 512, 128}

type authorEntry struct {
	Author
	id   AuthorID
	used int64 // the last revision that was written with it since the file was opened
}

// load reads the bucket. An entry that is damaged is left out; the scrub names it.
func (t *authorTable) load(authors boltfile.Tree) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.named, t.ids, t.taken, t.last = map[AuthorID]*authorEntry{}, map[Author]*authorEntry{}, map[share]int{}, 0
	t.last = AuthorID(authors.Sequence)
	c := authors.Cursor()
	for k, v := c.First(); k != nil; k, v = c.Next() {
		if id, a, err := decodeAuthor(k, v); err == nil {
			t.add(&authorEntry{Author: a, id: id})
			t.last = max(t.last, id)
		}
	}
}

// add is called with mu, or by who opens.
func (t *authorTable) add(e *authorEntry) {
	t.named[e.id], t.ids[e.Author] = e, e
	t.count(e, +1)
}

// remove is called with mu.
func (t *authorTable) remove(e *authorEntry) {
	delete(t.named, e.id)
	delete(t.ids, e.Author)
	t.count(e, -1)
}

func (t *authorTable) count(e *authorEntry, n int) {
	of := e.share()
	for _, at := range [...]share{of, {room: of.room}} {
		if t.taken[at] += n; t.taken[at] == 0 {
			delete(t.taken, at)
		}
	}
}

// find returns an author's entry.
func (t *authorTable) find(a Author) *authorEntry {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.ids[a]
}

// share is whose place an author takes, and in which room.
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

// withLess is an author of whom less is told.
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

// An authorship has the authors of one transaction. The writer alone has it.
type authorship struct {
	table *authorTable   // nil where nobody has an author
	fresh []*authorEntry // made in the transaction
}

// number finds or makes the number of who asks for a change that will have a revision.
func (w *authorship) number(l *boltfile.Ledger, g *boltfile.Guard, a Author, rev int64) (AuthorID, error) {
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

// known looks an author up, also among those that this transaction has made.
func (w *authorship) known(a Author) *authorEntry {
	for i := range w.fresh {
		if w.fresh[i].Author == a {
			return w.fresh[i]
		}
	}
	return w.table.find(a)
}

// hasRoom tells whether an author's party has taken less of a room than its share of what is left for all others.
func (w *authorship) hasRoom(a Author) bool {
	of := a.share()
	w.table.mu.RLock()
	mine, all := w.table.taken[of], w.table.taken[share{room: of.room}]
	w.table.mu.RUnlock()
	for _, e := range w.fresh {
		if at := e.share(); at.room == of.room {
			all++
			if at.party == of.party {
				mine++
			}
		}
	}
	return mine < (rooms[of.room]-all+restShare-1)/restShare
}

// add makes an author's entry.
func (w *authorship) add(l *boltfile.Ledger, g *boltfile.Guard, a Author) (*authorEntry, error) {
	bucket, err := g.Bucket(l, boltfile.InAuthors)
	if err != nil {
		return nil, err
	}
	e := &authorEntry{Author: a, id: AuthorID(max(bucket.Sequence(), uint64(w.table.last)) + 1)}
	key := authorKey(e.id)
	if err := errors.Join(bucket.Put(key, encodeAuthor(key, a)), l.SetSequence(boltfile.InAuthors, uint64(e.id))); err != nil {
		return nil, err
	}
	w.fresh = append(w.fresh, e)
	return e, nil
}

// keep makes what a committed transaction has added known.
func (t *authorTable) keep(fresh []*authorEntry) {
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

// bounded cuts an author's texts, and makes them UTF-8.
func (a Author) bounded() Author {
	return Author{boundedText(a.User, userBytesMax), boundedText(a.Agent, agentBytesMax), boundedText(a.Verb, verbBytesMax),
		boundedText(a.Subresource, verbBytesMax), boundedText(a.Manager, agentBytesMax)}
}

// boundedText is a copy: what a request says must not keep its buffers.
func boundedText(text string, most int) string {
	if len(text) > most {
		for most > 0 && !utf8.RuneStart(text[most]) {
			most--
		}
		text = text[:most]
	}
	return strings.Clone(strings.ToValidUTF8(text, "?"))
}
