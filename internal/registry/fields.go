package registry

// This file maintains metadata.managedFields, which records the owner of each field. Package
// fieldmanager contains the algorithm.

import (
	"context"
	"encoding/json"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"apilet/internal/fieldmanager"
	"apilet/internal/kinds/strategy"
	"apilet/internal/scheme"
)

// timeout of a conversion webhook that converts managed fields to another version
const conversionTimeout = 30 * time.Second

// recordOwners updates obj's managedFields with the fields that this write sets. old is nil for a
// create.
func (wr *Writer) recordOwners(res *scheme.Resource, old, obj scheme.Object, opts Options, sub string) error {
	if !wr.ManagedFields {
		obj.SetManagedFields(nil)
		return nil
	}
	if opts.applied || res.IsVerbatim() {
		return nil
	}
	strategy.SetDerivedAnnotations(obj)
	before, after := old, res.ConvertOut(obj)
	if old != nil {
		before = res.ConvertOut(old)
		before.GetObjectKind().SetGroupVersionKind(res.GroupVersionKind())
	}
	if err := wr.FieldManager(res).Update(before, after, opts.Manager, sub); err != nil {
		return err
	}
	if after != obj {
		obj.SetManagedFields(after.GetManagedFields())
	}
	if res.GoType != nil { // typed objects are kept without a kind
		for _, o := range []scheme.Object{obj, old} {
			if o != nil {
				o.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
			}
		}
	}
	return nil
}

// FieldManager returns the manager of managedFields for a resource.
func (wr *Writer) FieldManager(res *scheme.Resource) *fieldmanager.Manager {
	managers, key := &wr.managers, any(res)
	if c := res.Custom; c != nil && c.Cache != nil {
		managers, key = c.Cache(), "fieldManager"
	}
	known, ok := managers.Load(key)
	if !ok {
		known, _ = managers.LoadOrStore(key, wr.newFieldManager(res))
	}
	return known.(*fieldmanager.Manager)
}

func (wr *Writer) newFieldManager(res *scheme.Resource) *fieldmanager.Manager {
	o := &fieldmanager.Manager{Kind: res.GroupVersionKind(), GoType: res.ExpectedBody("").Wire, Status: res.Subresource("status") != nil,
		Counters: &wr.FieldTracking}
	if res.NeedsConversion() {
		o.SchemaOf = func(version string) (schema map[string]any) {
			if other := wr.Types.Lookup(res.Group, version, res.Plural); other != nil && other.Schema != nil {
				if own, err := other.Schema(); err == nil {
					_ = json.Unmarshal(own, &schema)
				}
			}
			return schema
		}
		o.ConvertTo = func(u *unstructured.Unstructured, version string) (*unstructured.Unstructured, error) {
			// independent of any request, because the manager is shared
			ctx, cancel := context.WithTimeout(context.Background(), conversionTimeout)
			defer cancel()
			return res.Custom.Webhook.To(ctx, u, version)
		}
	}
	if res.Schema != nil {
		if own, err := res.Schema(); err == nil {
			_ = json.Unmarshal(own, &o.Schema) // if there is no schema, only maps are merged
		}
	}
	for _, other := range wr.Types.All() {
		if other.KeyPrefix("") == res.KeyPrefix("") && other != res {
			o.Versions = append(o.Versions, other.APIVersion())
		}
	}
	return o
}
