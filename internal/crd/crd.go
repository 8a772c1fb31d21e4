package crd

// This file turns CustomResourceDefinitions into served types. The CRD is stored like any other
// object, and the type is served like a built-in type. For example (see custom.go for the
// objects):
//
//	POST customresourcedefinitions  {widgets.example.com}
//	     registry: decode ▶ Prepare ▶ Validate ▶ commit, revision 7
//	     sync: reads revision 7 from the log; the names are free ▶ status committed, revision 8 ▶ a row in the registry
//	201 Created                     from now on /apis/example.com/v1/widgets is served
//
// Sync is level-triggered. It compares the stored CRDs with the table, so it may be called after
// a write, at startup, or at any other time. A row only needs a few hundred bytes because the
// schema is not kept in memory.
//
// All versions of a CRD serve the same stored objects. With strategy None only apiVersion
// differs, and the schema of the version prunes. With strategy Webhook an external program
// converts (conversion.go).

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"github.com/tidwall/gjson"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	schemavalidation "k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"apilet/internal/crd/definitions"
	"apilet/internal/registry"
	"apilet/internal/scheme"
	"apilet/internal/store"
	"apilet/internal/webhook"
)

const retryCleanup = time.Second // retry interval if an object of a deleted CRD still has finalizers

// ---- Definitions

// Definitions synchronizes the registry with the stored CRDs. Sync is safe for concurrent use.
// Run must be called once.
type Definitions struct {
	st  *store.Store
	reg *scheme.Registry
	wr  *registry.Writer // deletes the objects of a deleted CRD
	log zerolog.Logger

	Report func(error)      // called with the result of each round of Run if it is not nil
	row    *scheme.Resource // the type of CRDs

	reserved  reservations // names that CRDs must not use
	services  *webhook.ServiceResolver
	events    *events
	at        int64 // if not 0, the revision of the registry
	pastCache pastCache
	changed   atomic.Int64 // revision of the last change to a CRD

	// guards the following fields; it is also locked while the status of a CRD is committed
	mu       sync.Mutex
	follower *store.Follower        // the events for the table
	table    map[string]*definition // by the CRD's name
	// channels of changed or deleted CRDs, which are closed after the registry is updated
	ended []chan struct{}
}

// A definition contains the parts of a stored CRD that are needed in memory. It is immutable.
type definition struct {
	name, group  string
	created      int64 // the CreateRev; if two CRDs use the same names, the older CRD is accepted
	accepted     apiextensionsv1.CustomResourceDefinitionNames
	namesMissing bool // some name is not accepted
	terminating  bool
	established  bool
	rows         []*scheme.Resource // the served versions
	storage      *scheme.Resource   // the storage version, even if it is not served
	schemas      *schemas
	converter    *converter                // nil for strategy None
	conversions  map[string]*rowConversion // by version, if there is a converter
	replaced     chan struct{}             // closed when the type changes, so that clients must restart their watches
}

// NewDefinitions returns Definitions and adds the type of CRDs itself to the registry. Sync then
// adds the stored CRDs.
func NewDefinitions(st *store.Store, reg *scheme.Registry, wr *registry.Writer, log zerolog.Logger) *Definitions {
	d := &Definitions{st: st, reg: reg, wr: wr, log: log, table: map[string]*definition{},
		services: &webhook.ServiceResolver{Store: st, Types: reg}, events: newEvents(),
		pastCache: pastCache{buildLock: make(chan struct{}, 1), defined: map[versionKey]*cachedDefinition{}}}
	d.row = scheme.GroupVersion(apiextensionsv1.GroupName, "v1",
		scheme.Row[apiextensionsv1.CustomResourceDefinition](scheme.InExtensions|scheme.HasGeneration, "customresourcedefinitions crd crds", "status"))[0]
	d.follower = st.Follow(d.row.Base)
	d.row.Custom = &scheme.CustomStrategy{Defaults: defaultDefinition, Prepare: prepareDefinition, Validate: validateDefinition, Warnings: definitionWarnings,
		MarkDeleting: markTerminating, OnCommit: d.Sync}
	d.reserved = reserve(slices.Concat(scheme.Builtins, scheme.Optional, []*scheme.Resource{d.row}))
	reg.ReplaceCustom([]*scheme.Resource{d.row})
	return d
}

