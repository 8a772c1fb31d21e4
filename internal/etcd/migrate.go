//go:build !noetcd

package etcd

// This file implements the migration of objects from a data file to an etcd cluster and vice versa.
// Only the current version of each object is copied. It keeps its uid and its timestamps, but gets
// a new revision. The new revisions are higher than all earlier ones, which are compacted. Clients
// that try to continue from an old revision get a 410 Gone response and have to list again. If the
// new revisions were lower, the client would receive the events after the same number in the new
// sequence, and silently miss all earlier ones (bridge.go raises etcd's revision). Data that a
// server derives from objects, such as the ClusterIPs of Services and the range of node ports, is
// derived again by the next server.
//
//	PREFIX/.apilet/migration   {"from":"9f…","state":"under way"}   while objects are copied; only the same file may continue, and servers refuse to start
//	                           {"from":"9f…","state":"finished"}
//
// The mark is written only if the prefix is empty, which the same Txn checks. Objects are written
// in batches, and a batch is only written if none of its keys exist. If a run continues an
// interrupted one, it skips the objects that already exist.
//
// A new file is written under a temporary name and renamed when it is complete.

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/tidwall/gjson"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"apilet/internal/atomicfile"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

const (
	batchOps            = 100       // etcd's default limit is 128
	batchBytes          = 512 << 10 // etcd's limit is 1.5 MiB
	batchesAtOnce       = 8
	placesAtOnce        = 128 // number of objects written to a file concurrently, to share commits
	maxFailuresReported = 10  // maximum number of errors reported for a page of objects
	underWay            = "under way"
	finished            = "finished"
)

// A migration is the value of the mark for a migration.
type migration struct {
	From  string `json:"from"` // lineage of the file
	State string `json:"state"`
}

func (m migration) String() string {
	text, _ := json.Marshal(m)
	return string(text)
}

// checkMigrated returns an error if the migration into the prefix is incomplete.
func (c *Cluster) checkMigrated(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	answer, err := c.client.Get(ctx, c.private("migration"))
	if err != nil {
		return failed(err)
	}
	for _, kv := range answer.Kvs {
		var m migration
		if json.Unmarshal(kv.Value, &m) == nil && m.State == underWay {
			return fmt.Errorf("a migration into %s is not finished: repeat `apilet migrate` with the same file", c.lay.Prefix())
		}
	}
	return nil
}

// ---- Into a cluster

// An entry is a key and value to write to etcd. of is the object's key in the store, or "" for
// other data.
type entry struct{ key, value, of string }

// MigrateToCluster copies the contents of a store to an empty prefix, and returns the number of
// objects. It continues an interrupted copy.
func MigrateToCluster(ctx context.Context, cfg Config, st *store.Store, seen *store.Progress) (objects int, err error) {
	client, err := cfg.connect()
	if err != nil {
		return 0, err
	}
	defer client.Close()
	cfg.Layout.Encryption = cfg.Encryption
	mark := migration{From: hex.EncodeToString(idOf(st)), State: underWay}
	if err := checkRaise(ctx, cfg, client, st.Revision()); err != nil {
		return 0, err
	}
	if err := beginMigration(ctx, cfg, client, mark); err != nil {
		return 0, err
	}
	if err := defineKinds(cfg, st); err != nil {
		return 0, err
	}
	if !cfg.RevisionsGoBack {
		if err := raiseRevision(ctx, cfg, client, st.Revision(), seen); err != nil {
			return 0, err
		}
	}
	seen.Begin("objects", st.Objects())
	batches, written := make(chan []entry), make(chan error, batchesAtOnce)
	copying, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	for range batchesAtOnce {
		go func() {
			var err error
			for batch := range batches {
				if err == nil {
					if err = putBatch(copying, cfg, client, batch); err != nil {
						stop(err)
					}
				}
				seen.Add(int64(len(batch)))
			}
			written <- err
		}()
	}
	objects, err = readBatches(copying, cfg, st, batches)
	close(batches)
	for range batchesAtOnce {
		err = errors.Join(err, <-written)
	}
	if cause := context.Cause(copying); cause != nil {
		return 0, cause
	}
	if err != nil {
		return 0, err
	}
	if err := compactAll(ctx, cfg, client); err != nil {
		return 0, err
	}
	return objects, finishMigration(ctx, cfg, client, mark)
}

