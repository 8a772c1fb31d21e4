package registry

import (
	"net/http/httptest"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"apilet/internal/apitest/kubetest"
	"apilet/internal/patch"
	"apilet/internal/request"
)

func TestPatchOptionsRefusals(t *testing.T) {
	for _, c := range []struct {
		kind        patch.Kind
		query, want string
	}{
		{patch.ApplyPatch, "", `PatchOptions.meta.k8s.io "" is invalid: fieldManager: Required value: is required for apply patch`},
		{patch.ApplyPatch, "fieldManager=" + strings.Repeat("m", 129), `PatchOptions.meta.k8s.io "" is invalid: fieldManager: Too long: may not be more than 128 bytes`},
		{"application/merge-patch+json", "fieldManager=a%0Ab", `PatchOptions.meta.k8s.io "" is invalid: fieldManager: Invalid value: "a\nb": invalid character U+000A (at position 1)`},
		{"application/merge-patch+json", "force=true", `PatchOptions.meta.k8s.io "" is invalid: force: Forbidden: may not be specified for non-apply patch`},
	} {
		_, err := parseWriteOptions(httptest.NewRequest("PATCH", "/?"+c.query, nil), &request.Request{}, "PatchOptions", types.PatchType(c.kind))
		if got := kubetest.Refused(t, err, 422, metav1.StatusReasonInvalid); got != c.want {
			t.Errorf("got %s, want %s", got, c.want)
		}
	}
	opts, err := parseWriteOptions(httptest.NewRequest("PATCH", "/?fieldManager=m&force=true", nil), &request.Request{}, "PatchOptions", types.ApplyPatchType)
	if err != nil || !opts.force || opts.Manager != "m" {
		t.Errorf("got %+v, %v", opts, err)
	}
}