// Run follows the CRDs until ctx ends. It deletes the objects of deleted CRDs and releases
// compiled schemas that are idle.
func (d *Definitions) Run(ctx context.Context) {
	idle := time.Now().Add(schemaIdle / 5)
	for log := d.st.Follow(d.row.Base); ctx.Err() == nil; {
		log.From(d.st.Revision())
		waiting, err := d.cleanUp(ctx)
		if ctx.Err() == nil && d.Report != nil {
			d.Report(err)
		}
		until := idle
		if retry := time.Now().Add(retryCleanup); (waiting || err != nil) && retry.Before(idle) {
			until = retry
		}
		log.Wait(ctx, until, nil)
		if now := time.Now(); !now.Before(idle) {
			d.forgetIdle(now)
			idle = now.Add(schemaIdle / 5)
		}
	}
}

// forgetIdle releases compiled schemas that have not been used for schemaIdle.
func (d *Definitions) forgetIdle(now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, def := range d.table {
		def.schemas.forget(now)
	}
	d.pastCache.forget(now)
}

// Sync updates the table and the registry to the stored CRDs, and updates the status of each CRD.
// It is called after a CRD is written. The response is sent when Sync has returned, so the client
// can use the type immediately.
func (d *Definitions) Sync(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	changed := false
	for {
		from := d.follower.Rev()
		decide, err := d.applyLogLocked(ctx)
		for i := 0; i < len(decide) && err == nil; i++ {
			err = decide[i]()
		}
		if err != nil {
			d.follower.From(from) // the next call tries again
			return err
		}
		if len(decide) == 0 {
			break
		}
		changed = true
	}
	if changed {
		d.serveLocked()
	}
	return nil
}

// serveLocked updates the registry to the table.
func (d *Definitions) serveLocked() {
	rows, unserved := []*scheme.Resource{d.row}, []*scheme.Resource(nil)
	for _, def := range d.table {
		rows = append(rows, def.rows...)
		if len(def.rows) == 0 && def.storage != nil {
			unserved = append(unserved, def.storage)
		}
	}
	d.reg.ReplaceCustom(rows, unserved...)
	for _, over := range d.ended {
		close(over)
	}
	d.ended = nil
}

// applyLogLocked adds the CRDs written since the last call to the table. It returns functions that
// accept or reject the names. They must run after all CRDs are in the table, because any of them
// may use the same names.
func (d *Definitions) applyLogLocked(ctx context.Context) (decide []func() error, err error) {
	anew := false
	err = d.follower.CatchUp(context.WithoutCancel(ctx), func() {
		for _, def := range d.table {
			d.ended = append(d.ended, def.replaced)
		}
		clear(d.table)
		decide, anew = nil, true
	}, func(ev *store.Event) { decide = append(decide, d.applyCRDLocked(ctx, &ev.Record)) })
	if err == nil && (anew || len(decide) > 0) {
		d.changed.Store(d.follower.Rev()) // CRDs deleted earlier are not in the table
	}
	return decide, err
}

// applyCRDLocked adds a written CRD to the table. It returns a function that decides about the
// names that the CRD uses or releases.
func (d *Definitions) applyCRDLocked(ctx context.Context, rec *store.Record) (decide func() error) {
	_, name := scheme.NamespacedName(rec.Key)
	before := d.table[name]
	delete(d.table, name)
	if rec.Deleted {
		if before != nil {
			d.ended = append(d.ended, before.replaced)
			before.converter.close(nil)
		}
		return func() error { return d.reconsiderLocked(ctx, before) }
	}
	crd, err := d.outline(rec)
	if err != nil { // only this CRD is not served
		if before != nil {
			d.ended = append(d.ended, before.replaced)
		}
		d.wr.Corrupt.Add(rec, err)
		return func() error { return nil }
	}
	d.table[name] = d.define(crd, rec, before)
	key, rev := rec.Key, rec.Rev
	return func() error {
		if err := d.decideLocked(ctx, crd, key, rev); err != nil {
			return err
		}
		return d.reconsiderLocked(ctx, before)
	}
}

// reconsiderLocked is called when a CRD may have released names. It accepts these names for the
// other CRDs that need them, starting with the oldest CRD.
func (d *Definitions) reconsiderLocked(ctx context.Context, before *definition) error {
	if before == nil {
		return nil
	}
	var wanting []*definition
	for _, def := range d.table {
		if def.namesMissing && def.group == before.group && def.name != before.name {
			wanting = append(wanting, def)
		}
	}
	slices.SortFunc(wanting, func(a, b *definition) int { return cmp.Compare(a.created, b.created) })
	for _, def := range wanting {
		rec, err := d.st.Get(d.row.Key("", def.name))
		if errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrDamaged) {
			continue // the log also has its deletion
		}
		if err != nil {
			return err
		}
		crd, err := d.outline(&rec)
		if errors.Is(err, scheme.ErrUnreadable) {
			continue
		}
		if err != nil {
			return err
		}
		if err := d.decideLocked(ctx, crd, rec.Key, rec.Rev); err != nil {
			return err
		}
	}
	return nil
}

