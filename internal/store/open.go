package store

// This file opens a store. It determines the kind of file, creates the file if it does not exist,
// and checks an existing one.

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"go.etcd.io/bbolt"

	"apilet/internal/store/boltfile"
)

// Open opens the file at path and creates it if it does not exist.
func Open(path string, opts Options) (*Store, error) {
	path, err := preparePath(path, opts.Ephemeral)
	if err != nil {
		return nil, err
	}
	if opts.Ephemeral && opts.Base != "" {
		err := boltfile.Copy(opts.Base, path, func(p *boltfile.Pages) error { return checkFile(p, opts.Base, Format) })
		if err != nil {
			os.RemoveAll(filepath.Dir(path))
			return nil, fmt.Errorf("--base: %w", err)
		}
	}
	return modeOf(&opts).open(path, opts)
}

// ownLog returns the mode for a store that uses its own log.
func ownLog() mode {
	return mode{format: Format, bounded: true, open: open, commit: (*Store).commitInRoom,
		newest: func(st *Store, _ context.Context) (int64, error) { return st.Revision(), nil },
		share:  func(_ context.Context, _ string, fresh []byte) ([]byte, error) { return fresh, nil }, closing: func(*Store) error { return nil }}
}

// modeOf returns the mode of a store with these options.
func modeOf(opts *Options) mode {
	r := opts.Replica
	if r == nil {
		return ownLog()
	}
	return mode{format: replicaFormat, lineage: r.Lineage[:], others: true, remade: true, unlogged: true, commit: (*Store).propose,
		open:   func(path string, opts Options) (*Store, error) { return openReplica(path, opts, open) },
		newest: func(_ *Store, ctx context.Context) (int64, error) { return r.Newest(ctx) }, share: r.Share, last: r.Tombstone,
		closing: (*Store).syncReplica, behind: r.Behind}
}

func open(path string, opts Options) (*Store, error) {
	_, err := os.Lstat(path)
	fresh := errors.Is(err, fs.ErrNotExist)
	if _, log := os.Lstat(path + boltfile.LogSuffix); fresh && log == nil {
		return nil, fmt.Errorf("%s is missing, and its log %s is there: put the data file back, or remove the log to start with a new file", path, path+boltfile.LogSuffix)
	}
	if fresh {
		err = boltfile.Create(path, func(db *bbolt.DB) error { return db.Update(opts.initBuckets) })
	}
	if err != nil && !errors.Is(err, fs.ErrExist) { // it may have been created in the meantime
		return nil, fmt.Errorf("cannot open %s: %w", path, err)
	}
	verdict, err := boltfile.VetToWrite(path, func(p *boltfile.Pages) error { return checkFile(p, path, modeOf(&opts).format) })
	if err != nil {
		return nil, err
	}
	st := &Store{
		Opts: opts, mode: modeOf(&opts), tallies: map[string]*tally{}, marks: map[uint64]boltfile.PageMark{},
		queue: make(chan *pendingWrite, writeBatchMax), closing: make(chan struct{}), stopped: make(chan struct{}),
		rooms: newRoomMaker(),
	}
	st.pendingWrites.New = func() any { return &pendingWrite{answer: make(chan struct{}, 1)} }
	st.warnAbout(path, fresh, verdict)
	if err := boltfile.RecoverFaults(func() error { return st.load(path, verdict.Log) }); err != nil {
		st.File.Abandon()
		return nil, boltfile.ExplainOpen(path, err)
	}
	st.limit()
	go st.write() // runs until Close
	return st, nil
}

// preparePath returns the path of the file. An ephemeral file gets a new directory for temporary
// files.
func preparePath(path string, ephemeral bool) (string, error) {
	if !ephemeral {
		return filepath.Abs(path)
	}
	dir, err := os.MkdirTemp("", "apilet-")
	return filepath.Join(dir, "apilet.db"), err
}

// load opens the vetted file and reads the data that the store keeps in memory. If the data cannot
// be read, it returns an error before writing to the file.
func (st *Store) load(path string, left *boltfile.LeftoverLog) (err error) {
	st.File, err = boltfile.Open(path, left, boltfile.Options{Ephemeral: st.Opts.Ephemeral, Unlogged: st.Opts.Ephemeral || st.mode.unlogged,
		LogBytes: st.Opts.LogBytes, Fatal: st.Opts.Fatal, Damaged: st.Opts.Damaged, Warn: st.Opts.Warn})
	if err != nil {
		return err
	}
	backup, made := false, int64(0)
	err = st.readSnapshot(func(s *snapshot) error {
		backup, made = s.meta().Get([]byte("backup")) != nil, boltfile.MetaInt(s.meta(), "backup")
		return st.countKeys(s)
	})
	if err == nil && backup {
		bump := int64(backupRevBump)
		if made > 0 { // a forged time must not overflow
			bump += max(0, st.Now().Unix()-made) * backupRevRate
		}
		err = st.File.Transact(adoptBackup(bump))
	}
	if err != nil {
		return err
	}
	if st.Opts.Ephemeral && runtime.GOOS != "windows" { // Windows cannot remove an open file
		os.RemoveAll(filepath.Dir(st.File.Path))
	}
	return st.readSnapshot(func(s *snapshot) error {
		copy(st.id[:], s.meta().Get([]byte("lineage")))
		st.currentRev.Store(int64(s.revs.Sequence))
		st.compactRev.Store(boltfile.MetaInt(s.meta(), "compact"))
		st.shared.Store(boltfile.MetaInt(s.meta(), "shared") != 0)
		st.log = newEventLog(st.currentRev.Load())
		st.authors.load(s.authors())
		st.lastTime = s.newestTime()
		return nil
	})
}

