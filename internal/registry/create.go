package registry

// This file implements creates: POST, and PUT or apply with a name that does not exist yet.

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/warning"

	"apilet/internal/admission"
	"apilet/internal/allocator"
	"apilet/internal/kinds/strategy"
	"apilet/internal/kinds/warnings"
	"apilet/internal/request"
	"apilet/internal/response"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

// Create handles a POST to a collection.
func (wr *Writer) Create(w http.ResponseWriter, r *http.Request, rec *request.Request, res *scheme.Resource) error {
	v, obj, opts, err := receive(w, r, rec, res, "CreateOptions")
	if err != nil {
		return err
	}
	ctx := r.Context()
	if err := matchNamespace(obj, res.Scope(rec.Info.Namespace)); err != nil {
		return err
	}
	if res.Virtual {
		return wr.answerReview(w, r, v, obj, opts)
	}
	warning.AddWarning(ctx, "", warnings.DropDuplicateOwners(obj))
	if err := checkKind(res, obj); err != nil {
		return cmp.Or(wr.createError(wr.checkNamespaceCached(ctx, res, obj), res, obj), err)
	}
	stored, err := wr.Insert(ctx, res, obj, opts)
	if err != nil {
		return err
	}
	return v.Respond(w, r, http.StatusCreated, &stored)
}

// answerReview responds to a review, which is evaluated but not stored.
func (wr *Writer) answerReview(w http.ResponseWriter, r *http.Request, v *response.View, obj scheme.Object, opts Options) error {
	if err := wr.recordOwners(v.Res, nil, obj, opts, ""); err != nil {
		return err
	}
	obj, err := wr.Admission.Decide(r.Context(), opts.creation(v.Res, "", obj))
	if err != nil {
		return err
	}
	if err := wr.Auth.Review(r.Context(), obj); err != nil {
		return err
	}
	body, err := json.Marshal(obj)
	if err != nil {
		return err
	}
	return v.Respond(w, r, http.StatusCreated, &store.Record{JSON: body})
}

// Insert creates a new object from the object that a client sent.
func (wr *Writer) Insert(ctx context.Context, res *scheme.Resource, obj scheme.Object, opts Options) (store.Record, error) {
	if opts.rec == nil {
		opts.rec = request.From(ctx)
	}
	strategy.WipeSystemFields(obj)
	if err := checkTerminating(res, obj); err != nil {
		return store.Record{}, err
	}
	if err := wr.checkNamespaceCached(ctx, res, obj); err != nil {
		return store.Record{}, wr.createError(err, res, obj)
	}
	if err := FillDefaults(res, obj); err != nil {
		return store.Record{}, err
	}
	if err := wr.recordOwners(res, nil, obj, opts, ""); err != nil {
		return store.Record{}, err
	}
	attributes := opts.creation(res, "", obj)
	obj, err := wr.admit(ctx, attributes)
	if err != nil {
		return store.Record{}, err
	}
	warning.AddWarning(ctx, "", warnings.DropAdmittedDuplicates(obj))
	strategy.FillSystemFields(obj, wr.Store.Now())
	generated := obj.GetName() == "" && obj.GetGenerateName() != ""
	if generated {
		strategy.GenerateName(obj)
	}
	obj = prepareNew(ctx, res, obj)
	for try, lost := 1, 0; ; try++ {
		if generated && try > 1 {
			strategy.GenerateName(obj)
		}
		rec, err := wr.checkAndCommit(ctx, &plan{Target: Target{Resource: res, Namespace: obj.GetNamespace(), Name: obj.GetName()}, opts: opts, attributes: attributes, obj: obj})
		if errors.Is(err, allocator.ErrAlreadyClaimed) && ctx.Err() == nil {
			if lost++; lost < allocator.MaxAttempts {
				continue
			}
			err = apierrors.NewServerTimeout(res.GroupResource(), "allocate an address for", 0)
		}
		if !errors.Is(err, store.ErrExists) {
			return rec, wr.createError(err, res, obj)
		}
		if !generated || try == generateTries {
			return rec, nameConflict(res, obj, err)
		}
	}
}

// admit calls the mutating plug-ins for a new object. They may not change its namespace.
func (wr *Writer) admit(ctx context.Context, attributes admission.Attributes) (scheme.Object, error) {
	namespace := attributes.Object.GetNamespace()
	admitted, err := wr.Admission.Admit(ctx, attributes)
	if err != nil {
		return nil, wr.createError(err, attributes.Resource, attributes.Object)
	}
	if attributes.Resource.Namespaced {
		err = matchNamespace(admitted, namespace)
	}
	return admitted, err
}

// checkTerminating rejects a new object if its type is being deleted according to the current
// resource. The commit checks it again in its transaction, because no object may be created between
// the deletion of the last object and the deletion of the definition.
func checkTerminating(res *scheme.Resource, obj scheme.Object) error {
	if res.Custom == nil || !res.Custom.Terminating {
		return nil
	}
	return typeTerminatingError(res, obj)
}

func typeTerminatingError(res *scheme.Resource, obj scheme.Object) error {
	return apierrors.NewForbidden(res.GroupResource(), obj.GetName(), errors.New("create not allowed while custom resource definition is terminating"))
}

// prepareNew sets the initial status of a new object and the other fields that clients cannot set.
func prepareNew(ctx context.Context, res *scheme.Resource, obj scheme.Object) scheme.Object {
	if res.Custom != nil {
		if res.Generation {
			obj.SetGeneration(1)
		}
		return res.Custom.Prepare(obj, nil, "")
	}
	strategy.PrepareForCreate(ctx, obj)
	return obj
}

// createError converts the store's errors for a create to API errors.
func (wr *Writer) createError(err error, res *scheme.Resource, obj scheme.Object) error {
	namespace := obj.GetNamespace()
	if errors.Is(err, store.ErrParentMissing) || errors.Is(err, store.ErrParentDeleting) {
		wr.namespaces.forget(NamespaceKey(namespace))
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, store.ErrTypeDeleting):
		return typeTerminatingError(res, obj)
	case errors.Is(err, store.ErrParentMissing):
		return apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, namespace)
	case errors.Is(err, store.ErrParentDeleting):
		forbidden := apierrors.NewForbidden(res.GroupResource(), cmp.Or(obj.GetName(), obj.GetGenerateName()),
			fmt.Errorf("unable to create new content in namespace %s because it is being terminated", namespace))
		forbidden.ErrStatus.Details.Causes = []metav1.StatusCause{{
			Type:    "NamespaceTerminating",
			Message: fmt.Sprintf("namespace %s is being terminated", namespace),
			Field:   "metadata.namespace",
		}}
		return forbidden
	}
	return response.StoreError(err, res, obj.GetName())
}

// nameConflict returns the error for a name that already exists. If the name was generated, the
// error states that no free name was found.
func nameConflict(res *scheme.Resource, obj scheme.Object, err error) error {
	if obj.GetGenerateName() == "" {
		return response.StoreError(err, res, obj.GetName())
	}
	return apierrors.NewGenerateNameConflict(res.GroupResource(), obj.GetName(), 1)
}

// CreateNamespace creates a missing namespace for a request that creates an object in it. It is
// used by the admission plug-in that provisions namespaces.
func (wr *Writer) CreateNamespace(ctx context.Context, name string) error {
	// the server's own write, because the client may lack the permission
	ctx = context.WithValue(ctx, request.Key{}, (*request.Request)(nil))
	_, err := wr.Insert(ctx, wr.Types.Lookup("", "v1", "namespaces"), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, Options{Manager: "apilet"})
	return err
}
