package registry

// This file writes the statuses that the server maintains itself. checkAndCommit charges the usage
// of a namespace as the last step before the object is encoded. The status of the ResourceQuotas is
// updated afterwards, in the same way as by kube-controller-manager. If several servers share their
// objects, a charged write includes the update of the status. The other statuses are the results of
// type checking admission policies, and the conditions of APIServices.

import (
	"context"
	"errors"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"apilet/internal/admission/quota"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

const quotaController = "kube-controller-manager" // field manager of the status

// WriteQuotas updates the status of all ResourceQuotas until ctx is done. If an update fails,
// report is called with the error.
func (wr *Writer) WriteQuotas(ctx context.Context, report func(error)) {
	if wr.Quotas != nil {
		wr.Quotas.Run(ctx, wr.saveQuota, report)
	}
}

func (wr *Writer) saveQuota(ctx context.Context, namespace, name string, change func(*corev1.ResourceQuota)) error {
	t := Target{Resource: wr.Types.Lookup("", "v1", "resourcequotas"), Namespace: namespace, Name: name, Subresource: "status"}
	return saveStatus(ctx, wr, t, quotaController, change)
}

// SavePolicyStatus changes the status of a ValidatingAdmissionPolicy after its expressions have
// been type checked. It returns nil if the policy does not exist.
func (wr *Writer) SavePolicyStatus(ctx context.Context, name string, change func(*admissionv1.ValidatingAdmissionPolicy)) error {
	t := Target{Resource: wr.Types.Lookup(admissionv1.GroupName, "v1", "validatingadmissionpolicies"), Name: name, Subresource: "status"}
	err := saveStatus(ctx, wr, t, "apilet", change)
	if apierrors.IsNotFound(err) || errors.Is(err, store.ErrNotFound) {
		return nil
	}
	return err
}

// SaveAPIServiceStatus changes the status of an APIService after its server has been checked. It
// returns nil if the APIService does not exist.
func (wr *Writer) SaveAPIServiceStatus(ctx context.Context, name string, change func(*apiregistrationv1.APIService)) error {
	t := Target{Resource: wr.Types.Lookup(apiregistrationv1.GroupName, "v1", "apiservices"), Name: name, Subresource: "status"}
	err := saveStatus(ctx, wr, t, "apilet", change)
	if apierrors.IsNotFound(err) || errors.Is(err, store.ErrNotFound) {
		return nil
	}
	return err
}

// saveStatus changes the status of an object as the given field manager, on behalf of the server.
func saveStatus[T scheme.Object](ctx context.Context, wr *Writer, t Target, manager string, change func(T)) error {
	_, _, err := wr.Modify(ctx, t, Options{Manager: manager, Trusted: true}, func(old scheme.Object, _ *store.Record) (scheme.Object, error) {
		next := old.DeepCopyObject().(T)
		change(next)
		return next, nil
	})
	return err
}

// quotaUpdates returns the function that adds the status updates to a charged write. It returns nil
// if this is the only server that writes.
func (wr *Writer) quotaUpdates(held *quota.Reservation) func(context.Context) ([]store.Change, error) {
	if !held.Shared() {
		return nil
	}
	return func(ctx context.Context) ([]store.Change, error) { return held.StatusChanges(ctx, wr.saveQuota) }
}
