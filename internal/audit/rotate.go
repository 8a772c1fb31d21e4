package audit

// This file bounds the log's file: one that is large enough is moved aside under the time, another begun, and old ones are packed and removed. Names,
// flags and bounds are kube-apiserver's, whose log is written by gopkg.in/natefinch/lumberjack.v2:
//
//	audit.log    audit-2026-11-26T10-00-00.000.log    audit-2026-11-25T10-00-00.000.log.gz
//
// That library is not used, since a line has to be whole: it moves the file in the middle of one whose first part a full disk took, and a line that is
// longer than a whole file it refuses for ever. Here a file ends with a line's end, and may be longer by one line. What cannot be moved is
// written on: a file that is too long costs less than events that are lost.

import (
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
)

// Rotation says when a file is moved aside, and which of those are kept.
type Rotation struct {
	MaxSize    int  // mebibytes; 0: it is never moved
	MaxAge     int  // days; 0: whatever their age
	MaxBackups int  // 0: however many
	Compress   bool // those that are moved aside
}

const (
	backupTime  = "2006-01-02T15-04-05.000" // in UTC
	packed      = ".gz"
	dayOfBackup = 24 * time.Hour
)

// rotating is a file that is moved aside. Its writer is the Log, one at a time.
type rotating struct {
	path    string
	rules   Rotation
	most    int64
	file    *os.File
	size    int64
	torn    bool       // the file ends within a line
	sweeps  sync.Mutex // held by who packs and removes
	pending sync.WaitGroup
}

func openRotating(path string, rules Rotation) (*rotating, error) {
	w := &rotating{path: path, rules: rules, most: int64(rules.MaxSize) << 20}
	err := w.open()
	if err == nil {
		w.sweepLater()
	}
	return w, err
}

func (w *rotating) open() error {
	f, err := openAppend(w.path)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return errors.Join(err, f.Close())
	}
	w.file, w.size = f, info.Size()
	return nil
}

// Write appends whole lines, or the rest of one.
func (w *rotating) Write(p []byte) (int, error) {
	if w.size > 0 && !w.torn && w.size+int64(len(p)) > w.most {
		w.rotate()
	}
	n, err := w.file.Write(p)
	w.size += int64(n)
	if n > 0 {
		w.torn = p[n-1] != '\n'
	}
	return n, err
}

// rotate moves the file aside. Another of the same name, made within a millisecond or by somebody else, stays: then it is tried again with the next line.
func (w *rotating) rotate() {
	ext := filepath.Ext(w.path)
	aside := strings.TrimSuffix(w.path, ext) + "-" + time.Now().UTC().Format(backupTime) + ext
	if _, err := os.Lstat(aside); err == nil {
		return
	}
	old := w.file
	if runtime.GOOS == "windows" { // which moves no file that is open
		_ = old.Close()
		if moved := os.Rename(w.path, aside) == nil; w.open() == nil && moved {
			w.sweepLater()
		}
		return
	}
	if os.Rename(w.path, aside) != nil || w.open() != nil {
		w.file = old
		return
	}
	_ = old.Close() // whose lines are all in it
	w.sweepLater()
}

// Close waits for what is being packed.
func (w *rotating) Close() error {
	w.pending.Wait()
	return w.file.Close()
}

func (w *rotating) sweepLater() {
	w.pending.Go(func() {
		w.sweeps.Lock()
		defer w.sweeps.Unlock()
		w.sweep(time.Now())
	})
}

// sweep packs and removes what was moved aside. What fails is tried again after the next rotation.
func (w *rotating) sweep(now time.Time) {
	kept := 0
	for _, b := range w.backups() {
		switch old := w.rules.MaxAge > 0 && now.Sub(b.at) > time.Duration(w.rules.MaxAge)*dayOfBackup; {
		case old, w.rules.MaxBackups > 0 && kept >= w.rules.MaxBackups:
			_ = os.Remove(b.path)
		default:
			if kept++; w.rules.Compress && !strings.HasSuffix(b.path, packed) {
				_ = pack(b.path)
			}
		}
	}
}

// A backup is a file that was moved aside.
type backup struct {
	path string
	at   time.Time
}

// backups lists them, the newest first.
func (w *rotating) backups() (found []backup) {
	ext := filepath.Ext(w.path)
	base := strings.TrimSuffix(filepath.Base(w.path), ext) + "-"
	entries, _ := os.ReadDir(filepath.Dir(w.path))
	for _, e := range entries {
		stamp, ours := strings.CutPrefix(strings.TrimSuffix(e.Name(), packed), base)
		stamp, whole := strings.CutSuffix(stamp, ext)
		if at, err := time.Parse(backupTime, stamp); err == nil && ours && whole && e.Type().IsRegular() {
			found = append(found, backup{filepath.Join(filepath.Dir(w.path), e.Name()), at})
		}
	}
	slices.SortFunc(found, func(a, b backup) int { return b.at.Compare(a.at) })
	return found
}

// pack compresses a file. The packed one is there whole or not at all.
func pack(path string) (err error) {
	in, err := os.Open(path)
	if err != nil {
		return err
	}
	defer in.Close()
	part := path + packed + ".part"
	out, err := os.OpenFile(part, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	z := gzip.NewWriter(out)
	_, err = io.Copy(z, in)
	if err = errors.Join(err, z.Close(), out.Sync(), out.Close()); err == nil {
		err = os.Rename(part, path+packed)
	}
	if err != nil {
		return errors.Join(err, os.Remove(part))
	}
	return os.Remove(path)
}
