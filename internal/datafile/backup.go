package datafile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"apilet/internal/apierror"
	"apilet/internal/store"
)

const (
	// A client is disconnected if it does not read backupPiece bytes within backupWriteTimeout.
	backupPiece        = 1 << 20
	backupWriteTimeout = time.Minute
)

// Backups serves the requests of `apilet backup --server`.
type Backups struct {
	Store       *store.Store       // the store to copy
	Maintenance *store.Maintenance // makes the copy
	// the folder of the data file has been removed already
	Ephemeral bool
	// RevisionAt returns the current revision at the given time. Any error is returned to the
	// client.
	RevisionAt func(moment string) (rev int64, err error)
	WriteError func(http.ResponseWriter, *http.Request, error) // writes an error response
}

// ServeHTTP streams a backup. If the query names a moment (at=MOMENT), the backup has the state of
// that moment. A copy of the data file is created first, so a slow client does not block anything
// else. The request is not subject to --request-timeout as long as the client continues to read.
func (b *Backups) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet {
		b.WriteError(w, r, apierror.MethodNotAllowed())
		return
	}
	rev := int64(0)
	if moment := r.URL.Query().Get("at"); moment != "" {
		var err error
		if rev, err = b.RevisionAt(moment); err != nil {
			b.WriteError(w, r, err)
			return
		}
	}
	parent, pattern := filepath.Split(backupFolders(b.Store.File.Path))
	if b.Ephemeral { // whose folder has been removed
		parent = ""
	}
	dir, err := os.MkdirTemp(parent, pattern)
	if err != nil {
		b.WriteError(w, r, err)
		return
	}
	defer os.RemoveAll(dir)
	ctx, cancel := withoutDeadline(r.Context())
	defer cancel()
	path := filepath.Join(dir, "backup")
	if err := b.Maintenance.BackupAt(ctx, path, rev, nil); err != nil {
		switch {
		case store.IsDiskFull(err):
			err = apierrors.NewInternalError(store.ErrDiskFull)
		case errors.Is(err, store.ErrCompacted): // in the meantime
			err = apierrors.NewResourceExpired(fmt.Sprintf("revision %d has been compacted", rev))
		}
		b.WriteError(w, r, err)
		return
	}
	file, err := os.Open(path)
	if err != nil {
		b.WriteError(w, r, err)
		return
	}
	defer file.Close()
	if info, err := file.Stat(); err == nil {
		w.Header().Set("Content-Length", strconv.FormatInt(info.Size(), 10))
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	for control := http.NewResponseController(w); err == nil; {
		// if this fails, the server's write timeout still applies
		_ = control.SetWriteDeadline(time.Now().Add(backupWriteTimeout))
		_, err = io.CopyN(w, file, backupPiece)
	}
	if err != io.EOF {
		panic(http.ErrAbortHandler)
	}
}

// backupFolders returns the pattern of the temporary folders for backups of a data file. If a
// server is killed, the next server on the file removes them.
func backupFolders(data string) string {
	return filepath.Join(filepath.Dir(data), "."+filepath.Base(data)+".backup-*")
}

// RemoveLeftovers removes the folders of backups that were not finished.
func RemoveLeftovers(data string) {
	folders, _ := filepath.Glob(backupFolders(data))
	for _, folder := range folders {
		_ = os.RemoveAll(folder) // a folder that remains does no harm
	}
}

// withoutDeadline returns a context that is canceled when ctx is canceled, but not when the
// deadline of ctx expires. After the deadline, only the caller can cancel it.
func withoutDeadline(ctx context.Context) (context.Context, context.CancelFunc) {
	free, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		if errors.Is(ctx.Err(), context.Canceled) {
			cancel()
		}
	})
	return free, func() { stop(); cancel() }
}
