package datafile

import (
	"github.com/prometheus/client_golang/prometheus"

	"apilet/internal/corrupt"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

// This file exports the metrics of the store. Series with the prefix apilet_ are specific to
// apilet, and the others have the names of Kubernetes.

// A Collector exports the metrics of the store. It reads them at each scrape.
type Collector struct {
	Store   *store.Store     // the observed store
	Types   *scheme.Registry // the types whose objects are counted
	Scrub   *Scrub           // provides the number of damaged records
	Corrupt *corrupt.Objects // counts objects that cannot be decoded
	// returns the number of writes whose fields were tracked by the short and the general algorithm
	TrackedWrites func() (short, general int64)
}

// figures is a snapshot of the metrics of the store.
type figures struct {
	revision, compactRevision int64
	fileBytes, freeBytes      int64 // size of the file, and size of its unused parts
	logBytes                  int64 // size of the log
	corrupt                   int64 // number of damaged places found by the scrub
	damaged                   int64 // number of damaged places found by reads and writes
	writable                  bool
	format                    int64
	room                      store.Room
	unreadable                int64 // number of live objects that cannot be decoded
	commits, changes          int64
	trackedShort              int64 // number of writes that tracked managedFields by the short way
	trackedGeneral            int64
	commitSeconds             float64
	commitBuckets             map[float64]uint64 // cumulative counts by upper bound in seconds
	objects                   []objectFigures
}

// objectFigures holds the number and size of a resource's live objects.
type objectFigures struct {
	group, resource string
	count, bytes    int64
}

var (
	storeRevision  = prometheus.NewDesc("apilet_store_revision", "Newest committed revision.", nil, nil)
	storeCompacted = prometheus.NewDesc("apilet_store_compact_revision", "Revision below which history is compacted.", nil, nil)
	storeFileBytes = prometheus.NewDesc("apilet_store_file_bytes", "Size of the data file, without its log (apilet_store_log_bytes).", nil, nil)
	storeLogBytes  = prometheus.NewDesc("apilet_store_log_bytes", "Size of the write-ahead log beside the data file.", nil, nil)
	storeFreeBytes = prometheus.NewDesc("apilet_store_free_bytes", "Bytes of the data file that are not in use: its free pages, and what it has grown ahead. Defrag gives them back.", nil, nil)
	storeCorrupt   = prometheus.NewDesc("apilet_store_corrupt_records", "Records and pages that the last scrub found damaged.", nil, nil)
	storeDamaged   = prometheus.NewDesc("apilet_store_damaged_places",
		"Places of the data file that reads and writes found damaged; at most 100 are counted, and a scrub that finds "+
			"nothing resets it.", nil, nil)
	storeUnreadable = prometheus.NewDesc("apilet_store_unreadable_objects", "Live objects that cannot be decoded and are left out.", nil, nil)
	storeWritable   = prometheus.NewDesc("apilet_store_writable", "0 while nothing can be written, because the data file was removed or replaced, or a commit has met damage.", nil, nil)
	storeFormat     = prometheus.NewDesc("apilet_store_format", "Format of the data file.", nil, nil)
	storeUsed       = prometheus.NewDesc("apilet_store_used_bytes", "Size of the data file without its free pages: what --quota-backend-bytes limits.", nil, nil)
	storeQuota      = prometheus.NewDesc("apilet_store_quota_bytes", "Used bytes above which writes other than deletes are refused; no series where there is no limit.", nil, nil)
	diskBytes       = prometheus.NewDesc("apilet_disk_bytes", "Size of the data file's file system; no series where that is not known.", nil, nil)
	diskFree        = prometheus.NewDesc("apilet_disk_free_bytes", "What the data file's file system has free for the server; no series where that is not known.", nil, nil)
	diskReserve     = prometheus.NewDesc("apilet_disk_reserve_bytes",
		"Below so many bytes, those free on the file system and the free pages of the data file together, writes other "+
			"than deletes are refused.", nil, nil)
	diskFull     = prometheus.NewDesc("apilet_disk_full", "1 while writes other than deletes are refused for want of room on the disk.", nil, nil)
	storeCommits = prometheus.NewDesc("apilet_store_commit_duration_seconds", "How long commits took, fsync included.", nil, nil)
	storeChanges = prometheus.NewDesc("apilet_store_committed_changes_total", "Changes made durable; divided by the number of commits, how many share one fsync.", nil, nil)
	storeTracked = prometheus.NewDesc("apilet_managed_fields_writes_total",
		"Writes whose managedFields were kept, by way: short, or general for those that were left to "+
			"structured-merge-diff.", []string{"way"}, nil)
	storageSize    = prometheus.NewDesc("apiserver_storage_size_bytes", "[STABLE] Size of the storage database file physically allocated in bytes.", []string{"storage_cluster_id"}, nil)
	storageObjects = prometheus.NewDesc("apiserver_storage_objects",
		"[STABLE] (Deprecated since 1.34.0) [DEPRECATED, consider using apiserver_resource_objects instead] Number of "+
			"stored objects at the time of last check split by kind. In case of a fetching error, the value will be -1.", []string{"resource"}, nil)
	resourceObjects = prometheus.NewDesc("apiserver_resource_objects",
		"[ALPHA] Number of stored objects at the time of last check split by kind. In case of a fetching error, the "+
			"value will be -1.", []string{"group", "resource"}, nil)
	resourceBytes = prometheus.NewDesc("apiserver_resource_size_estimate_bytes",
		"[ALPHA] Estimated size of stored objects in database. Estimate is based on sum of last observed sizes of "+
			"serialized objects. In case of a fetching error, the value will be -1.", []string{"group", "resource"}, nil)
)

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{storeRevision, storeCompacted, storeFileBytes, storeLogBytes, storeFreeBytes, storeCorrupt, storeDamaged, storeUnreadable, storeCommits, storeChanges,
		storeWritable, storeFormat, storeUsed, storeQuota, diskBytes, diskFree, diskReserve, diskFull, storeTracked,
		storageSize, storageObjects, resourceObjects, resourceBytes} {
		ch <- d
	}
}

