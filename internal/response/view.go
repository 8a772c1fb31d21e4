package response

// This file is what a View knows: whose objects it shows, and in which form.

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/tidwall/gjson"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"apilet/internal/scheme"
)

// A View is how one response shows objects: whole, as the rows of a Table, or as their metadata alone; in JSON, YAML or protobuf.
type View struct {
	Res     *scheme.Resource // the type of the objects
	Media   MediaType        // as negotiated
	include string           // includeObject of a Table: None, Metadata or Object
	now     time.Time        // that ages of a Table count to
	Mute    bool             // a Table watch has told its columns already
}

// ListMeta is the metadata of a list; remaining is nil when it is not told.
type ListMeta struct {
	Rev       int64  // resourceVersion
	Cont      string // continue; "" at the end
	Remaining *int64 // remainingItemCount; nil: not told
}

// metadataIn is the metadata of a stored object as it is shown by itself.
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

// foldedAnnotations are those that kube-apiserver reads into fields of its internal types, by what the keys of a type start with: it makes tables and
// metadata of these, so that they lack them.
var foldedAnnotations = map[string]string{
	"/apps/daemonsets/":  appsv1.DeprecatedTemplateGeneration,
	"/apps/deployments/": appsv1.DeprecatedRollbackTo,
}