// outline decodes a CRD without the schemas, managedFields and the last-applied annotation of
// kubectl. The type is also served if these parts cannot be decoded.
func (d *Definitions) outline(rec *store.Record) (*apiextensionsv1.CustomResourceDefinition, error) {
	obj, err := d.row.DecodeStored(scheme.WithoutManagedFields(withoutSchemas(rec.JSON)))
	if err != nil {
		return nil, err
	}
	crd := obj.(*apiextensionsv1.CustomResourceDefinition)
	delete(crd.Annotations, corev1.LastAppliedConfigAnnotation)
	return crd, nil
}

func withoutSchemas(stored []byte) []byte {
	out, from := make([]byte, 0, 4096), 0
	for _, v := range gjson.GetBytes(stored, "spec.versions").Array() {
		if schema := v.Get("schema"); schema.Exists() {
			out = append(append(out, stored[from:schema.Index]...), "null"...)
			from = schema.Index + len(schema.Raw)
		}
	}
	return append(out, stored[from:]...)
}

// decideLocked computes the status of the CRD and commits it if it has changed. The CRD is
// decoded by outline. The log then contains another event for the CRD. The registry is updated
// before the new status is committed. If a client waits for the condition Established, it can use
// the type immediately.
func (d *Definitions) decideLocked(ctx context.Context, outline *apiextensionsv1.CustomResourceDefinition, key string, rev int64) error {
	before := outline.Status.DeepCopy()
	d.acceptNames(outline)
	approval(outline)
	if apiequality.Semantic.DeepEqual(before, &outline.Status) {
		return nil
	}
	rec, err := d.st.Get(key)
	if errors.Is(err, store.ErrNotFound) || err == nil && rec.Rev != rev {
		return nil // the log has the newer version
	}
	if err != nil {
		return err
	}
	obj, err := d.wr.Read(d.row, &rec)
	if errors.Is(err, scheme.ErrUnreadable) {
		return nil // it is served according to its status
	}
	if err != nil {
		return err
	}
	crd := obj.(*apiextensionsv1.CustomResourceDefinition)
	crd.Status = outline.Status
	stored, revAt, err := d.row.EncodeStored(crd)
	if err != nil {
		return err
	}
	d.table[crd.Name] = d.define(crd, &rec, d.table[crd.Name])
	d.serveLocked()
	_, err = d.st.Commit(ctx, store.Change{Op: store.OpUpdate, Key: key, Expect: rev, JSON: stored, RevAt: revAt, Deleting: rec.Deleting})
	if errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrNotFound) {
		return nil // a concurrent write succeeded and is also in the log
	}
	return err
}

// acceptNames sets the conditions NamesAccepted and Established and the accepted names. Within a
// group, plural, singular and short names must be unique, and so must kinds and list kinds. If a
// name is taken, the previously accepted name remains, unless it belongs to a built-in type.
func (d *Definitions) acceptNames(crd *apiextensionsv1.CustomResourceDefinition) {
	resources, kinds := d.usedNames(crd)
	if d.reserved.holds(crd.Spec.Group, crd.Spec.Names.Plural) {
		crd.Status.AcceptedNames = apiextensionsv1.CustomResourceDefinitionNames{}
		if apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established) {
			apihelpers.SetCRDCondition(crd, notEstablished())
		}
	}
	want, got := crd.Spec.Names, &crd.Status.AcceptedNames
	condition := apiextensionsv1.CustomResourceDefinitionCondition{Type: apiextensionsv1.NamesAccepted,
		Status: apiextensionsv1.ConditionTrue, Reason: "NoConflicts", Message: "no conflicts found"}
	accept := func(what string, taken map[string]bool, to *[]string, names ...string) {
		if message := conflicts(names, taken); message != "" {
			condition.Status, condition.Reason, condition.Message = apiextensionsv1.ConditionFalse, what+"Conflict", message
			return
		}
		*to = names
	}
	one := func(what string, taken map[string]bool, to *string, name string) {
		names := []string{*to}
		accept(what, taken, &names, name)
		*to = names[0]
	}
	one("Plural", resources, &got.Plural, want.Plural)
	one("Singular", resources, &got.Singular, want.Singular)
	accept("ShortNames", resources, &got.ShortNames, want.ShortNames...)
	one("Kind", kinds, &got.Kind, want.Kind)
	one("ListKind", kinds, &got.ListKind, want.ListKind)
	got.Categories = want.Categories
	apihelpers.SetCRDCondition(crd, condition)
	establish(crd)
}

