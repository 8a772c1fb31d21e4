// Package boltfile implements a bbolt file that tolerates disk damage and power failures. It
// verifies pages when it reads them. Each commit appends a single record to the write-ahead log and
// syncs it once. The log is next to the file.
//
//	err := boltfile.Create("apilet.db", fill) // creates a complete file or none
//	verdict, err := boltfile.VetToWrite("apilet.db", look) // checks the file before bbolt maps it, and restores the log's checkpoint
//	f, err := boltfile.Open("apilet.db", verdict.Log, boltfile.Options{})
//	err = f.Update(func(l *boltfile.WriteTx) error { return l.Put(boltfile.InKeys, key, value) }) // durable if err is nil
//	err = f.View(func(p *boltfile.Pages) error {
//		keys, _ := p.Bucket(boltfile.InKeys)
//		value = bytes.Clone(keys.Get(key))
//		return nil
//	})
//
// The package uses four buckets, the sequence of the bucket rev, and the format and the lineage in
// the bucket meta. The lineage connects a log with its data file. All other content belongs to
// package store, the only user of this package.
//
// Start reading with file.go: transactions, and the handling of damage. The other files are:
//
//   - wal.go: the log and its checkpoints
//   - overlay.go: pages of commits in memory until the next checkpoint
//   - logfile.go: the format of the log
//   - direct.go: writing records of the log
//   - proof.go: the check that data file and log belong together
//   - ledger.go: the content of a log record
//   - vet.go and recover.go: the start after a crash
//   - tree.go: reading
//   - guard.go: writing
//   - searchhint.go: fast lookup of the next record
//   - page.go: the format of pages
//   - create.go: the creation of files
//   - damage.go: the error for damage
//
// The terms write-ahead log, checkpoint, group commit and torn page have the same meaning as in the
// documentation of PostgreSQL ("Reliability and the Write-Ahead Log") and SQLite ("Write-Ahead
// Logging"). Copy-on-write pages, also known as shadow paging, are described in the documentation
// of LMDB. The paper "Can Applications Recover from fsync Failures?" (USENIX ATC 2020) describes
// the consequences of a failed sync.
//
// The package maintains these invariants:
//
//   - An acknowledged write is on the disk.
//   - A damaged page causes errors only in operations that need it (ErrDamaged).
//   - bbolt loads a page for a change only after a guard has vetted it.
//   - A failed sync is never retried.
package boltfile
