package audit

// This file rotates the log file. If the file is too large, it is renamed to include the time, and
// a new file is created. Old files are compressed and removed. It is compatible with
// kube-apiserver, which uses gopkg.in/natefinch/lumberjack.v2:
//
//	audit.log    audit-2026-11-26T10-00-00.000.log    audit-2026-11-25T10-00-00.000.log.gz
//
// apilet does not use that library, because it splits lines and rejects long ones: it rotates the
// file in the middle of a line if a full disk has accepted only its first part, and it always
// rejects a line that is longer than the maximum size. Here the file always ends with a complete
// line. It may exceed the limit by one line. If the file cannot be renamed, writing continues,
// because a large file is better than lost events.

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

// Rotation is the configuration of log rotation.
type Rotation struct {
	MaxSize    int  // mebibytes; 0 disables rotation
	MaxAge     int  // days; 0 means no limit
	MaxBackups int  // 0 means no limit
	Compress   bool // compress old files
}

const (
	backupTime       = "2006-01-02T15-04-05.000" // in UTC
	compressedSuffix = ".gz"
	dayOfBackup      = 24 * time.Hour
)

// rotatingFile is a log file that is rotated. It is used by one Log, and not safe for concurrent
// use.
type rotatingFile struct {
	path     string
	rules    Rotation
	maxBytes int64
	file     *os.File
	size     int64
	torn     bool       // the file ends with an incomplete line
	sweeps   sync.Mutex // held while old files are compressed and removed
	pending  sync.WaitGroup
}

func openRotating(path string, rules Rotation) (*rotatingFile, error) {
	w := &rotatingFile{path: path, rules: rules, maxBytes: int64(rules.MaxSize) << 20}
	err := w.open()
	if err == nil {
		w.sweepLater()
	}
	return w, err
}

func (w *rotatingFile) open() error {
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

// Write appends p to the file, which must contain complete lines, or the rest of an incomplete
// line.
func (w *rotatingFile) Write(p []byte) (int, error) {
	if w.size > 0 && !w.torn && w.size+int64(len(p)) > w.maxBytes {
		w.rotate()
	}
	n, err := w.file.Write(p)
	w.size += int64(n)
	if n > 0 {
		w.torn = p[n-1] != '\n'
	}
	return n, err
}

// rotate renames the file. If the new name exists, because of a rotation within the same
// millisecond or another program, rotate does nothing and is tried again with the next line.
func (w *rotatingFile) rotate() {
	ext := filepath.Ext(w.path)
	aside := strings.TrimSuffix(w.path, ext) + "-" + time.Now().UTC().Format(backupTime) + ext
	if _, err := os.Lstat(aside); err == nil {
		return
	}
	old := w.file
	if runtime.GOOS == "windows" { // cannot rename open files
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
	_ = old.Close() // all of its lines were written
	w.sweepLater()
}

// Close waits for compression to finish and closes the file.
func (w *rotatingFile) Close() error {
	w.pending.Wait()
	return w.file.Close()
}

func (w *rotatingFile) sweepLater() {
	w.pending.Go(func() {
		w.sweeps.Lock()
		defer w.sweeps.Unlock()
		w.sweep(time.Now())
	})
}

// sweep compresses and removes old files. Failures are retried after the next rotation.
func (w *rotatingFile) sweep(now time.Time) {
	kept := 0
	for _, b := range w.backups() {
		switch old := w.rules.MaxAge > 0 && now.Sub(b.at) > time.Duration(w.rules.MaxAge)*dayOfBackup; {
		case old, w.rules.MaxBackups > 0 && kept >= w.rules.MaxBackups:
			_ = os.Remove(b.path)
		default:
			if kept++; w.rules.Compress && !strings.HasSuffix(b.path, compressedSuffix) {
				_ = pack(b.path)
			}
		}
	}
}

// A backup is an old log file.
type backup struct {
	path string
	at   time.Time
}

// backups returns the old files, newest first.
func (w *rotatingFile) backups() (found []backup) {
	ext := filepath.Ext(w.path)
	base := strings.TrimSuffix(filepath.Base(w.path), ext) + "-"
	entries, _ := os.ReadDir(filepath.Dir(w.path))
	for _, e := range entries {
		stamp, ours := strings.CutPrefix(strings.TrimSuffix(e.Name(), compressedSuffix), base)
		stamp, whole := strings.CutSuffix(stamp, ext)
		if at, err := time.Parse(backupTime, stamp); err == nil && ours && whole && e.Type().IsRegular() {
			found = append(found, backup{filepath.Join(filepath.Dir(w.path), e.Name()), at})
		}
	}
	slices.SortFunc(found, func(a, b backup) int { return b.at.Compare(a.at) })
	return found
}

// pack compresses a file. The result is renamed into place when it is complete.
func pack(path string) (err error) {
	in, err := os.Open(path)
	if err != nil {
		return err
	}
	defer in.Close()
	part := path + compressedSuffix + ".part"
	out, err := os.OpenFile(part, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	z := gzip.NewWriter(out)
	_, err = io.Copy(z, in)
	if err = errors.Join(err, z.Close(), out.Sync(), out.Close()); err == nil {
		err = os.Rename(part, path+compressedSuffix)
	}
	if err != nil {
		return errors.Join(err, os.Remove(part))
	}
	return os.Remove(path)
}