func idOf(st *store.Store) []byte {
	id := st.Lineage()
	return id[:]
}

// beginMigration writes the mark to an empty prefix, or finds the mark of the same file.
func beginMigration(ctx context.Context, cfg Config, client *clientv3.Client, mark migration) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	prefix, key := cfg.Layout.Prefix(), private(cfg.Layout, "migration")
	empty := clientv3.Compare(clientv3.CreateRevision(prefix), "=", 0).WithRange(clientv3.GetPrefixRangeEnd(prefix))
	answer, err := client.Txn(ctx).If(empty).Then(clientv3.OpPut(key, mark.String())).
		Else(clientv3.OpGet(key), clientv3.OpGet(prefix, clientv3.WithPrefix(), clientv3.WithLimit(1), clientv3.WithKeysOnly())).Commit()
	if err != nil {
		return fmt.Errorf("--etcd-servers %s: %w", strings.Join(cfg.Servers, ","), err)
	}
	if answer.Succeeded {
		return nil
	}
	var there migration
	if kv := found(answer, 0); kv != nil && json.Unmarshal(kv.Value, &there) == nil {
		switch {
		case there == mark:
			cfg.Log.Info().Str("prefix", prefix).Msg("continuing an interrupted migration")
			return nil
		case there.State == underWay:
			return fmt.Errorf("%s is in use: a migration of another file is under way", prefix)
		case there.From == mark.From:
			return fmt.Errorf("%s is in use: this file has been migrated there", prefix)
		default:
			return fmt.Errorf("%s is in use: another file has been migrated there", prefix)
		}
	}
	first := "a key"
	if kv := found(answer, 1); kv != nil {
		first = string(kv.Key)
	}
	return fmt.Errorf("%s is in use: it contains %s; choose another --etcd-prefix or another etcd", prefix, first)
}

func finishMigration(ctx context.Context, cfg Config, client *clientv3.Client, mark migration) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	key, done := private(cfg.Layout, "migration"), migration{From: mark.From, State: finished}
	answer, err := client.Txn(ctx).If(clientv3.Compare(clientv3.Value(key), "=", mark.String())).Then(clientv3.OpPut(key, done.String())).Commit()
	if err == nil && !answer.Succeeded {
		err = fmt.Errorf("%s was changed by another client", key)
	}
	return err
}

// defineKinds registers the rows that are needed to encode custom resources. The rows only contain
// the names, the scope and the storage version from the definition.
func defineKinds(cfg Config, st *store.Store) error {
	var rows []*scheme.Resource
	for rec, err := range st.All(store.Span{Prefix: "/apiextensions.k8s.io/customresourcedefinitions/"}) {
		if err != nil {
			return err
		}
		_, name := scheme.NamespacedName(rec.Key)
		unmarked, err := st.Value("unmarked/" + name)
		if err != nil {
			return err
		}
		rows = append(rows, kindOf(gjson.ParseBytes(bytes.Clone(rec.JSON)), string(unmarked)))
	}
	cfg.Layout.AddResources(rows)
	return nil
}

func kindOf(definition gjson.Result, unmarked string) *scheme.Resource {
	spec, storage := definition.Get("spec"), ""
	for _, version := range spec.Get("versions").Array() {
		if version.Get("storage").Bool() {
			storage = version.Get("name").String()
		}
	}
	if unmarked == "" {
		unmarked = definition.Get("status.storedVersions.0").String()
	}
	if unmarked == "" {
		unmarked = storage
	}
	kind := definition.Get("status.acceptedNames.kind").String()
	if kind == "" {
		kind = spec.Get("names.kind").String()
	}
	row := &scheme.Resource{Kind: kind, Plural: spec.Get("names.plural").String(), Namespaced: spec.Get("scope").String() == "Namespaced",
		Custom: &scheme.CustomStrategy{StorageVersion: storage, ImplicitVersion: unmarked}}
	return scheme.GroupVersion(spec.Get("group").String(), storage, row)[0]
}