// usedNames returns the names that are used by built-in types and by the other CRDs of the group.
func (d *Definitions) usedNames(crd *apiextensionsv1.CustomResourceDefinition) (resources, kinds map[string]bool) {
	resources, kinds = map[string]bool{}, map[string]bool{}
	maps.Copy(resources, d.reserved.resources[crd.Spec.Group])
	maps.Copy(kinds, d.reserved.kinds[crd.Spec.Group])
	for _, def := range d.table {
		if def.group != crd.Spec.Group || def.name == crd.Name {
			continue
		}
		resources[def.accepted.Plural], resources[def.accepted.Singular] = true, true
		for _, name := range def.accepted.ShortNames {
			resources[name] = true
		}
		kinds[def.accepted.Kind], kinds[def.accepted.ListKind] = true, true
	}
	return resources, kinds
}

// conflicts returns a message if some of the names are already used, or "".
func conflicts(names []string, taken map[string]bool) string {
	var texts []string
	for _, name := range names {
		if taken[name] {
			texts = append(texts, fmt.Sprintf("%q is already in use", name))
		}
	}
	if len(texts) > 1 {
		return "[" + strings.Join(texts, ", ") + "]"
	}
	return strings.Join(texts, "")
}

// establish sets the condition Established. Once true, it remains true.
func establish(crd *apiextensionsv1.CustomResourceDefinition) {
	condition := notEstablished()
	switch {
	case apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established):
		return
	case apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.NamesAccepted):
		condition.Status, condition.Reason = apiextensionsv1.ConditionTrue, "InitialNamesAccepted"
		condition.Message = "the initial names have been accepted"
	}
	apihelpers.SetCRDCondition(crd, condition)
}

func notEstablished() apiextensionsv1.CustomResourceDefinitionCondition {
	return apiextensionsv1.CustomResourceDefinitionCondition{Type: apiextensionsv1.Established,
		Status: apiextensionsv1.ConditionFalse, Reason: "NotAccepted", Message: "not all names are accepted"}
}

// approval sets the condition KubernetesAPIApprovalPolicyConformant if the group is reserved for
// Kubernetes, such as k8s.io. It is true if the API has been approved.
func approval(crd *apiextensionsv1.CustomResourceDefinition) {
	if !apihelpers.IsProtectedCommunityGroup(crd.Spec.Group) {
		return
	}
	condition := apiextensionsv1.CustomResourceDefinitionCondition{Type: apiextensionsv1.KubernetesAPIApprovalPolicyConformant,
		Status: apiextensionsv1.ConditionFalse}
	state, message := apihelpers.GetAPIApprovalState(crd.Annotations)
	condition.Message = message
	switch state {
	case apihelpers.APIApproved:
		condition.Status, condition.Reason = apiextensionsv1.ConditionTrue, "ApprovedAnnotation"
	case apihelpers.APIApprovalBypassed:
		condition.Reason = "UnapprovedAnnotation"
	case apihelpers.APIApprovalMissing:
		condition.Reason = "MissingAnnotation"
	default:
		condition.Reason = "InvalidAnnotation"
	}
	apihelpers.SetCRDCondition(crd, condition)
}

// ---- From a CRD to rows

