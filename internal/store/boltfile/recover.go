package boltfile

// This file restores a file to the state of its last checkpoint after a power failure or kill -9,
// before bbolt opens it.

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"
)

// VetToWrite checks a file before it is opened for writing. If its server left a log, VetToWrite
// restores the log's checkpoint in the file. look has the same meaning as in Vet.
func VetToWrite(path string, look func(*Pages) error) (Verdict, error) {
	verdict, err := Vet(path, false, nil, look)
	if err == nil && verdict.Log != nil {
		err = verdict.Log.restoreCheckpoint(path)
	}
	return verdict, err
}

// vetReplay vets the pages that a start reads, and the pages that the replay will change, because
// the replay does not use a guard. If this check fails, both files are unchanged, because nothing
// has been written yet.
func (l *LeftoverLog) vetReplay(p *Pages) error {
	g := &Guard{p: p, marks: map[uint64]PageMark{}}
	if err := errors.Join(g.vetFreelist(), g.vetAll(Tree{p: p, root: p.root})); err != nil {
		return err
	}
	var trees [len(Buckets)]Tree
	for which, name := range Buckets {
		t, ok := p.Bucket(byte(which))
		if !ok {
			return NewDamage("the bucket %s is missing", name)
		}
		if trees[which] = t; which == InRev { // this bucket is large, and a start only reads the newest record
			continue
		}
		if err := g.vetAll(t); err != nil {
			return err
		}
	}
	newest := binary.BigEndian.AppendUint64(nil, trees[InRev].Sequence)
	if _, err := g.vetPath(trees[InRev], newest); err != nil {
		return err
	}
	for _, r := range l.records {
		if err := eachNoted(r.body, func(what byte, key, _ []byte, _ uint64) error {
			switch t := trees[what&15]; what &^ 15 {
			case notedSequence:
				return nil
			case notedDelete:
				return g.vetAround(t, key)
			default:
				_, err := g.vetPath(t, key)
				return err
			}
		}); err != nil {
			return err
		}
	}
	return nil
}

// repairCopies writes h to both copies of the head, unless they are already equal to it. If they
// differ, the older copy describes a half that will be overwritten.
func (h *logHead) repairCopies(path string) error {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	b, there := h.encode(), make([]byte, logBlock)
	for n := range int64(2) {
		if size, _ := file.ReadAt(there, n*logBlock); size == logBlock && bytes.Equal(there, b) {
			continue
		}
		if _, err := file.WriteAt(b, n*logBlock); err != nil {
			return err
		}
		if err := file.Sync(); err != nil {
			return err
		}
	}
	return nil
}

// restoreCheckpoint makes the checkpoint the newest commit of the data file, also for bbolt, and
// syncs the file. It holds a shared lock on the file, so several processes may do this
// concurrently. It fails if the log has changed since it was read, because then another server has
// used the file.
func (l *LeftoverLog) restoreCheckpoint(path string) error {
	db, file, err := openShared(path)
	if err != nil {
		return err
	}
	defer db.Close()
	now, err := readLog(path)
	if err != nil {
		return err
	}
	if now == nil || now.head != l.head || len(now.records) != len(l.records) {
		return fmt.Errorf("%s is in use by another process: stop that one first, or choose another file", path)
	}
	if err := l.head.repairCopies(l.path); err != nil || !l.Used() {
		return err
	}
	m, _ := decodeMeta(l.head.meta[:])
	t := &pageTree{}
	t.take(l, m)
	note, err := l.endNote(file)
	if err != nil {
		return err
	}
	other := 1 - t.meta.at/int64(t.pageSize)
	page, before := make([]byte, t.pageSize), t.meta.before(other) // the complete meta page of the checkpoint
	copy(page, l.head.meta[:])
	copy(page[noteAt:], note)
	copy(before[noteAt:], note)
	return errors.Join(writeSynced(path, page, t.meta.at), writeSynced(path, before, other*int64(t.pageSize)))
}

// endNote returns the note for a restored file. The note preserves information from the meta pages,
// because they are overwritten.
func (l *LeftoverLog) endNote(file *os.File) ([]byte, error) {
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	inode, _, _ := identity(info)
	return logNote{number: l.head.number + uint64(len(l.records)), generation: l.head.generation, inode: inode, written: time.Now()}.encode(), nil
}

// writeSynced writes to an existing file and syncs it. Two processes may write the same bytes
// concurrently.
func writeSynced(path string, b []byte, at int64) error {
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	if _, err := file.WriteAt(b, at); err != nil {
		return err
	}
	return file.Sync()
}