// readBatches reads all objects from the store, as well as the secrets that are shared between
// servers, and sends them to the given channel.
func readBatches(ctx context.Context, cfg Config, st *store.Store, batches chan<- []entry) (objects int, err error) {
	var batch []entry
	size := 0
	send := func() error {
		defer func() { batch, size = nil, 0 }()
		select {
		case batches <- batch:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	add := func(e entry) error {
		if n := len(e.key) + len(e.value); len(batch) == batchOps || len(batch) > 0 && size+n > batchBytes {
			if err := send(); err != nil {
				return err
			}
		}
		size += len(e.key) + len(e.value)
		batch = append(batch, e)
		return nil
	}
	for rec, err := range st.All(store.Span{Prefix: "/"}) {
		if err != nil {
			return objects, err
		}
		key, err := cfg.Layout.EtcdKey(rec.Key)
		if err != nil {
			return objects, err
		}
		value, err := cfg.Layout.Encode(rec.Key, rec.JSON)
		if err != nil {
			return objects, fmt.Errorf("%s: %w", rec.Key, err)
		}
		if err := add(entry{key, string(value), rec.Key}); err != nil {
			return objects, err
		}
		objects++
	}
	known, err := st.Values()
	if err != nil {
		return objects, err
	}
	for name, value := range known {
		if err := add(entry{private(cfg.Layout, "secrets/"+name), string(value), ""}); err != nil {
			return objects, err
		}
	}
	if len(batch) == 0 {
		return objects, nil
	}
	return objects, send()
}

// putBatch writes entries to keys that do not exist. An existing key must have the same value.
func putBatch(ctx context.Context, cfg Config, client *clientv3.Client, batch []entry) error {
	answer, err := putNew(ctx, client, batch)
	if err != nil || answer.Succeeded {
		return err
	}
	var missing []entry
	for i, e := range batch {
		switch kv := found(answer, i); {
		case kv == nil:
			missing = append(missing, e)
		case !cfg.Layout.Equal(e.of, kv.Value, []byte(e.value)):
			return inUse(e.key)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	if answer, err = putNew(ctx, client, missing); err == nil && !answer.Succeeded {
		err = inUse(missing[0].key)
	}
	return err
}

func inUse(key string) error {
	return fmt.Errorf("another client writes to the same prefix: %s exists with other content", key)
}

func putNew(ctx context.Context, client *clientv3.Client, batch []entry) (*clientv3.TxnResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, pageWithin)
	defer cancel()
	var free []clientv3.Cmp
	var puts, gets []clientv3.Op
	for _, e := range batch {
		free = append(free, clientv3.Compare(clientv3.CreateRevision(e.key), "=", 0))
		puts, gets = append(puts, clientv3.OpPut(e.key, e.value)), append(gets, clientv3.OpGet(e.key))
	}
	answer, err := client.Txn(ctx).If(free...).Then(puts...).Else(gets...).Commit()
	if err != nil {
		err = fmt.Errorf("writing %s and %d more: %w", batch[0].key, len(batch)-1, err)
	}
	return answer, err
}

// ---- Into a file

// MigrationResult is the result of MigrateToFile.
type MigrationResult struct {
	Objects, Skipped int   // Skipped counts keys that are not served here
	Revision         int64 // the revision of the file, below which everything is compacted
	// Running reports whether servers were using the cluster. In that case the file's revisions
	// begin forkBump higher.
	Running bool
}

// forkBump is added to the revision of the file if the cluster remains in use, because both will
// continue to assign new revisions. A restored backup adds the same number for the same reason.
const forkBump = 1_000_000_000

// MigrateToFile creates a data file with all objects from an etcd cluster at a single revision.
func MigrateToFile(ctx context.Context, cfg Config, path string, seen *store.Progress) (filled MigrationResult, err error) {
	cfg.Layout.Encryption = cfg.Encryption
	client, err := cfg.connect()
	if err != nil {
		return filled, err
	}
	defer client.Close()
	err = atomicfile.PlaceFile(path, func(temp string) error {
		if err := os.Remove(temp); err != nil { // the store would treat an empty file as damaged
			return err
		}
		st, err := store.Open(temp, store.Options{Sealing: cfg.Encryption.Sealing()})
		if err != nil {
			return err
		}
		if filled, err = fillFile(ctx, cfg, client, st, seen); err == nil {
			err = st.BeginAt(ctx, st.Revision())
			filled.Revision = st.Revision()
		}
		return errors.Join(err, st.Close())
	})
	return filled, err
}

// fillFile writes all objects to the store. Their revisions are higher than any revision that the
// cluster has assigned, or is expected to assign while the file is in use.
func fillFile(ctx context.Context, cfg Config, client *clientv3.Client, st *store.Store, seen *store.Progress) (filled MigrationResult, err error) {
	prefix := cfg.Layout.Prefix()
	if filled.Running, err = serversRun(ctx, cfg, client); err != nil {
		return filled, err
	}
	from, end, at := prefix, clientv3.GetPrefixRangeEnd(prefix), int64(0)
	for more := true; more; {
		reading, cancel := context.WithTimeout(ctx, pageWithin)
		page, err := client.Get(reading, from, clientv3.WithRange(end), clientv3.WithLimit(pageKeysFirst), clientv3.WithRev(at))
		cancel()
		switch {
		case err != nil:
			return filled, fmt.Errorf("--etcd-servers %s: %w", strings.Join(cfg.Servers, ","), err)
		case at == 0 && page.Count == 0:
			return filled, fmt.Errorf("there is nothing below %s", prefix)
		case at == 0:
			at = page.Header.Revision
			begin := at
			if filled.Running {
				begin += forkBump
			}
			if err := st.BeginAt(ctx, begin); err != nil {
				return filled, err
			}
			seen.Begin("keys", page.Count)
		}
		placed, others, err := placeAll(ctx, cfg, st, page.Kvs)
		if err != nil {
			return filled, err
		}
		filled.Objects, filled.Skipped = filled.Objects+placed, filled.Skipped+others
		seen.Add(int64(len(page.Kvs)))
		if more = page.More; more {
			from = string(page.Kvs[len(page.Kvs)-1].Key) + "\x00"
		}
	}
	return filled, nil
}

// placeAll writes the objects of a page concurrently. It returns the number of objects written and
// the number of keys that are not objects.
func placeAll(ctx context.Context, cfg Config, st *store.Store, kvs []*mvccpb.KeyValue) (placed, others int, err error) {
	var mu sync.Mutex // guards err and failures
	failures := 0
	var running sync.WaitGroup
	turns := make(chan struct{}, placesAtOnce)
	for _, kv := range kvs {
		if strings.HasPrefix(string(kv.Key), private(cfg.Layout, "")+"/") {
			failure := placeSecret(cfg, st, kv)
			mu.Lock()
			err = errors.Join(err, failure)
			mu.Unlock()
			continue
		}
		key, ok := cfg.Layout.StoreKey(string(kv.Key))
		if !ok || cfg.Layout.IsHidden(key) {
			others++
			continue
		}
		placed++
		turns <- struct{}{}
		running.Go(func() {
			defer func() { <-turns }()
			if failure := place(ctx, cfg, st, key, kv.Value); failure != nil {
				mu.Lock()
				defer mu.Unlock()
				if failures++; failures <= maxFailuresReported {
					err = errors.Join(err, failure)
				}
			}
		})
	}
	running.Wait()
	if failures > maxFailuresReported {
		err = fmt.Errorf("%w\nand %d more", err, failures-maxFailuresReported)
	}
	return placed, others, err
}

// placeSecret stores a secret that servers share. It ignores the other private keys, such as the
// marks of a migration or the leader's key, because they have no meaning in a file.
func placeSecret(cfg Config, st *store.Store, kv *mvccpb.KeyValue) error {
	name, ok := strings.CutPrefix(string(kv.Key), private(cfg.Layout, "secrets")+"/")
	if !ok {
		return nil
	}
	_, err := st.Secret(name, func() []byte { return kv.Value })
	return err
}

func place(ctx context.Context, cfg Config, st *store.Store, key string, value []byte) error {
	stored, err := cfg.Layout.Decode(key, value)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	_, err = st.Commit(ctx, store.Change{Op: store.OpCreate, Key: key, JSON: stored.JSON, RevAt: stored.RevAt, Deleting: stored.Deleting})
	return err
}
