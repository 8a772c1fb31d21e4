package boltfile_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"go.etcd.io/bbolt"

	"apilet/internal/store/boltfile"
)

// Example creates, writes and reads a file. The log is stored next to the file while it is open.
func Example() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "a.db")
	err = boltfile.Create(path, func(db *bbolt.DB) error {
		return db.Update(func(tx *bbolt.Tx) error {
			for _, name := range boltfile.Buckets {
				if _, err := tx.CreateBucket(name); err != nil {
					return err
				}
			}
			return (&boltfile.WriteTx{Tx: tx}).PutMetaInt("format", boltfile.FormatClosed)
		})
	})
	any := func(*boltfile.Pages) error { return nil }
	verdict, unsound := boltfile.VetToWrite(path, any)
	f, unopened := boltfile.Open(path, verdict.Log, boltfile.Options{})
	if err := errors.Join(err, unsound, unopened); err != nil {
		fmt.Println(err)
		return
	}
	err = f.Update(func(l *boltfile.WriteTx) error {
		guard, err := l.Guard(map[uint64]boltfile.PageMark{})
		if err != nil {
			return err
		}
		keys, err := guard.Bucket(l, boltfile.InKeys)
		if err != nil {
			return err
		}
		return keys.Put([]byte("a"), []byte("1"))
	})
	fmt.Println("written:", err)
	err = f.View(func(p *boltfile.Pages) error {
		keys, _ := p.Bucket(boltfile.InKeys)
		fmt.Printf("a is %s\n", keys.Get([]byte("a")))
		return nil
	})
	_, log := os.Stat(path + boltfile.LogSuffix)
	fmt.Println("read:", err, "the log:", log)
	fmt.Println("closed:", f.Close())
	if _, log = os.Stat(path + boltfile.LogSuffix); errors.Is(log, os.ErrNotExist) {
		fmt.Println("the log is gone")
	}
	// Output:
	// written: <nil>
	// a is 1
	// read: <nil> the log: <nil>
	// closed: <nil>
	// the log is gone
}
