package response

// This file encodes watch events.

import (
	"encoding/json"
	"fmt"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"apilet/internal/scheme"
	"apilet/internal/store"
)

// AppendEvent appends an event. cache may be nil. The caller may pass a cache only if the JSON of
// rec is immutable, as that of the events in the log is.
func (v *View) AppendEvent(dst []byte, kind string, rec *store.Record, cache *EventCache) ([]byte, error) {
	if v.Media.Format == scheme.ProtobufFormat {
		sealed, err := cache.sealed(v, rec)
		if err != nil {
			return dst, err
		}
		return AppendFrame(dst, kind, sealed), nil
	}
	dst = append(append(append(dst, `{"type":"`...), kind...), `","object":`...)
	dst, err := v.AppendObject(dst, rec)
	return append(dst, "}\n"...), err
}

// AppendError appends an ERROR event. Its object is always a Status.
func (v *View) AppendError(dst []byte, status *apierrors.StatusError) ([]byte, error) {
	doc, _ := ErrorStatus(status)
	doc.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	if v.Media.Format == scheme.ProtobufFormat {
		sealed, err := EncodeProtobuf(&doc)
		if err != nil {
			return dst, err
		}
		return AppendFrame(dst, "ERROR", sealed), nil
	}
	body, err := json.Marshal(&doc)
	if err != nil {
		return dst, err
	}
	return append(append(append(dst, `{"type":"ERROR","object":`...), body...), "}\n"...), nil
}

// WatchExpired returns the 410 after which clients list again. oldest is the first revision from which
// the client can watch. kube-apiserver has a second text for Events, because it serves them without
// a watch cache.
func WatchExpired(res *scheme.Resource, from, oldest int64) *apierrors.StatusError {
	if res.Custom == nil && res.Plural == "events" {
		return apierrors.NewResourceExpired("The resourceVersion for the provided watch is too old.")
	}
	return apierrors.NewResourceExpired(fmt.Sprintf("too old resource version: %d (%d)", from, oldest))
}

// Bookmark returns an object that contains only its resourceVersion and the annotations.
func Bookmark(res *scheme.Resource, annotations map[string]string, rev int64) (*store.Record, error) {
	obj := res.NewObject()
	obj.SetAnnotations(annotations)
	json, revAt, err := res.EncodeStored(obj)
	if err != nil {
		return nil, err
	}
	return &store.Record{Rev: rev, JSON: store.AppendRevision(make([]byte, 0, len(json)+20), json, revAt, rev)}, nil
}

// cachedEvents is the number of events in an EventCache.
const cachedEvents = 64

// An EventCache stores the newest events in protobuf encoding, indexed by revision. With it an
// event is usually encoded only once for all watchers. It does not use locks, so two watches may
// encode the same event at the same time.
type EventCache [cachedEvents]atomic.Pointer[cachedEvent]

// A cachedEvent contains a record in the encoding of a view.
type cachedEvent struct {
	res         *scheme.Resource
	as, version string
	// json identifies the record by its address, since stored JSON is immutable. The revision is
	// not enough: if an object no longer matches a selector, the watcher receives other JSON with
	// the same revision.
	json   []byte
	sealed []byte
}

// sealed returns the object as protobuf, from the cache if possible. A nil EventCache is empty.
func (c *EventCache) sealed(v *View, rec *store.Record) ([]byte, error) {
	if c != nil {
		if sealed := c.find(v, rec); sealed != nil {
			return sealed, nil
		}
	}
	sealed, err := v.AppendProtobuf(nil, rec)
	if err == nil && c != nil {
		c.add(v, rec, sealed)
	}
	return sealed, err
}

func (c *EventCache) find(v *View, rec *store.Record) []byte {
	e := c[rec.Rev%cachedEvents].Load()
	if e == nil || e.res != v.Res || e.as != v.Media.As || e.version != v.Media.Version ||
		len(e.json) != len(rec.JSON) || &e.json[0] != &rec.JSON[0] {
		return nil
	}
	return e.sealed
}

func (c *EventCache) add(v *View, rec *store.Record, sealed []byte) {
	if len(rec.JSON) == 0 || max(len(rec.JSON), len(sealed)) > MaxCachedProtobuf {
		return
	}
	c[rec.Rev%cachedEvents].Store(&cachedEvent{v.Res, v.Media.As, v.Media.Version, rec.JSON, sealed})
}
