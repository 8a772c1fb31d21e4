package main

// This file is the life of the data file, as the server and the commands see it: the five-minute compaction's aftermath, the daily scrub,
// backups that are served and fetched, check and defrag, the keys that are kept in it, and what metrics read of it. How objects lie in the
// file is package internal/store, which knows nothing of HTTP:
//
//	rev   revision (8 bytes)            one record each change: header, key, JSON      MVCC: nothing is written over
//	keys  resource, namespace, name     the newest revision of each key                LIST walks it, and looks into rev
//	meta  name                          newest and compacted revision, secrets, format
//
// A LIST at an older revision reads rev for keys that have changed since; compaction drops from rev what no revision that may still be
// asked for needs. `apilet backup --server` shows a bearer token and trusts a private authority, or takes a kubeconfig with a certificate
// or token in it. Whoever has other credentials there (a program to run, a password) lets kubectl fetch it (`kubectl get --raw
// /debug/backup > copy.db`) and looks at the copy with `apilet check`. A fetched file gets its name when it is whole: sent to the end,
// checked to the last record, synced, and with no file of that name before.

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/tidwall/gjson"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"apilet/internal/atomicfile"
	"apilet/internal/auth/rbac"
	"apilet/internal/commandline"
	"apilet/internal/etcd"
	"apilet/internal/gc"
	"apilet/internal/kubeconfig"
	"apilet/internal/registry"
	"apilet/internal/response"
	"apilet/internal/scheme"
	"apilet/internal/store"
	"apilet/internal/unreadable"
)

// runCheck prints what store.Check found. Problems are an error.
func (c *config) runCheck(call commandline.Call) error {
	path, seen := c.data, &store.Progress{}
	defer seen.Show(call.Errors, "apilet check", time.Second)()
	report, err := store.CheckObjects(path, unreadable.NewDecodeCheck(scheme.NewRegistry()), seen)
	if err != nil {
		return err
	}
	fmt.Fprintf(call.Out, "%s: revision %d, compacted to %d, %d objects, %d records\n", path, report.Revision, report.Compacted, report.Objects, report.Records)
	for _, problem := range report.Problems {
		fmt.Fprintln(call.Out, problem)
	}
	if len(report.Problems) > 0 {
		return fmt.Errorf("%s: %d problems", path, len(report.Problems))
	}
	return nil
}

func (c *config) runDefrag(call commandline.Call) error {
	seen := &store.Progress{}
	defer seen.Show(call.Errors, "apilet defrag", time.Second)()
	return store.Defrag(c.data, seen)
}

// runBackup copies a running server's objects (--server or --kubeconfig), or those of a file that no server has open, into a new file.
func (c *config) runBackup(call commandline.Call) error {
	source, seen := c.source, &store.Progress{}
	source.seen = seen
	defer seen.Show(call.Errors, "apilet backup", time.Second)()
	if source.server != "" || source.kubeconfig != "" {
		return source.download(call.Args[0])
	}
	st, err := store.Open(c.data, store.Options{})
	if err != nil {
		return err
	}
	up, err := store.NewMaintenance(st)
	if err == nil {
		err = up.Backup(context.Background(), call.Args[0], seen)
	}
	return errors.Join(err, st.Close())
}

// A backupSource says where to fetch from, and how: a file with the bearer token, and one with the authorities to trust instead of the
// system's. Both may be missing.
type backupSource struct {
	server, tokenFile, caFile string
	kubeconfig                string // names all of them at once, and a client certificate, but for those that are given
	seen                      *store.Progress
}

// download makes the file at dest.
func (b backupSource) download(dest string) error {
	remote := kubeconfig.Remote{Server: b.server, TokenFile: b.tokenFile, CAFile: b.caFile, Kubeconfig: b.kubeconfig}
	client, err := remote.Client()
	if err != nil {
		return err
	}
	return atomicfile.PlaceFile(dest, func(temp string) error {
		answer, err := client.Get(context.Background(), rbac.PathBackup)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			return refusedBackup(answer)
		}
		b.seen.Begin("bytes", max(0, answer.ContentLength))
		if err := saveSynced(temp, io.TeeReader(answer.Body, b.seen)); err != nil {
			return err
		}
		return vetBackup(temp)
	})
}

// refusedBackup says why there is none, in the server's words where it has any.
func refusedBackup(answer *http.Response) error {
	body, _ := io.ReadAll(io.LimitReader(answer.Body, 64<<10))
	why := answer.Status
	if message := gjson.GetBytes(body, "message").String(); message != "" {
		why += ": " + message
	}
	return fmt.Errorf("the server answers %s", why)
}

