package health

// This file serves componentstatuses, which are not stored. The only component is the storage.
// kube-apiserver also checks a scheduler and a controller manager on its own machine.

import (
	"encoding/json"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"apilet/internal/request"
	"apilet/internal/response"
	"apilet/internal/scheme"
	"apilet/internal/selector"
	"apilet/internal/store"
)

// storageComponent is the name of etcd in kube-apiserver's list of components.
const storageComponent = "etcd-0"

// ServeComponent handles GET of a componentstatus. storage returns why the storage is unavailable,
// if it is. It is nil for requests about the past, which has no components.
func ServeComponent(w http.ResponseWriter, r *http.Request, rec *request.Request, res *scheme.Resource, storage func() error) error {
	v, err := response.NewView(r, rec, res)
	if err != nil {
		return err
	}
	if rec.Info.Name != storageComponent || storage == nil {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "componentstatus"}, rec.Info.Name)
	}
	status, err := storageStatus(res, storage)
	if err != nil {
		return err
	}
	return v.Respond(w, r, http.StatusOK, status)
}

// ListComponents handles LIST of componentstatuses. rev is the revision of a request about the
// past, and 0 otherwise.
func ListComponents(w http.ResponseWriter, r *http.Request, rec *request.Request, res *scheme.Resource, storage func() error,
	match *selector.Matcher, rev int64) error {
	v, err := response.NewView(r, rec, res)
	if err != nil {
		return err
	}
	if err := v.Media.Check(res, true); err != nil {
		return err
	}
	list := v.NewListWriter()
	defer list.Release()
	if storage != nil {
		status, err := storageStatus(res, storage)
		if err != nil {
			return err
		}
		if match.Matches(status.Key, status.JSON) {
			if err := list.Add(status); err != nil {
				return err
			}
		}
	}
	return list.Whole(w, r, response.ListMeta{Rev: rev})
}

// storageStatus returns the ComponentStatus of the storage.
func storageStatus(res *scheme.Resource, storage func() error) (*store.Record, error) {
	condition := corev1.ComponentCondition{Type: corev1.ComponentHealthy, Status: corev1.ConditionTrue, Message: "ok"}
	if err := storage(); err != nil {
		condition.Status, condition.Message, condition.Error = corev1.ConditionFalse, "", err.Error()
	}
	body, err := json.Marshal(&corev1.ComponentStatus{ObjectMeta: metav1.ObjectMeta{Name: storageComponent}, Conditions: []corev1.ComponentCondition{condition}})
	return &store.Record{Key: res.Key("", storageComponent), JSON: body}, err
}
