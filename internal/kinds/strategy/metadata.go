package strategy

// This file sets the metadata that only the server writes.

import (
	"time"

	"github.com/google/uuid"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/names"

	"apilet/internal/scheme"
)

// FillSystemFields sets the uid and the creation time of a new object, and clears the other system
// fields.
func FillSystemFields(obj scheme.Object, now time.Time) {
	WipeSystemFields(obj)
	obj.SetUID(types.UID(uuid.NewString()))
	obj.SetCreationTimestamp(metav1.NewTime(now).Rfc3339Copy())
}

// WipeSystemFields clears the fields that cannot be set when creating an object. It keeps the
// resourceVersion, which is checked by the store.
func WipeSystemFields(obj scheme.Object) { rest.WipeObjectMetaSystemFields(obj) }

// GenerateName sets a new object's name from its generateName.
func GenerateName(obj scheme.Object) {
	before := obj.GetName()
	obj.SetName(names.SimpleNameGenerator.GenerateName(obj.GetGenerateName()))
	if rename := of(obj).rename; rename != nil {
		rename(obj, before)
	}
}