// define creates the rows of a CRD. It reuses the compiled schemas of before if the spec is the
// same, and the age of the schema if that is the same.
func (d *Definitions) define(crd *apiextensionsv1.CustomResourceDefinition, rec *store.Record, before *definition) *definition {
	def := &definition{name: crd.Name, group: crd.Spec.Group, created: rec.CreateRev, accepted: crd.Status.AcceptedNames,
		terminating: crd.DeletionTimestamp != nil, established: apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established)}
	accepted := apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.NamesAccepted)
	def.namesMissing = !accepted
	def.schemas = &schemas{st: d.st, key: rec.Key, since: rec.Rev, spec: schemaDigest(gjson.GetBytes(rec.JSON, "spec").Raw)}
	storage := storageVersion(crd)
	def.schemas.at.Store(d.at)
	def.schemas.stored = versionDigest(rec.JSON, storage)
	if before != nil && before.created == def.created {
		if before.schemas.spec == def.schemas.spec {
			def.schemas = before.schemas
		} else if before.schemas.stored == def.schemas.stored {
			def.schemas.since = before.schemas.since
		}
	}
	def.convert(crd, before, d.services)
	def.replaced = d.replacedLocked(def, before)
	if !accepted && !def.established || !d.ownsKeys(crd) {
		return def
	}
	unmarked, verbatim := d.implicitVersion(crd, storage), (*scheme.Resource)(nil)
	for i := range crd.Spec.Versions {
		v := &crd.Spec.Versions[i]
		res := def.row(crd, v)
		res.Custom.StorageVersion, res.Custom.ImplicitVersion, res.Custom.IsComplete = storage, unmarked, def.schemas.isComplete
		if tag := versionDigest(rec.JSON, v.Name); tag != def.schemas.stored {
			res.Custom.IsComplete = func([]byte) (bool, error) { return false, nil }
			res.Custom.ToStorage = def.schemas.toStorage
		}
		if def.converter != nil {
			if verbatim == nil {
				verbatim = def.verbatim(res)
			}
			d.convertRow(def, before, res, verbatim)
		}
		res.SchemaTag = def.schemas.spec
		if v.Storage {
			def.storage = res
		}
		if v.Served {
			def.rows = append(def.rows, res)
		}
	}
	return def
}

// convert sets the converter of a CRD. It reuses the converter of before if the spec is the same.
func (def *definition) convert(crd *apiextensionsv1.CustomResourceDefinition, before *definition, services *webhook.ServiceResolver) {
	if before == nil {
		def.converter = newConverter(crd, def.schemas, services, nil)
		return
	}
	if def.converter = before.converter; def.schemas != before.schemas {
		def.converter = newConverter(crd, def.schemas, services, before.converter)
		before.converter.close(def.converter)
	}
}

// convertRow configures a version's row for conversion by a webhook. If a write does not change
// the spec of the CRD, the rowConversion is reused, so that earlier and later watches share the
// webhook's responses.
func (d *Definitions) convertRow(def, before *definition, res, verbatim *scheme.Resource) {
	c := res.Custom
	r := &rowConversion{converter: def.converter, res: res, events: d.events}
	if before != nil && before.converter == def.converter {
		if same := before.conversions[res.Version]; same != nil && same.res.Custom.ImplicitVersion == c.ImplicitVersion {
			r = same
		}
	}
	if def.conversions == nil {
		def.conversions = map[string]*rowConversion{}
	}
	def.conversions[res.Version] = r
	c.Webhook = &scheme.WebhookConversion{Read: r.read, Watch: r.watch, To: r.to}
	c.IsComplete, c.Complete, c.Verbatim, c.ToStorage = r.isComplete, r.complete, verbatim, nil
	if res.Version != c.StorageVersion {
		c.ToStorage = r.toStorage
	}
}

// verbatim returns a row for internal use. It serves all objects in the stored version.
func (def *definition) verbatim(of *scheme.Resource) *scheme.Resource {
	res := *of
	res.Version, res.Subresources, res.Schema = of.Custom.StorageVersion, nil, nil
	row := scheme.GroupVersion(res.Group, res.Version, &res)[0]
	row.Custom = &scheme.CustomStrategy{StorageVersion: of.Custom.StorageVersion, ImplicitVersion: of.Custom.ImplicitVersion, Replaced: of.Custom.Replaced, Verbatim: row, Shape: of.Custom.Shape,
		Prepare:    func(obj, _ scheme.Object, _ string) scheme.Object { return obj },
		Validate:   func(context.Context, scheme.Object, scheme.Object, string) field.ErrorList { return nil },
		IsComplete: func([]byte) (bool, error) { return true, nil },
		Webhook:    &scheme.WebhookConversion{To: def.converter.to}}
	return row
}

// implicitVersion returns the version of stored objects that do not name their version, which is
// the first storage version. When the storage version changes, the first version is saved in the
// data file. Before that it is read from status.storedVersions, which clients can overwrite.
func (d *Definitions) implicitVersion(crd *apiextensionsv1.CustomResourceDefinition, storage string) string {
	first := storage
	if stored := crd.Status.StoredVersions; len(stored) > 0 {
		first = stored[0]
	}
	name := "unmarked/" + crd.Name
	kept, err := d.st.Value(name)
	if err == nil && kept == nil && first != storage && d.at == 0 {
		kept, err = d.st.Secret(name, func() []byte { return []byte(first) })
	}
	if err != nil {
		d.log.Error().Err(err).Str("definition", crd.Name).Msg("cannot determine the version in which the first objects of a definition are stored")
	}
	if kept != nil {
		return string(kept)
	}
	return first
}