// saveSynced fills an existing file.
func saveSynced(path string, content io.Reader) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, content)
	return errors.Join(err, file.Sync(), file.Close())
}

// vetBackup looks at every record of what came.
func vetBackup(path string) error {
	report, err := store.Check(path)
	if err == nil && len(report.Problems) > 0 {
		err = errors.New(report.Problems[0])
	}
	if err != nil {
		return fmt.Errorf("what the server sent is no sound backup: %w", err)
	}
	return nil
}

// scrub looks for damage in the file a while after the start and then daily. What it finds is logged and makes /readyz fail.
func (s *server) scrub(ctx context.Context) {
	for wait := scrubAfter; ; wait = scrubEvery {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		report, err := s.upkeep.Scrub(ctx)
		if err != nil {
			report.Problem("%v", err)
		}
		if ctx.Err() != nil {
			return
		}
		if len(report.Problems) == 0 {
			s.st.Found.Forget()
		}
		for _, problem := range report.Problems {
			s.log.Error().Str("problem", problem).Msg("the data file is damaged")
		}
		s.damage.Store(&report.Problems)
	}
}

// intact is the health check that shows what the scrub found.
func (s *server) intact() error {
	if problems := s.damage.Load(); problems != nil && len(*problems) > 0 {
		return errors.New((*problems)[0])
	}
	return nil
}

// whole is the health check that shows what reads and writes have found since.
func (s *server) whole() error {
	if place := s.st.Found.First(); place != "" {
		return fmt.Errorf("%s: %w", s.st.Path, &store.Damage{Place: place})
	}
	return nil
}

// ---- Objects in etcd

// etcdFlags are kube-apiserver's.
type etcdFlags struct {
	servers                           []string
	cafile, certfile, keyfile, prefix string
	toFile                            bool            // of migrate
	starting                          context.Context // ends a start that waits for etcd; nil: nothing does
}

// defineMigration is for migrate.
func (e *etcdFlags) defineMigration(f *flag.FlagSet) {
	f.BoolVar(&e.toFile, "to-file", false, "the other way: make the file of --data from what etcd holds")
	e.define(f)
}

func (e *etcdFlags) define(f *flag.FlagSet) {
	f.Func("etcd-servers", "comma-separated `URLs` of an etcd cluster that holds the objects, under kube-apiserver's keys; several servers may share it, kube-apiserver among them", commandline.Listed(&e.servers))
	f.StringVar(&e.cafile, "etcd-cafile", "", "PEM `file` of the authorities that may vouch for etcd")
	f.StringVar(&e.certfile, "etcd-certfile", "", "PEM `file` with the certificate to show to etcd")
	f.StringVar(&e.keyfile, "etcd-keyfile", "", "PEM `file` with the key of --etcd-certfile")
	f.StringVar(&e.prefix, "etcd-prefix", "/registry", "what all keys in etcd begin with")
}

// runMigrate copies the objects of a file that no server has open into an etcd cluster, or the other way.
func (c *config) runMigrate(call commandline.Call) error {
	if len(c.etcd.servers) == 0 {
		return errors.New("--etcd-servers says from or to which etcd; it is missing")
	}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	seen, reg := &store.Progress{}, scheme.NewRegistry()
	defer seen.Show(call.Errors, "apilet migrate", time.Second)()
	cluster := etcd.Config{Servers: c.etcd.servers, CAFile: c.etcd.cafile, CertFile: c.etcd.certfile, KeyFile: c.etcd.keyfile,
		Layout: etcd.NewLayout(c.etcd.prefix, reg), Log: newLogger(call.Errors, "console")}
	if c.etcd.toFile {
		objects, leftOut, err := etcd.ToFile(ctx, cluster, c.data, seen)
		if err == nil {
			fmt.Fprintf(call.Out, "%s: %d objects; %d keys of etcd that are none were left out\n", c.data, objects, leftOut)
		}
		return err
	}
	if _, err := os.Stat(c.data); err != nil {
		return err
	}
	st, err := store.Open(c.data, store.Options{})
	if err != nil {
		return err
	}
	objects, err := etcd.ToCluster(ctx, cluster, st, seen)
	if err == nil {
		fmt.Fprintf(call.Out, "%s: %d objects are below %s\n", c.data, objects, cluster.Layout.Prefix())
	}
	return errors.Join(err, st.Close())
}

