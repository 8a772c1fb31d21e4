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
// hours ahead is followed back. Records of format 1 have neither time nor author, nor have those that fill a replica, and what others on
// its cluster wrote has a time alone: that of its arrival here.

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
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

// An Author is who made a change, with which program, by which verb. The zero Author is nobody known.
type Author struct {
	User, Agent, Verb, Subresource string // "" where that is not known, or is none
	Manager                        string // of fields, where the request names one: else it is the first word of Agent
}

// An AuthorID is an author's number in the file; 0 is nobody known.
type AuthorID uint32

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

// Author is what a record's number stands for.
func (st *Store) Author(id AuthorID) Author {
	if id == 0 {
		return Author{}
	}
	st.authors.mu.RLock()
	defer st.authors.mu.RUnlock()
	if e := st.authors.named[id]; e != nil {
		return e.Author
	}
	return Author{}
}

// load reads the bucket. An entry that is damaged is left out; the scrub names it.
func (t *authorTable) load(s *snapshot) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.named, t.ids, t.taken, t.last = map[AuthorID]*authorEntry{}, map[Author]*authorEntry{}, map[share]int{}, 0
	authors := s.authors()
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

// author finds or makes the number of who asks for a change. The writer alone calls it.
func (s *stage) author(a Author, op ChangeOp, rev int64) (AuthorID, error) {
	if a == (Author{}) || s.table == nil {
		return 0, nil
	}
	if a.Verb == "" {
		a.Verb = [...]string{OpCreate: "create", OpUpdate: "update", OpDelete: "delete"}[op]
	}
	e := s.known(a)
	if e == nil {
		a = a.bounded()
		e = s.known(a)
	}
	for e == nil && a.User != otherAuthor && !s.hasRoom(a) {
		a = a.withLess()
		e = s.known(a)
	}
	if e == nil {
		var err error
		if e, err = s.newAuthor(a); err != nil {
			return 0, err
		}
	}
	e.used = rev
	return e.id, nil
}

// known looks an author up, also among those that this transaction has made.
func (s *stage) known(a Author) *authorEntry {
	for i := range s.fresh {
		if s.fresh[i].Author == a {
			return s.fresh[i]
		}
	}
	return s.table.find(a)
}

// hasRoom tells whether an author's party has taken less of a room than its share of what is left for all others.
func (s *stage) hasRoom(a Author) bool {
	of := a.share()
	s.table.mu.RLock()
	mine, all := s.table.taken[of], s.table.taken[share{room: of.room}]
	s.table.mu.RUnlock()
	for _, e := range s.fresh {
		if at := e.share(); at.room == of.room {
			all++
			if at.party == of.party {
				mine++
			}
		}
	}
	return mine < (rooms[of.room]-all+restShare-1)/restShare
}

func (s *stage) newAuthor(a Author) (*authorEntry, error) {
	bucket, err := s.guard.Bucket(s.Ledger, boltfile.InAuthors)
	if err != nil {
		return nil, err
	}
	e := &authorEntry{Author: a, id: AuthorID(max(bucket.Sequence(), uint64(s.table.last)) + 1)}
	key := authorKey(e.id)
	if err := errors.Join(bucket.Put(key, encodeAuthor(key, a)), s.SetSequence(boltfile.InAuthors, uint64(e.id))); err != nil {
		return nil, err
	}
	s.fresh = append(s.fresh, e)
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

// commitTime is when a commit begins, in milliseconds. The writer alone calls it.
func (st *Store) commitTime() int64 {
	now := st.Now().UnixMilli()
	if now < st.lastTime && st.lastTime-now < clockSlack.Milliseconds() {
		now = st.lastTime
	}
	st.lastTime = now
	return now
}

// Now is the time by the clock that records are stamped with: what compares times with theirs asks it.
func (st *Store) Now() time.Time {
	if st.Opts.Clock != nil {
		return st.Opts.Clock()
	}
	return time.Now()
}

// upgrade makes a file of format 1 one of format 2, and a replica's likewise: all in one transaction.
func upgrade(to int64) func(*boltfile.Ledger) error {
	return func(l *boltfile.Ledger) error {
		s, err := newStage(l)
		if err == nil {
			err = s.guard.VetMeta()
		}
		if err != nil {
			return err
		}
		_, err = l.Tx.CreateBucketIfNotExists(boltfile.Buckets[boltfile.InAuthors])
		return errors.Join(err, l.PutMetaInt("format", to))
	}
}

// ---- Those whom no record names

// dropAuthors is the writer's: what has been written since the walk began counts as named.
func (st *Store) dropAuthors(l *boltfile.Ledger, named map[AuthorID]bool, begun int64) error {
	s, err := newStage(l)
	if err != nil {
		return err
	}
	bucket, err := s.guard.Bucket(l, boltfile.InAuthors)
	if err != nil {
		return err
	}
	table := &st.authors
	table.mu.Lock()
	defer table.mu.Unlock()
	for id, e := range table.named {
		if named[id] || e.used > begun {
			continue
		}
		if err := bucket.Remove(authorKey(id)); err != nil {
			return err
		}
		table.remove(e)
	}
	return nil
}

// ---- Bytes

func authorKey(id AuthorID) []byte { return binary.BigEndian.AppendUint32(nil, uint32(id)) }

func encodeAuthor(key []byte, a Author) []byte {
	b := make([]byte, 4, 16+len(a.User)+len(a.Agent)+len(a.Verb)+len(a.Subresource)+len(a.Manager))
	for _, text := range [...]string{a.User, a.Agent, a.Verb, a.Subresource, a.Manager} {
		b = append(binary.AppendUvarint(b, uint64(len(text))), text...)
	}
	binary.BigEndian.PutUint32(b, authorCRC(key, b))
	return b
}

func authorCRC(key, b []byte) uint32 {
	return crc32.Update(crc32.Update(0, castagnoli, key), castagnoli, b[4:])
}

func decodeAuthor(key, b []byte) (id AuthorID, a Author, err error) {
	if len(key) != 4 || len(b) < 4 || binary.BigEndian.Uint32(b) != authorCRC(key, b) {
		return 0, a, boltfile.Damaged("author %x is damaged: its checksum does not match", key)
	}
	id, b = AuthorID(binary.BigEndian.Uint32(key)), b[4:]
	for _, text := range [...]*string{&a.User, &a.Agent, &a.Verb, &a.Subresource, &a.Manager} {
		size, n := binary.Uvarint(b)
		if n <= 0 || size > uint64(len(b)-n) {
			return 0, a, boltfile.Damaged("author %d is damaged", id)
		}
		*text, b = string(b[n:n+int(size)]), b[n+int(size):]
	}
	return id, a, nil
}
