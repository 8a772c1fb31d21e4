package response

// This file defines View, the type and form of the objects in a response.

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/tidwall/gjson"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"apilet/internal/scheme"
)

// View defines the form of the objects in a response. Objects are returned completely, as rows of a
// Table, or as metadata only, and are encoded as JSON, YAML or protobuf.
type View struct {
	Res         *scheme.Resource // the type of the objects
	Media       MediaType        // the negotiated format
	include     string           // includeObject of a Table: None, Metadata or Object
	now         time.Time        // the time that ages in a Table refer to
	OmitColumns bool             // omit the columns, because a Table watch has already sent them
}

// ListMeta is the metadata of a list.
type ListMeta struct {
	Rev       int64  // resourceVersion
	Cont      string // continue; "" at the end
	Remaining *int64 // remainingItemCount; nil if omitted
}

// metadataIn returns the metadata of a stored object as it appears in a PartialObjectMetadata.
func (v *View) metadataIn(stored []byte) string {
	whole := gjson.GetBytes(stored, "metadata").Raw
	folded, meta := foldedAnnotations[v.Res.Base], metav1.ObjectMeta{}
	if folded == "" || !strings.Contains(whole, folded) || json.Unmarshal([]byte(whole), &meta) != nil {
		return whole
	}
	delete(meta.Annotations, folded)
	without, err := json.Marshal(&meta)
	if err != nil {
		return whole
	}
	return string(without)
}

func (v *View) listKind() string {
	if v.Media.As != "" {
		return v.Media.As
	}
	return v.Res.ListKind
}

func (v *View) listVersion() string {
	if v.Media.As != "" {
		return "meta.k8s.io/" + v.Media.Version
	}
	return v.Res.APIVersion()
}

// foldedAnnotations maps key prefixes of a type to an annotation that kube-apiserver moves into a
// field of the internal type. kube-apiserver makes Tables and metadata from internal types, so
// these do not have the annotation.
var foldedAnnotations = map[string]string{
	"/apps/daemonsets/":  appsv1.DeprecatedTemplateGeneration,
	"/apps/deployments/": appsv1.DeprecatedRollbackTo,
}
