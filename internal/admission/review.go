package admission

// This file defines the request and the response of an admission webhook. The server sends an
// AdmissionReview, and the webhook returns another. Package webhook transfers them.
//
//	POST https://127.0.0.1:9443/mutate?timeout=10s     {"kind":"AdmissionReview","request":{"uid":"7f…","operation":"CREATE",…}}
//	200                                                {"kind":"AdmissionReview","response":{"uid":"7f…","allowed":true,…}}

import (
	"encoding/json"
	"errors"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	kjson "sigs.k8s.io/json"

	"apilet/internal/apierror"
	"apilet/internal/scheme"
)

const (
	maxReviewAnswer = 16 << 20 // in bytes; a patch may contain an entire object, encoded as base64
	reviewKind      = "AdmissionReview"
	reviewGroup     = "admission.k8s.io"
)

// A hookKind is a kind of webhook, named as in the metrics.
type hookKind string

const (
	mutatingHook   hookKind = "admit"
	validatingHook hookKind = "validating"
)

// ---- The two documents

// A reviewRequest is the request that a webhook receives. v1 and v1beta1 have the same fields.
type reviewRequest struct {
	UID                types.UID                    `json:"uid"`
	Kind               metav1.GroupVersionKind      `json:"kind"`
	Resource           metav1.GroupVersionResource  `json:"resource"`
	SubResource        string                       `json:"subResource,omitempty"`
	RequestKind        *metav1.GroupVersionKind     `json:"requestKind,omitempty"`
	RequestResource    *metav1.GroupVersionResource `json:"requestResource,omitempty"`
	RequestSubResource string                       `json:"requestSubResource,omitempty"`
	Name               string                       `json:"name,omitempty"`
	Namespace          string                       `json:"namespace,omitempty"`
	Operation          string                       `json:"operation"`
	UserInfo           authenticationv1.UserInfo    `json:"userInfo"`
	Object             json.RawMessage              `json:"object"` // null for a deletion
	OldObject          json.RawMessage              `json:"oldObject"`
	DryRun             *bool                        `json:"dryRun,omitempty"`
	Options            json.RawMessage              `json:"options"`
}

// A reviewAnswer is the response of a webhook.
type reviewAnswer struct {
	UID              types.UID         `json:"uid"`
	Allowed          bool              `json:"allowed"`
	Result           *metav1.Status    `json:"status,omitempty"`
	Patch            []byte            `json:"patch,omitempty"`
	PatchType        *string           `json:"patchType,omitempty"`
	AuditAnnotations map[string]string `json:"auditAnnotations,omitempty"`
	Warnings         []string          `json:"warnings,omitempty"`
}

type review struct {
	metav1.TypeMeta
	Request  *reviewRequest `json:"request,omitempty"`
	Response *reviewAnswer  `json:"response,omitempty"`
}

// reviewVersion returns the first version in a webhook's admissionReviewVersions that the server
// supports.
func reviewVersion(accepted []string) (string, error) {
	for _, version := range accepted {
		if version == "v1" || version == "v1beta1" {
			return version, nil
		}
	}
	return "", errors.New("webhook does not accept known AdmissionReview versions (v1, v1beta1)")
}

// decodeReview decodes an answer and validates it as strictly as its version requires. v1beta1
// rejects only a missing response.
func decodeReview(body []byte, version string, uid types.UID, kind hookKind) (*reviewAnswer, error) {
	var got review
	gvk, err := scheme.InterpretKind(body)
	if named := gvk != (schema.GroupVersionKind{}); err == nil && named && (gvk.Group != reviewGroup || gvk.Kind != reviewKind) {
		err = apierror.NotRegistered(gvk)
	}
	if err == nil {
		err = kjson.UnmarshalCaseSensitivePreserveInts(body, &got)
	}
	if err != nil {
		return nil, fmt.Errorf("failed to call webhook: %w", err)
	}
	if err := checkReview(&got, version, uid, kind); err != nil {
		return nil, fmt.Errorf("received invalid webhook response: %w", err)
	}
	return got.Response, nil
}

func checkReview(got *review, version string, uid types.UID, kind hookKind) error {
	a, mutating := got.Response, kind == mutatingHook
	want := schema.GroupVersionKind{Group: reviewGroup, Version: version, Kind: reviewKind}
	switch {
	case a == nil:
		return errors.New("webhook response was absent")
	case version != "v1":
		a.PatchType = nil
		if !mutating {
			a.Patch = nil
		}
		return nil
	case a.UID != uid:
		return fmt.Errorf("expected response.uid=%q, got %q", uid, a.UID)
	case got.GroupVersionKind() != want:
		return fmt.Errorf("expected webhook response of %v, got %v", want.String(), got.GroupVersionKind().String())
	case !mutating && len(a.Patch) > 0:
		return errors.New("validating webhook may not return response.patch")
	case !mutating && a.PatchType != nil:
		return errors.New("validating webhook may not return response.patchType")
	case len(a.Patch) > 0 && a.PatchType == nil:
		return errors.New("webhook returned response.patch but not response.patchType")
	case len(a.Patch) == 0 && a.PatchType != nil:
		return errors.New("webhook returned response.patchType but not response.patch")
	case a.PatchType != nil && *a.PatchType == "":
		return fmt.Errorf("webhook returned invalid response.patchType of %q", *a.PatchType)
	}
	return nil
}