// ownsKeys reports whether the CRD is the only type with these keys. The plural is a part of the
// CRD's unique name. The accepted plural may differ because clients can write the status.
func (d *Definitions) ownsKeys(crd *apiextensionsv1.CustomResourceDefinition) bool {
	plural := crd.Spec.Names.Plural
	return crd.Status.AcceptedNames.Plural == plural && crd.Name == plural+"."+crd.Spec.Group && !d.reserved.holds(crd.Spec.Group, plural)
}

// replacedLocked returns the channel that ends watches of def. It returns the channel of before if
// only status and metadata have changed.
func (d *Definitions) replacedLocked(def, before *definition) chan struct{} {
	if before == nil {
		return make(chan struct{})
	}
	if def.schemas == before.schemas && apiequality.Semantic.DeepEqual(def.accepted, before.accepted) {
		return before.replaced
	}
	d.ended = append(d.ended, before.replaced)
	return make(chan struct{})
}

func schemaDigest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:8])
}

// versionDigest returns a digest of the version's schema.
func versionDigest(stored []byte, name string) string {
	for _, v := range gjson.GetBytes(stored, "spec.versions").Array() {
		if v.Get("name").String() == name {
			return schemaDigest(v.Get("schema").Raw)
		}
	}
	return ""
}

func storageVersion(crd *apiextensionsv1.CustomResourceDefinition) string {
	name, _ := apihelpers.GetCRDStorageVersion(crd) // validation requires a storage version
	return name
}

// row returns the row of one version.
func (def *definition) row(crd *apiextensionsv1.CustomResourceDefinition, v *apiextensionsv1.CustomResourceDefinitionVersion) *scheme.Resource {
	names := &crd.Status.AcceptedNames
	res := &scheme.Resource{Kind: names.Kind, ListKind: names.ListKind, Plural: names.Plural, Singular: names.Singular, ShortNames: names.ShortNames,
		Categories: names.Categories, Namespaced: crd.Spec.Scope == apiextensionsv1.NamespaceScoped, Generation: true,
		Verbs: []string{"delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"}}
	cr := &customStrategy{schemas: def.schemas, version: v.Name, res: res}
	if subs := v.Subresources; subs != nil && subs.Status != nil {
		cr.status = true
		res.Subresources = append(res.Subresources, scheme.SubresourceOf("status", names.Kind))
	}
	if subs := v.Subresources; subs != nil && subs.Scale != nil {
		cr.scale = subs.Scale
		res.Subresources = append(res.Subresources, scheme.SubresourceOf("scale", names.Kind))
	}
	if v.Deprecated {
		res.Deprecation = &scheme.Deprecation{Deprecated: [2]int{1, 0}}
	}
	res.Custom = &scheme.CustomStrategy{Deprecation: deprecationText(crd, v), Prepare: cr.prepare, Validate: cr.validate, Shape: cr.shape, ShapeApplied: cr.shapeApplied,
		Complete: cr.complete, Scale: cr.scaleOf, Cache: cr.cache, Defaults: cr.defaults, Replaced: def.replaced, Definition: def.schemas.key, Terminating: def.terminating}
	if len(v.AdditionalPrinterColumns) > 0 {
		res.Custom.Columns, res.Custom.Cells = cr.columns, cr.cells
	}
	for _, f := range v.SelectableFields {
		res.Custom.Selectable = append(res.Custom.Selectable, strings.TrimPrefix(f.JSONPath, "."))
	}
	res.Schema = cr.openAPI
	return scheme.GroupVersion(crd.Spec.Group, v.Name, res)[0]
}

// deprecationText returns the deprecation warning of the CRD. The default warning recommends the
// newest version.
func deprecationText(crd *apiextensionsv1.CustomResourceDefinition, old *apiextensionsv1.CustomResourceDefinitionVersion) string {
	if old.DeprecationWarning != nil {
		return *old.DeprecationWarning
	}
	best := old.Name
	for _, v := range crd.Spec.Versions {
		if v.Served && !v.Deprecated && version.CompareKubeAwareVersionStrings(v.Name, best) > 0 {
			best = v.Name
		}
	}
	text := fmt.Sprintf("%s/%s %s is deprecated", crd.Spec.Group, old.Name, crd.Spec.Names.Kind)
	if best != old.Name {
		text += fmt.Sprintf("; use %s/%s %s", crd.Spec.Group, best, crd.Spec.Names.Kind)
	}
	return text
}