// openStore opens the data file, or the replica of what an etcd cluster holds. closeStore closes both.
func (s *server) openStore() (err error) {
	c := s.cfg
	options := store.Options{Ephemeral: c.ephemeral, Quota: c.quota,
		Author:  registry.Author,
		Outcome: s.troubles.TellWriting,
		Warn:    func(text string) { s.log.Warn().Msg(text) },
		Damaged: func(place string) { s.log.Error().Str("place", place).Msg("the data file is damaged") },
	}
	if len(c.etcd.servers) == 0 {
		s.st, err = store.Open(c.data, options)
		return err
	}
	starting := c.etcd.starting
	if starting == nil {
		starting = context.Background()
	}
	if s.cluster, err = etcd.Open(starting, etcd.Config{Servers: c.etcd.servers, CAFile: c.etcd.cafile, CertFile: c.etcd.certfile, KeyFile: c.etcd.keyfile,
		Layout: etcd.NewLayout(c.etcd.prefix, s.reg), CompactionInterval: c.compactionInterval, Log: s.log}); err != nil {
		return err
	}
	tell := options.Damaged
	options.Replica, options.Damaged = s.cluster.Replica(), func(place string) {
		tell(place)
		s.cluster.Damaged(place)
	}
	if s.st, err = store.Open(c.data, options); err != nil {
		return errors.Join(err, s.cluster.Close())
	}
	if err := s.cluster.Start(starting, s.st); err != nil {
		return s.giveUp(err)
	}
	return nil
}

// giveUp closes the store after a start that has failed. A replica that is damaged is not used again: etcd has everything that was in it.
func (s *server) giveUp(err error) error {
	if s.cluster != nil && errors.Is(err, store.ErrDamaged) {
		s.st.Distrust()
	}
	return errors.Join(err, s.closeStore())
}

// replicaFailed says that a start has failed by its replica alone: the next one has another.
func (c *config) replicaFailed(err error) bool {
	return len(c.etcd.servers) > 0 && (errors.Is(err, etcd.ErrLost) || errors.Is(err, store.ErrDamaged))
}

func (s *server) closeStore() (err error) {
	if s.cluster != nil {
		err = s.cluster.Close()
	}
	return errors.Join(err, s.st.Close())
}

// lead runs work while this server is the one to do it: always, unless there are others on the same cluster.
func (s *server) lead(ctx context.Context, work func(context.Context)) {
	if s.cluster == nil {
		s.leads.Store(true)
		work(ctx)
		return
	}
	s.cluster.Lead(ctx, func(ctx context.Context) {
		s.leads.Store(true)
		defer s.leads.Store(false)
		work(ctx)
	})
}

// followOthers brings into force what other servers have written: a write of this server's own is followed before it is answered.
func (s *server) followOthers(ctx context.Context) {
	if s.cluster == nil {
		return
	}
	var running sync.WaitGroup
	defer running.Wait()
	for _, kind := range []schema.GroupResource{
		{Resource: "resourcequotas"},
		{Group: rbacv1.GroupName, Resource: "roles"}, {Group: rbacv1.GroupName, Resource: "rolebindings"},
		{Group: rbacv1.GroupName, Resource: "clusterroles"}, {Group: rbacv1.GroupName, Resource: "clusterrolebindings"},
		{Group: admissionv1.GroupName, Resource: "mutatingwebhookconfigurations"}, {Group: admissionv1.GroupName, Resource: "validatingwebhookconfigurations"},
		{Group: admissionv1.GroupName, Resource: "validatingadmissionpolicies"}, {Group: admissionv1.GroupName, Resource: "validatingadmissionpolicybindings"},
		{Group: admissionv1.GroupName, Resource: "mutatingadmissionpolicies"}, {Group: admissionv1.GroupName, Resource: "mutatingadmissionpolicybindings"},
	} {
		if res := s.reg.Lookup(kind.Group, "v1", kind.Resource); res != nil {
			running.Go(func() { s.followKind(ctx, res) })
		}
	}
}

func (s *server) followKind(ctx context.Context, res *scheme.Resource) {
	var events []store.Event
	for pos := int64(0); ctx.Err() == nil; {
		wake := s.st.Wake(res.Base)
		newest := s.st.Revision()
		var err error
		if events, pos, err = s.st.Events(res.Base, pos, 0, events[:0]); err != nil { // all that there is, instead
			pos, events = newest, events[:0]
			for rec, err := range s.st.All(store.Span{Prefix: res.Base}) {
				if err == nil {
					events = append(events, store.Event{Record: *rec})
				}
			}
		}
		s.wr.Follow(res, events)
		if pos < newest {
			continue
		}
		select {
		case <-wake:
		case <-ctx.Done():
		}
	}
}

