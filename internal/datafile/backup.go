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
	backupPiece    = 1 << 20     // a client that does not read one of these
	backupPatience = time.Minute // within this time gets no more
)

// Backups serves what `apilet backup --server` asks for.
type Backups struct {
	Store       *store.Store                                    // what is copied
	Maintenance *store.Maintenance                              // makes the copy
	Ephemeral   bool                                            // the data file has no folder any more
	At          func(moment string) (rev int64, err error)      // the revision that was current then; its errors are told
	Fail        func(http.ResponseWriter, *http.Request, error) // answers with an error
}

// ServeHTTP streams a backup, of what was there at a moment where the query names one (at=MOMENT): made beside the data file first, so that a slow
// client holds up nothing but its own connection. It may take longer than --request-timeout, as long as the client is there and reads.
func (b *Backups) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet {
		b.Fail(w, r, apierror.MethodNotAllowed())
		return
	}
	rev := int64(0)
	if moment := r.URL.Query().Get("at"); moment != "" {
		var err error
		if rev, err = b.At(moment); err != nil {
			b.Fail(w, r, err)
			return
		}
	}
	parent, pattern := filepath.Split(backupFolders(b.Store.File.Path))
	if b.Ephemeral { // whose folder is gone already
		parent = ""
	}
	dir, err := os.MkdirTemp(parent, pattern)
	if err != nil {
		b.Fail(w, r, err)
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
		case errors.Is(err, store.ErrCompacted): // since the moment was looked up
			err = apierrors.NewResourceExpired(fmt.Sprintf("revision %d has been compacted", rev))
		}
		b.Fail(w, r, err)
		return
	}
	file, err := os.Open(path)
	if err != nil {
		b.Fail(w, r, err)
		return
	}
	defer file.Close()
	if info, err := file.Stat(); err == nil {
		w.Header().Set("Content-Length", strconv.FormatInt(info.Size(), 10))
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	for control := http.NewResponseController(w); err == nil; {
		_ = control.SetWriteDeadline(time.Now().Add(backupPatience)) // at worst the server's own limit holds
		_, err = io.CopyN(w, file, backupPiece)
	}
	if err != io.EOF {
		panic(http.ErrAbortHandler)
	}
}

// backupFolders is the pattern of the folders in which the backups of a data file are made. Those of a server that was killed are
// removed by the next one, which has the file to itself.
func backupFolders(data string) string {
	return filepath.Join(filepath.Dir(data), "."+filepath.Base(data)+".backup-*")
}

// RemoveLeftovers removes the folders of backups that were not finished.
func RemoveLeftovers(data string) {
	folders, _ := filepath.Glob(backupFolders(data))
	for _, folder := range folders {
		_ = os.RemoveAll(folder) // what stays is in nobody's way
	}
}

// withoutDeadline is cancelled with ctx, but not by its deadline. Once that has passed nothing cancels it but the caller.
func withoutDeadline(ctx context.Context) (context.Context, context.CancelFunc) {
	free, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		if errors.Is(ctx.Err(), context.Canceled) {
			cancel()
		}
	})
	return free, func() { stop(); cancel() }
}
