// Look prints the contents of a data file: buckets, revisions and keys. It only uses bbolt and not
// the code of the server.
//
//	go run ./testdata/programs/look apilet.db                  # an overview
//	go run ./testdata/programs/look -key //configmaps/default/a apilet.db
//
// No server may have the file open. The format is described at the top of internal/store/store.go.
// If the program disagrees with it, one of them is wrong. If -key is set, it prints all versions of
// an object by following the chain, like a LIST at an old revision.
package main

import (
	"encoding/binary"
	"flag"
	"fmt"
	"hash/crc32"
	"os"
	"time"

	"go.etcd.io/bbolt"
)

// A record is a version of an object. It is stored in the bucket rev by its revision.
type record struct {
	flags          byte
	prev, created  uint64
	crc            uint32
	key, json      []byte
	rev            uint64
	written        int64  // milliseconds since 1970; 0: unknown
	author         uint64 // ID in the bucket authors, or 0 if unknown
	damaged, short bool
}

func main() {
	key := flag.String("key", "", "an object's `key`, /GROUP/RESOURCE/NAMESPACE/NAME: show its versions")
	flag.Parse()
	if err := run(flag.Arg(0), *key); err != nil {
		fmt.Fprintln(os.Stderr, "look:", err)
		os.Exit(1)
	}
}

func run(path, key string) error {
	if _, err := os.Stat(path); err != nil {
		return err // otherwise bbolt would create it
	}
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true, Timeout: time.Second})
	if err != nil {
		return err
	}
	defer db.Close()
	return db.View(func(tx *bbolt.Tx) error {
		for _, name := range []string{"meta", "rev", "keys"} {
			if tx.Bucket([]byte(name)) == nil {
				return fmt.Errorf("there is no bucket %s: this is no data file of apilet", name)
			}
		}
		if key != "" {
			return versions(tx, key)
		}
		return overview(tx)
	})
}

// overview prints counts and the last changes.
func overview(tx *bbolt.Tx) error {
	revs, keys := tx.Bucket([]byte("rev")), tx.Bucket([]byte("keys"))
	live, gone := 0, 0
	if err := keys.ForEach(func(_, v []byte) error {
		if len(v) > 12 && v[12]&1 == 0 {
			live++
		} else {
			gone++
		}
		return nil
	}); err != nil {
		return err
	}
	fmt.Printf("revision %d; %d records; %d objects, %d keys of deleted ones\n", revs.Sequence(), revs.Stats().KeyN, live, gone)
	c := revs.Cursor()
	shown := 0
	for k, v := c.Last(); k != nil && shown < 5; k, v = c.Prev() {
		fmt.Println(parse(k, v))
		shown++
	}
	return nil
}

// versions prints all versions of a key, starting with the newest.
func versions(tx *bbolt.Tx, key string) error {
	state := tx.Bucket([]byte("keys")).Get([]byte(key))
	if len(state) < 8 {
		return fmt.Errorf("no object has the key %s", key)
	}
	for rev := binary.BigEndian.Uint64(state); rev != 0; {
		at := binary.BigEndian.AppendUint64(nil, rev)
		v := tx.Bucket([]byte("rev")).Get(at)
		if v == nil {
			fmt.Printf("%d is compacted\n", rev)
			return nil
		}
		r := parse(at, v)
		fmt.Println(r)
		rev = r.prev
	}
	return nil
}

// parse parses a record.
func parse(k, v []byte) record {
	r := record{rev: binary.BigEndian.Uint64(k)}
	if len(v) < 23 || len(v) < 23+int(binary.BigEndian.Uint16(v[21:])) {
		r.short = true
		return r
	}
	r.flags, r.prev, r.created, r.crc = v[0], binary.BigEndian.Uint64(v[1:]), binary.BigEndian.Uint64(v[9:]), binary.BigEndian.Uint32(v[17:])
	n := int(binary.BigEndian.Uint16(v[21:]))
	r.key, r.json = v[23:23+n], v[23+n:]
	if r.flags&4 != 0 && len(r.json) > 6 {
		r.written = int64(binary.BigEndian.Uint64(append([]byte{0, 0}, r.json[:6]...)))
		var size int
		if r.author, size = binary.Uvarint(r.json[6:]); size <= 0 {
			r.short = true
			return r
		}
		r.json = r.json[6+size:]
	}
	table := crc32.MakeTable(crc32.Castagnoli)
	// so that a misplaced record is noticed
	sum := crc32.Update(uint32(r.rev)^uint32(r.rev>>32), table, v[:17])
	sum = crc32.Update(sum, table, v[21:])
	r.damaged = sum != r.crc
	return r
}

// String formats the record as a line.
func (r record) String() string {
	what := "written"
	switch {
	case r.short:
		return fmt.Sprintf("%6d  too short to be a record", r.rev)
	case r.flags&1 != 0:
		what = "deleted"
	case r.rev == r.created:
		what = "created"
	}
	check := "intact"
	if r.damaged {
		check = "DAMAGED"
	}
	when := ""
	if r.written != 0 {
		when = " at " + time.UnixMilli(r.written).UTC().Format("2006-01-02T15:04:05.000Z")
	}
	if r.author != 0 {
		when += fmt.Sprintf(" by author %d", r.author)
	}
	return fmt.Sprintf("%6d  %s %s%s  before: %d  %d bytes of JSON, %s", r.rev, what, r.key, when, r.prev, len(r.json), check)
}