// Collect implements prometheus.Collector. It reads the store once for all series.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	now := c.read()
	now.send(ch)
}

func (s *figures) send(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v int64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), labels...)
	}
	gauge(storeRevision, s.revision)
	gauge(storeCompacted, s.compactRevision)
	gauge(storeFileBytes, s.fileBytes)
	gauge(storeLogBytes, s.logBytes)
	gauge(storeFreeBytes, s.freeBytes)
	gauge(storeCorrupt, s.corrupt)
	gauge(storeDamaged, s.damaged)
	gauge(storeUnreadable, s.unreadable)
	gauge(storeWritable, oneIf(s.writable))
	gauge(storeFormat, s.format)
	gauge(storeUsed, s.room.Used)
	if s.room.Quota > 0 {
		gauge(storeQuota, s.room.Quota)
	}
	if s.room.DiskBytes > 0 {
		gauge(diskBytes, s.room.DiskBytes)
		gauge(diskFree, s.room.DiskFree)
	}
	gauge(diskReserve, s.room.Reserve)
	gauge(diskFull, oneIf(s.room.Refusal == store.ErrDiskFull))
	ch <- prometheus.MustNewConstHistogram(storeCommits, uint64(s.commits), s.commitSeconds, s.commitBuckets)
	ch <- prometheus.MustNewConstMetric(storeChanges, prometheus.CounterValue, float64(s.changes))
	ch <- prometheus.MustNewConstMetric(storeTracked, prometheus.CounterValue, float64(s.trackedShort), "short")
	ch <- prometheus.MustNewConstMetric(storeTracked, prometheus.CounterValue, float64(s.trackedGeneral), "general")
	gauge(storageSize, s.fileBytes, "bbolt")
	for _, o := range s.objects {
		name := o.resource
		if o.group != "" {
			name += "." + o.group
		}
		gauge(storageObjects, o.count, name)
		gauge(resourceObjects, o.count, o.group, o.resource)
		gauge(resourceBytes, o.bytes, o.group, o.resource)
	}
}

func oneIf(is bool) int64 {
	if is {
		return 1
	}
	return 0
}

func (c *Collector) read() figures {
	stats := c.Store.Stats()
	gauges := figures{revision: stats.Revision, compactRevision: stats.CompactRev, fileBytes: stats.FileBytes, logBytes: stats.LogBytes, freeBytes: stats.FreeBytes}
	gauges.commits, gauges.changes, gauges.commitSeconds, gauges.commitBuckets = stats.Commits, stats.Writes, stats.CommitSeconds, map[float64]uint64{}
	var sum int64
	for i, bound := range store.CommitBounds {
		sum += stats.CommitBuckets[i]
		gauges.commitBuckets[bound] = uint64(sum)
	}
	gauges.damaged = int64(c.Store.File.Damage.Count())
	gauges.writable, gauges.room = c.Store.File.Writable() == nil, c.Store.Room()
	gauges.format = c.Store.Format()
	gauges.trackedShort, gauges.trackedGeneral = c.TrackedWrites()
	gauges.unreadable = int64(c.Corrupt.Count())
	if problems := c.Scrub.problems.Load(); problems != nil {
		gauges.corrupt = int64(len(*problems))
	}
	seen := map[string]bool{}
	for _, res := range c.Types.All() {
		if res.Virtual || seen[res.KeyPrefix("")] {
			continue
		}
		seen[res.KeyPrefix("")] = true
		objects, bytes, _ := c.Store.Count(res.KeyPrefix(""))
		gauges.objects = append(gauges.objects, objectFigures{group: res.StorageGroup, resource: res.Plural, count: objects, bytes: bytes})
	}
	return gauges
}
