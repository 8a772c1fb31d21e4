// Package datacmd implements the commands for data files: backup, fork, check, defrag and migrate.
//
//	rows := datacmd.Commands(logger) // for the table of package commandline
//
// All commands except for `apilet backup --server` and `apilet fork` open the file themselves, and
// fail if a server has it open. To back up a running server, the command sends a bearer token and
// trusts a private authority, or uses a kubeconfig that contains a certificate or a token. With
// other credentials (an exec plugin, a password), use kubectl to download the backup (`kubectl get
// --raw /debug/backup > copy.db`) and verify it with `apilet check`.
//
// Invariant: a downloaded file gets its final name only after it has been received completely,
// checked to the last record and synced, and only if no file of that name exists.
package datacmd

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/rs/zerolog"
	"github.com/tidwall/gjson"

	"apilet/internal/atomicfile"
	"apilet/internal/commandline"
	"apilet/internal/corrupt"
	"apilet/internal/encryption"
	"apilet/internal/etcd"
	"apilet/internal/kubeconfig"
	"apilet/internal/options"
	"apilet/internal/request"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

// A command contains the values of the command-line flags.
type command struct {
	data   string
	remote kubeconfig.Remote // the server to download a backup from
	at     string            // the moment to fork
	keys   string            // path of the encryption configuration, used by commands that decode objects
	etcd   options.Etcd
	toFile bool // migrate from etcd to a file
	goBack bool // migrate does not raise etcd's revision

	compact bool // defrag first deletes the history
	logger  func(io.Writer) zerolog.Logger
}

// Commands returns the rows for the table of commands. logger creates the log for the commands that
// need one.
func Commands(logger func(io.Writer) zerolog.Logger) []commandline.Command {
	c := &command{logger: logger}
	none, flags := []int{0}, func(define func(*flag.FlagSet)) []commandline.FlagGroup {
		return []commandline.FlagGroup{{Title: "Flags", Define: define}}
	}
	return []commandline.Command{
		{Name: "backup", Args: "DEST", ArgCounts: []int{1}, Description: "copy the objects of a running server, or of a data file that is not in use, to a new file",
			Groups: flags(c.defineBackup), Run: c.runBackup},
		{Name: "fork", Args: "DEST", ArgCounts: []int{1}, Description: "copy the objects of a running server, current or past, to a new file for --base",
			Groups: flags(c.defineFork), Run: c.runFork},
		{Name: "check", ArgCounts: none, Description: "check all pages and objects of a data file that is not in use", Groups: flags(c.defineCheck), Run: c.runCheck},
		{Name: "defrag", ArgCounts: none, Description: "rewrite a data file that is not in use without its free pages", Groups: flags(c.defineDefrag), Run: c.runDefrag},
		{Name: "migrate", ArgCounts: none, Description: "copy the objects of a data file that is not in use to an etcd cluster, or vice versa",
			Groups: append(flags(c.defineCheck), commandline.FlagGroup{Title: "The etcd cluster", Define: c.defineMigration}), Run: c.runMigrate},
	}
}

func (c *command) defineData(f *flag.FlagSet) { options.Data(f, &c.data) }

func (c *command) defineDefrag(f *flag.FlagSet) {
	c.defineData(f)
	f.BoolVar(&c.compact, "compact", false, "first delete the history, that is, all versions that were replaced or deleted. apilet log no longer finds them, and clients list again")
}

// defineCheck defines the flags of commands that decode objects.
func (c *command) defineCheck(f *flag.FlagSet) {
	c.defineData(f)
	options.EncryptionConfig(f, &c.keys)
}

func (c *command) defineBackup(f *flag.FlagSet) {
	c.defineData(f)
	c.defineRemote(f)
}

func (c *command) defineFork(f *flag.FlagSet) {
	f.StringVar(&c.at, "at", "", "the `moment` to copy: a revision, a time, or a relative time such as -5m (default: now)")
	c.defineRemote(f)
}

func (c *command) defineRemote(f *flag.FlagSet) {
	f.StringVar(&c.remote.Kubeconfig, "kubeconfig", "", "connect to the server of the current context of this `file`, as its user")
	f.StringVar(&c.remote.Server, "server", "", "`URL` of the server")
	f.StringVar(&c.remote.TokenFile, "token-file", "", "`file` with the bearer token for --server")
	f.StringVar(&c.remote.CAFile, "certificate-authority", "", "PEM `file` with CA certificates to verify --server")
}

