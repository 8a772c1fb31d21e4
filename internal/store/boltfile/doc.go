// Package boltfile is a bbolt file that a disk may damage and the power may leave at any moment: pages are read without trust, and a commit is one record
// in a write-ahead log beside the file, synced once.
//
//	err := boltfile.Create("apilet.db", fill) // there whole or not at all
//	verdict, err := boltfile.VetToWrite("apilet.db", look) // what was left is judged before bbolt maps it, and put back to where the log goes on from
//	f, err := boltfile.Open("apilet.db", verdict.Log, boltfile.Options{})
//	err = f.Update(func(l *boltfile.Ledger) error { return l.Put(boltfile.InKeys, key, value) }) // durable when there is no error
//	err = f.View(func(p *boltfile.Pages) error {
//		keys, _ := p.Bucket(boltfile.InKeys)
//		value = bytes.Clone(keys.Get(key))
//		return nil
//	})
//
// It knows four buckets by number, the bucket rev's sequence, and in the bucket meta the file's format and lineage, by which a log finds its file. What else
// is in the buckets is the affair of package store, its only user.
//
// Read file.go first (transactions, and what follows from damage), then wal.go (the log; its checkpoints), logfile.go (the log's bytes), proof.go (whether file and log belong together), ledger.go (what is in
// a record), vet.go and recover.go (a start after whatever happened), tree.go (reading), guard.go (writing) and finger.go (finding the next record), page.go
// (how pages lie), create.go and damage.go.
//
// The words are the field's: write-ahead log, checkpoint, group commit and torn page as in PostgreSQL's documentation ("Reliability and the Write-Ahead Log")
// and SQLite's ("Write-Ahead Logging"); copy-on-write pages, whose other name is shadow paging, in LMDB's. What a failed sync means is from "Can Applications
// Recover from fsync Failures?" (USENIX ATC 2020).
//
// Invariants: what was answered is on the disk; a damaged page is an error of who needs it (ErrDamaged), and of nobody else; bbolt loads no page for a change
// that a guard has not vetted; a sync that has failed is not tried again.
package boltfile
