package registry

import (
	"context"
	"sync"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"apilet/internal/scheme"
)

// FollowOtherServers applies the changes that other servers write to the same log until ctx is
// done. Changes by this server are applied before it responds to the write.
func (wr *Writer) FollowOtherServers(ctx context.Context) {
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
	for log := wr.Store.Follow(res.Base); ctx.Err() == nil; {
		events, reset, err := log.Next(ctx)
		if err != nil { // continue with the changes that follow
			log.From(wr.Store.Revision())
		}
		for i := range events {
			wr.namespaces.forget(events[i].Key)
			wr.Quotas.OnCommit(res, &events[i].Record)
		}
		if reset || len(events) > 0 {
			wr.applyDerived(res, wr.Store.Revision())
			continue
		}
		log.Wait(ctx, time.Time{}, nil)
	}
}
