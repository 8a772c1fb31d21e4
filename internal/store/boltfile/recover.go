package boltfile

// This file brings a file that a power cut or kill -9 has left to the state of its last checkpoint, before bbolt opens it.

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"
)

// VetToWrite vets a file before it is written. If its server left a log, VetToWrite brings the file back to the log's checkpoint. look is Vet's.
func VetToWrite(path string, look func(*Pages) error) (Verdict, error) {
	verdict, err := Vet(path, false, nil, look)
	if err == nil && verdict.Log != nil {
		err = verdict.Log.putBack(path)
	}
	return verdict, err
}

// vetReplay vets the pages that a start reads, and those that the replay is about to change, whose way into bbolt leads past no guard. It does so before anything
// is written: a start that is refused leaves file and log as they are.
func (l *LeftLog) vetReplay(p *Pages) error {
	g := &Guard{p: p, marks: map[uint64]PageMark{}}
	if err := errors.Join(g.vetFreelist(), g.vetAll(Tree{p: p, root: p.root})); err != nil {
		return err
	}
	var trees [len(Buckets)]Tree
	for which, name := range Buckets {
		t, ok := p.Bucket(byte(which))
		if !ok {
			return Damaged("the bucket %s is missing", name)
		}
		if trees[which] = t; which == InRev { // it is large, and a start reads its newest record alone
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

// settle makes both copies of a head the same. Of two that differ the older one tells of what is about to be written over.
func (h *logHead) settle(path string) error {
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

// putBack makes the checkpoint the newest commit of the data file, for bbolt too, and syncs that. Who does so holds the file's lock together with others
// who may be at the same, and has found the log as it was: a server that had the file meanwhile has left another one.
func (l *LeftLog) putBack(path string) error {
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
	if err := l.head.settle(l.path); err != nil || !l.Used() {
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
	page, before := make([]byte, t.pageSize), t.meta.before(other) // the checkpoint's own, whole
	copy(page, l.head.meta[:])
	copy(page[noteAt:], note)
	copy(before[noteAt:], note)
	return errors.Join(writeSynced(path, page, t.meta.at), writeSynced(path, before, other*int64(t.pageSize)))
}

// endNote is the note of a file that is put back: it keeps what the meta pages said that are written over.
func (l *LeftLog) endNote(file *os.File) ([]byte, error) {
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	inode, _, _ := identity(info)
	return logNote{number: l.head.number + uint64(len(l.records)), generation: l.head.generation, inode: inode, written: time.Now()}.encode(), nil
}

// writeSynced writes into an existing file. Two processes may do so at once with the same bytes.
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