// ---- Writing a CRD

func defaultDefinition(obj scheme.Object) error {
	apiextensionsv1.SetObjectDefaults_CustomResourceDefinition(obj.(*apiextensionsv1.CustomResourceDefinition))
	return nil
}

// prepareDefinition restores the old status, or the old spec if the subresource is status.
func prepareDefinition(obj, old scheme.Object, sub string) scheme.Object {
	crd := obj.(*apiextensionsv1.CustomResourceDefinition)
	var before apiextensionsv1.CustomResourceDefinition
	if old != nil {
		old.(*apiextensionsv1.CustomResourceDefinition).DeepCopyInto(&before)
	}
	if sub == "status" {
		crd.Spec = before.Spec
		return crd
	}
	crd.Status = before.Status
	if storage := storageVersion(crd); storage != "" && !slices.Contains(crd.Status.StoredVersions, storage) {
		crd.Status.StoredVersions = append(crd.Status.StoredVersions, storage)
	}
	return crd
}

// validateDefinition validates a CRD by Kubernetes' rules, including CEL expressions and their
// estimated cost.
func validateDefinition(ctx context.Context, obj, old scheme.Object, sub string) field.ErrorList {
	now, before := &apiextensions.CustomResourceDefinition{}, &apiextensions.CustomResourceDefinition{}
	if err := internalDefinition(obj, now); err != nil {
		return field.ErrorList{field.InternalError(nil, err)}
	}
	if old == nil {
		return definitions.ValidateCreate(ctx, now)
	}
	if err := internalDefinition(old, before); err != nil {
		return field.ErrorList{field.InternalError(nil, err)}
	}
	if sub == "status" {
		return definitions.ValidateStatusUpdate(now, before)
	}
	return definitions.ValidateUpdate(ctx, now, before)
}

func internalDefinition(obj scheme.Object, out *apiextensions.CustomResourceDefinition) error {
	in := obj.DeepCopyObject().(*apiextensionsv1.CustomResourceDefinition)
	return apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(in, out, nil)
}

// definitionWarnings returns warnings if the CRD uses unrecognized formats, or sets that are not
// supported by server-side apply and CEL. For an update it returns only new warnings.
func definitionWarnings(obj, old scheme.Object) (texts []string) {
	crd := obj.(*apiextensionsv1.CustomResourceDefinition)
	known := map[string]bool{}
	if old != nil {
		known = schemaWarnings(old.(*apiextensionsv1.CustomResourceDefinition))
	}
	for _, text := range slices.Sorted(maps.Keys(schemaWarnings(crd))) {
		if !known[text] {
			texts = append(texts, text)
		}
	}
	return texts
}

// schemaWarnings returns the warnings for the schemas of the CRD. The warning about sets was
// added to kube-apiserver in 1.37.
func schemaWarnings(crd *apiextensionsv1.CustomResourceDefinition) map[string]bool {
	texts, internal := map[string]bool{}, &apiextensions.CustomResourceDefinition{}
	if internalDefinition(crd, internal) != nil {
		return nil // validation has reported the error
	}
	for root := range definitions.RootSchemas(&internal.Spec) {
		for s := range definitions.AllSchemas(root) {
			noteFormat(s, texts)
			isSet := s.XListType != nil && *s.XListType == "set" && s.Items != nil && s.Items.Schema != nil
			if isSet && (s.Items.Schema.Type == "object" || s.Items.Schema.Type == "array") {
				texts[fmt.Sprintf("x-kubernetes-list-type: set for items of type %q is not supported by server-side apply or CEL validation rules", s.Items.Schema.Type)] = true
			}
		}
	}
	return texts
}

func noteFormat(s *apiextensions.JSONSchemaProps, texts map[string]bool) {
	if s.Format == "" {
		return
	}
	asked := &spec.Schema{SchemaProps: spec.SchemaProps{Format: s.Format, Type: spec.StringOrArray{s.Type}}}
	for _, format := range schemavalidation.GetUnrecognizedFormats(asked, environment.DefaultCompatibilityVersion()) {
		texts[fmt.Sprintf("unrecognized format %q", format)] = true
	}
}