func (st *Store) warnAbout(path string, fresh bool, verdict boltfile.Verdict) {
	warn := st.Opts.Warn
	if warn == nil {
		return
	}
	if fresh && !st.Opts.Ephemeral {
		warn("made a new, empty data file " + path)
	}
	if verdict.Log.Used() {
		warn(fmt.Sprintf("%s was not shut down cleanly; %d commits are taken over from its log", path, verdict.Log.Count()))
	}
	if verdict.Moved {
		warn(path + " was copied, moved or changed since a server wrote it; all of it has been checked")
	}
	if !verdict.Clean {
		warn(path + " does not list its free pages, since it was not shut down cleanly; all pages have been checked")
	}
	if verdict.OneMeta {
		warn(path + " has lost one of its two meta pages: if it was the newer one, the last commit is gone")
	}
}

func initBuckets(tx *bbolt.Tx) error {
	for _, name := range boltfile.Buckets {
		if _, err := tx.CreateBucket(name); err != nil {
			return err
		}
	}
	l := &boltfile.WriteTx{Tx: tx}
	return errors.Join(l.PutMetaInt("format", Format), putLineage(l))
}

// initBuckets creates the buckets of a new file. If the store is a replica, the lineage of the log
// is used.
func (o *Options) initBuckets(tx *bbolt.Tx) error {
	m := modeOf(o)
	if err := initBuckets(tx); err != nil || m.lineage == nil {
		return err
	}
	return errors.Join((&boltfile.WriteTx{Tx: tx}).PutMetaInt("format", m.format), tx.Bucket(boltfile.Buckets[boltfile.InMeta]).Put([]byte("lineage"), m.lineage))
}

func putLineage(l *boltfile.WriteTx) error {
	id := make([]byte, 16)
	rand.Read(id)
	return l.Put(boltfile.InMeta, []byte("lineage"), id)
}

// checkFile is called before a file is opened. It calls checkFormat first. If the file was copied,
// it also inspects every record and key, since the copy may have pages of different times.
func checkFile(p *boltfile.Pages, path string, want int64) error {
	// If a replica was not closed, its content must be checked, because there is no log for it.
	suspect := p.Moved || want == replicaFormat && !p.ListsFree()
	if err := checkFormat(p, path, want); err != nil || !suspect {
		return err
	}
	var rep Report
	rep.inspect(p, nil)
	if len(rep.Problems) > 0 {
		return boltfile.NewDamage("%s; it was copied while a server wrote it", rep.Problems[0])
	}
	return nil
}

// checkFormat returns an error if the file was created by another program or if its format is not
// want. It is called before anything is written. If want is 0, all formats of this package are
// accepted.
func checkFormat(p *boltfile.Pages, path string, want int64) error {
	for which := range byte(boltfile.InAuthors) {
		if _, ok := p.Bucket(which); !ok {
			return fmt.Errorf("%s is a bbolt file of another program: choose another file", path)
		}
	}
	meta, _ := p.Bucket(boltfile.InMeta)
	format := boltfile.MetaInt(meta, "format")
	own, replica := isOwnFormat(format), format == replicaFormat
	switch {
	case own && want != replicaFormat, replica && want != Format:
		if _, ok := p.Bucket(boltfile.InAuthors); !ok {
			return boltfile.NewDamage("the bucket authors is missing")
		}
	case replica:
		return fmt.Errorf("%s is a replica of an etcd cluster: use it with --etcd-servers, or choose another file", path)
	case own:
		return fmt.Errorf("%s contains objects that are not from an etcd cluster: choose another file for --etcd-servers", path)
	default:
		return fmt.Errorf("%s has format %d, and this version of apilet reads format %d: use the version that wrote it", path, format, cmp.Or(want, Format))
	}
	return nil
}

// adoptBackup returns a job that creates a new history when a backup is opened for the first time.
func adoptBackup(bump int64) func(*boltfile.WriteTx) error {
	return func(l *boltfile.WriteTx) error {
		s, err := newStage(l)
		if err == nil {
			err = s.guard.VetMeta()
		}
		if err != nil {
			return err
		}
		rev := s.rev + bump
		return errors.Join(l.Remove(boltfile.InMeta, []byte("backup")), putLineage(l), l.PutMetaInt("compact", rev),
			l.PutMetaInt("swept", rev), l.SetSequence(boltfile.InRev, uint64(rev)))
	}
}
