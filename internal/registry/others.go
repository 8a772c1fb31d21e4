package registry

import (
	"context"
	"sync"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"apilet/internal/scheme"
	"apilet/internal/store"
)

// FollowOthers brings into force, until ctx ends, what other servers have written into the same log: a write of this server's own is followed
// before it is answered.
func (wr *Writer) FollowOthers(ctx context.Context) {
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
		if res := wr.Types.Lookup(kind.Group, "v1", kind.Resource); res != nil {
			running.Go(func() { wr.followKind(ctx, res) })
		}
	}
}

func (wr *Writer) followKind(ctx context.Context, res *scheme.Resource) {
	var events []store.Event
	for pos := int64(0); ctx.Err() == nil; {
		wake := wr.Store.Wake(res.Base)
		newest := wr.Store.Revision()
		var err error
		if events, pos, err = wr.Store.Events(res.Base, pos, 0, events[:0]); err != nil { // all that there is, instead
			pos, events = newest, events[:0]
			for rec, err := range wr.Store.All(store.Span{Prefix: res.Base, Sound: true}) {
				if err == nil {
					events = append(events, store.Event{Record: *rec})
				}
			}
		}
		wr.followAll(res, events)
		if pos < newest {
			continue
		}
		select {
		case <-wake:
		case <-ctx.Done():
		}
	}
}

// followAll brings into force what others have written of a resource.
func (wr *Writer) followAll(res *scheme.Resource, events []store.Event) {
	for i := range events {
		wr.namespaces.forget(events[i].Key)
		wr.Quotas.Committed(res, &events[i].Record)
	}
	if len(events) > 0 {
		wr.follow(res, &events[len(events)-1].Record)
	}
}