// markTerminating marks a CRD for deletion. It is removed after its objects.
func markTerminating(obj scheme.Object) {
	crd := obj.(*apiextensionsv1.CustomResourceDefinition)
	stamp := metav1.Now().Rfc3339Copy()
	crd.DeletionTimestamp = &stamp
	if !slices.Contains(crd.Finalizers, apiextensionsv1.CustomResourceCleanupFinalizer) {
		crd.Finalizers = append(crd.Finalizers, apiextensionsv1.CustomResourceCleanupFinalizer)
	}
	apihelpers.SetCRDCondition(crd, apiextensionsv1.CustomResourceDefinitionCondition{Type: apiextensionsv1.Terminating,
		Status: apiextensionsv1.ConditionTrue, Reason: "InstanceDeletionPending",
		Message: "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon"})
}

// cleanUp deletes the objects of CRDs that are being deleted. If there are no objects left, it
// deletes the CRD. The result waiting is true if an object still has finalizers.
func (d *Definitions) cleanUp(ctx context.Context) (waiting bool, err error) {
	if err := d.Sync(ctx); err != nil {
		return false, err
	}
	d.mu.Lock()
	var going []*definition
	for _, def := range d.table {
		if def.terminating {
			going = append(going, def)
		}
	}
	d.mu.Unlock()
	for _, def := range going {
		done, emptyErr := d.deleteContents(ctx, def)
		waiting = waiting || !done
		err = errors.Join(err, emptyErr)
	}
	return waiting, err
}

// deleteContents deletes the objects of the CRD.
func (d *Definitions) deleteContents(ctx context.Context, def *definition) (done bool, err error) {
	condition := apiextensionsv1.CustomResourceDefinitionCondition{Type: apiextensionsv1.Terminating, Status: apiextensionsv1.ConditionFalse,
		Reason: "NeverEstablished", Message: "resource was never established"}
	if def.established && def.storage != nil {
		condition.Reason, condition.Message = "InstanceDeletionCompleted", "removed all instances"
		if err := d.deleteObjects(ctx, def.storage); err != nil {
			return false, err
		}
		if left, _, _ := d.st.Count(def.storage.Base); left > 0 {
			condition.Status, condition.Reason = apiextensionsv1.ConditionTrue, "InstanceDeletionInProgress"
			condition.Message = "CustomResource deletion is in progress"
			return false, d.setTerminating(ctx, def, condition)
		}
	}
	return true, d.setTerminating(ctx, def, condition)
}

// deleteObjects deletes all objects that are not being deleted yet.
func (d *Definitions) deleteObjects(ctx context.Context, res *scheme.Resource) error {
	res = res.AsStored()
	if d.reserved.holds(res.StorageGroup, res.Plural) {
		return fmt.Errorf("the objects of a built-in type were to be deleted with a definition: %s", res.Base)
	}
	background := metav1.DeletePropagationBackground
	var failed error // the first error; it does not stop the loop
	for c, err := range d.st.Chunks(store.Span{Prefix: res.Base, SkipDamaged: true}) {
		if err := cmp.Or(err, ctx.Err()); err != nil {
			return cmp.Or(failed, err)
		}
		found := c.Damaged
		for i := range c.Records {
			if !c.Records[i].Deleting {
				found = append(found, c.Records[i].Key)
			}
		}
		failed = cmp.Or(failed, registry.Parallel(found, registry.DeleteWorkers, func(key string) error {
			namespace, name := scheme.NamespacedName(key)
			_, _, err := d.wr.Delete(ctx, res, namespace, name, &metav1.DeleteOptions{PropagationPolicy: &background})
			if apierrors.IsNotFound(err) {
				return nil
			}
			return err
		}))
	}
	return failed
}

// setTerminating sets the condition Terminating. If the condition is false, it removes the
// finalizer, and the CRD is deleted.
func (d *Definitions) setTerminating(ctx context.Context, def *definition, condition apiextensionsv1.CustomResourceDefinitionCondition) error {
	t := registry.Target{Resource: d.row, Name: def.name, Subresource: "status"}
	_, _, err := d.wr.Modify(ctx, t, registry.Options{}, func(old scheme.Object, _ *store.Record) (scheme.Object, error) {
		crd := old.DeepCopyObject().(*apiextensionsv1.CustomResourceDefinition)
		apihelpers.SetCRDCondition(crd, condition)
		if condition.Status == apiextensionsv1.ConditionFalse {
			apihelpers.CRDRemoveFinalizer(crd, apiextensionsv1.CustomResourceCleanupFinalizer)
		}
		return crd, nil
	})
	if registry.IsPermanent(err) {
		_, _, err = d.wr.Delete(ctx, d.row, "", def.name, &metav1.DeleteOptions{})
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