// runCheck prints the report of store.CheckObjects. It returns an error if there are problems.
func (c *command) runCheck(call commandline.Call) error {
	path, seen := c.data, &store.Progress{}
	defer seen.Show(call.Errors, "apilet check", time.Second)()
	keyed := keyCount{}
	each := store.Inspection{Decodes: corrupt.NewDecodeCheck(scheme.NewRegistry()), Encrypted: keyed.add}
	if c.keys != "" {
		keys, err := encryption.Open(context.Background(), encryption.Config{Path: c.keys, Log: c.logger(call.Errors)})
		if err != nil {
			return err
		}
		each.Sealing = keys.Sealing()
	}
	report, err := store.CheckObjects(path, each, seen)
	if err != nil {
		return err
	}
	fmt.Fprintf(call.Out, "%s: revision %d, compacted to %d, %d objects, %d records\n", path, report.Revision, report.Compacted, report.Objects, report.Records)
	if report.Logged > 0 {
		fmt.Fprintf(call.Out, "%d commits lie in its log, which the next start takes over: objects and records are those of before\n", report.Logged)
	}
	if report.Sealed > 0 {
		fmt.Fprintf(call.Out, "%d objects are encrypted, and were not looked into: --encryption-provider-config says how they can be read\n", report.Sealed)
		keyed.print(call.Out)
	}
	for _, problem := range report.Problems {
		fmt.Fprintln(call.Out, problem)
	}
	if len(report.Problems) > 0 {
		return fmt.Errorf("%s: %d problems", path, len(report.Problems))
	}
	return nil
}

// runDefrag rewrites the file, and prints its size before and after, including the log.
func (c *command) runDefrag(call commandline.Call) error {
	seen := &store.Progress{}
	defer seen.Show(call.Errors, "apilet defrag", time.Second)()
	before, err := store.DiskUsage(c.data)
	if err == nil && c.compact {
		err = store.CompactFile(c.data)
	}
	if err == nil {
		err = store.Defrag(c.data, seen)
	}
	if err != nil {
		return err
	}
	after, err := store.DiskUsage(c.data)
	if err != nil {
		return err
	}
	fmt.Fprintf(call.Out, "%s: %d bytes before, %d bytes after\n", c.data, before, after)
	versions, bytes, err := store.History(c.data)
	if versions > 0 {
		fmt.Fprintf(call.Out, "%d old versions (%d bytes) are kept as history. Compaction would free them: `apilet defrag --compact`, or a server after --history\n", versions, bytes)
	}
	return err
}

// runBackup creates a new file with the objects from a running server (if --server or --kubeconfig
// is set) or from a data file that is not in use.
func (c *command) runBackup(call commandline.Call) error {
	seen := &store.Progress{}
	defer seen.Show(call.Errors, "apilet backup", time.Second)()
	dest := call.Args[0]
	if c.remote.Server != "" || c.remote.Kubeconfig != "" {
		copied, err := download(c.remote, "", dest, seen)
		copied.print(call.Out, dest, err)
		return err
	}
	st, err := store.Open(c.data, store.Options{})
	if err != nil {
		return err
	}
	up, err := store.NewMaintenance(st)
	if err == nil {
		err = up.Backup(context.Background(), dest, seen)
	}
	if err = errors.Join(err, st.Close()); err != nil {
		return err
	}
	copied, err := verifyCopy(dest)
	copied.print(call.Out, dest, err)
	return err
}

// runFork creates a file with the current or past state of a running server. The server is not
// affected.
func (c *command) runFork(call commandline.Call) error {
	if c.remote.Server == "" && c.remote.Kubeconfig == "" {
		return errors.New("--server or --kubeconfig is required; to copy a data file that is not in use, run `apilet backup`")
	}
	seen := &store.Progress{}
	defer seen.Show(call.Errors, "apilet fork", time.Second)()
	copied, err := download(c.remote, c.at, call.Args[0], seen)
	copied.print(call.Out, call.Args[0], err)
	return err
}

// download fetches a backup of the server's state at the given moment, or of its current state if
// moment is empty. The file dest is created only if the backup is complete.
func download(remote kubeconfig.Remote, moment, dest string, seen *store.Progress) (copied copyReport, err error) {
	client, err := remote.Client()
	if err != nil {
		return copied, err
	}
	path := request.PathBackup
	if moment != "" {
		path += "?at=" + url.QueryEscape(moment)
	}
	err = atomicfile.PlaceFile(dest, func(temp string) error {
		answer, err := client.Get(context.Background(), path)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			return refusedBackup(answer)
		}
		seen.Begin("bytes", max(0, answer.ContentLength))
		if err := saveSynced(temp, io.TeeReader(answer.Body, seen)); err != nil {
			return err
		}
		if copied, err = verifyCopy(temp); err != nil {
			return fmt.Errorf("the server sent a damaged backup: %w", err)
		}
		return nil
	})
	return copied, err
}