// afterCompaction reports a round of compaction and lets old Events go, in the same rhythm.
func (s *server) afterCompaction(ctx context.Context, gc *gc.Collector, err error) {
	if err == nil && s.leads.Load() {
		err = gc.ExpireEvents(ctx)
	}
	if err != nil && ctx.Err() == nil {
		s.log.Error().Err(err).Msg("compaction")
	}
}

// continueKeys reads the keys of --continue-key-file, or the one that the data file keeps.
func (s *server) continueKeys() ([][]byte, error) {
	if s.cfg.continueKeys == "" {
		key, err := s.st.Secret("continue-key", func() []byte {
			key := make([]byte, 32)
			_, _ = rand.Read(key) // never fails
			return key
		})
		return [][]byte{key}, err
	}
	file, err := os.Open(s.cfg.continueKeys)
	if err != nil {
		return nil, fmt.Errorf("--continue-key-file: %w", err)
	}
	defer file.Close()
	var keys [][]byte
	for lines, n := bufio.NewScanner(file), 1; lines.Scan(); n++ {
		text := strings.TrimSpace(lines.Text())
		if text == "" {
			continue
		}
		key, err := base64.StdEncoding.DecodeString(text)
		if err != nil || len(key) < 32 {
			return nil, fmt.Errorf("--continue-key-file: line %d is not the base64 of at least 32 bytes", n)
		}
		keys = append(keys, key)
	}
	if len(keys) == 0 {
		return nil, errors.New("--continue-key-file: no key in it")
	}
	return keys, nil
}

// serveBackup streams a backup: made beside the data file first, so that a slow client holds up nothing but its own connection. It may
// take longer than --request-timeout, as long as the client is there and reads.
func (s *server) serveBackup(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet {
		s.fail(w, r, response.ErrMethodNotAllowed())
		return
	}
	parent, pattern := filepath.Split(backupFolders(s.st.Path))
	if s.cfg.ephemeral { // whose folder is gone already
		parent = ""
	}
	dir, err := os.MkdirTemp(parent, pattern)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	defer os.RemoveAll(dir)
	ctx, cancel := withoutDeadline(r.Context())
	defer cancel()
	path := filepath.Join(dir, "backup")
	if err := s.upkeep.Backup(ctx, path, nil); err != nil {
		if store.IsDiskFull(err) {
			err = apierrors.NewInternalError(store.ErrDiskFull)
		}
		s.fail(w, r, err)
		return
	}
	file, err := os.Open(path)
	if err != nil {
		s.fail(w, r, err)
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

func removeLeftovers(data string) {
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

// stored tells flow control how much a resource holds.
func (s *server) stored(group, resource, namespace string) (objects, bytes int64) {
	for _, res := range s.reg.All() {
		if res.Group == group && res.Plural == resource {
			objects, bytes, _ = s.st.Count(res.KeyPrefix(namespace))
			return objects, bytes
		}
	}
	return -1, 0
}

// storeStats is what /metrics tells of the store.
func (s *server) storeStats() storeGauges {
	stats := s.st.Stats()
	gauges := storeGauges{revision: stats.Revision, compactRevision: stats.CompactRev, fileBytes: stats.FileBytes, freeBytes: stats.FreeBytes}
	gauges.commits, gauges.changes, gauges.commitSeconds, gauges.commitBuckets = stats.Commits, stats.Writes, stats.CommitSeconds, map[float64]uint64{}
	var sum int64
	for i, bound := range store.CommitBounds {
		sum += stats.CommitBuckets[i]
		gauges.commitBuckets[bound] = uint64(sum)
	}
	gauges.damaged = int64(s.st.Found.Count())
	gauges.trackedShort, gauges.trackedGeneral = s.wr.Tracked.Short.Load(), s.wr.Tracked.General.Load()
	gauges.unreadable = int64(s.lost.Count())
	if problems := s.damage.Load(); problems != nil {
		gauges.corrupt = int64(len(*problems))
	}
	seen := map[string]bool{}
	for _, res := range s.reg.All() {
		if res.Virtual || seen[res.KeyPrefix("")] {
			continue
		}
		seen[res.KeyPrefix("")] = true
		objects, bytes, _ := s.st.Count(res.KeyPrefix(""))
		gauges.objects = append(gauges.objects, objectStats{group: res.StorageGroup, resource: res.Plural, count: objects, bytes: bytes})
	}
	return gauges
}