// refusedBackup returns an error with the message from the response body, if there is one, and with
// the HTTP status otherwise.
func refusedBackup(answer *http.Response) error {
	body, _ := io.ReadAll(io.LimitReader(answer.Body, 64<<10))
	why := answer.Status
	if message := gjson.GetBytes(body, "message").String(); message != "" {
		why += ": " + message
	}
	return fmt.Errorf("the server responded with %s", why)
}

// saveSynced writes content to an existing file and syncs it.
func saveSynced(path string, content io.Reader) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, content)
	return errors.Join(err, file.Sync(), file.Close())
}

// A keyCount counts encrypted objects by encryption key.
type keyCount map[string]int

func (k keyCount) add(sealed []byte) { k[encryption.KeyName(sealed)]++ }

func (k keyCount) print(out io.Writer) {
	for _, key := range slices.Sorted(maps.Keys(k)) {
		fmt.Fprintf(out, "  %s (%d objects)\n", key, k[key])
	}
}

// A copyReport contains the revision, the number of objects and the required encryption keys of a
// copy.
type copyReport struct {
	store.Report
	keys keyCount
}

// verifyCopy reads every record of a copy.
func verifyCopy(path string) (r copyReport, err error) {
	r.keys = keyCount{}
	r.Report, err = store.CheckObjects(path, store.Inspection{Encrypted: r.keys.add}, nil)
	if err == nil && len(r.Problems) > 0 {
		err = errors.New(r.Problems[0])
	}
	return r, err
}

// print prints the report unless err is set.
func (r copyReport) print(out io.Writer, path string, err error) {
	if err != nil {
		return
	}
	fmt.Fprintf(out, "%s: revision %d, %d objects\n", path, r.Revision, r.Objects)
	if len(r.keys) == 0 {
		return
	}
	fmt.Fprintln(out, "Some objects are encrypted. A server on the copy needs --encryption-provider-config with these keys, which are not in the copy:")
	r.keys.print(out)
}

// defineMigration defines the flags of migrate.
func (c *command) defineMigration(f *flag.FlagSet) {
	f.BoolVar(&c.toFile, "to-file", false, "create the file of --data from the objects in etcd")
	f.BoolVar(&c.goBack, "revisions-go-back", false, "allow a revision of etcd below the file's. Restart all clients; clients that keep running miss events silently")
	c.etcd.Define(f)
}

// runMigrate copies all objects from a data file to an etcd cluster, or vice versa. The data file
// must not be in use.
func (c *command) runMigrate(call commandline.Call) error {
	if len(c.etcd.Servers) == 0 {
		return errors.New("--etcd-servers is required")
	}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	context.AfterFunc(ctx, cancel) // a second signal ends the process
	seen, reg := &store.Progress{}, scheme.NewRegistry()
	defer seen.Show(call.Errors, "apilet migrate", time.Second)()
	keys, err := encryption.Open(ctx, encryption.Config{Path: c.keys, Log: c.logger(call.Errors)})
	if err != nil {
		return err
	}
	cluster := etcd.Config{Encryption: keys, Servers: c.etcd.Servers, CAFile: c.etcd.CAFile, CertFile: c.etcd.CertFile, KeyFile: c.etcd.KeyFile,
		Layout: etcd.NewLayout(c.etcd.Prefix, reg), RevisionsGoBack: c.goBack, Log: c.logger(call.Errors)}
	if c.toFile {
		filled, err := etcd.MigrateToFile(ctx, cluster, c.data, seen)
		if err == nil {
			fmt.Fprintf(call.Out, "%s: %d objects; %d other keys of etcd were left out; the revision is %d\n", c.data, filled.Objects, filled.Skipped, filled.Revision)
		}
		if filled.Running {
			fmt.Fprintln(call.Out, "Servers have etcd in use: what they write from now on is not in the file, whose revisions begin a billion higher.")
		}
		return err
	}
	if _, err := os.Stat(c.data); err != nil {
		return err
	}
	st, err := store.Open(c.data, store.Options{Sealing: keys.Sealing()})
	if err != nil {
		return err
	}
	objects, err := etcd.MigrateToCluster(ctx, cluster, st, seen)
	if err == nil {
		fmt.Fprintf(call.Out, "%s: %d objects are below %s\n", c.data, objects, cluster.Layout.Prefix())
	}
	return errors.Join(err, st.Close())
}
