package main

// This file makes types out of data. A CustomResourceDefinition is an object like others, stored under its key; what it describes is
// served like a built-in type, by the same walk. The file has two parts, one for the definitions and one for their objects:
//
//	definitions   follows the log of definitions and keeps the registry's rows: for each served version one, names only
//	schemas       what a definition says about its objects, compiled at the first use and let go of after five idle minutes
//
// A row costs a few hundred bytes; the schema stays in the store. Whoever writes, or reads what was stored under an older schema,
// compiles the version: HTTPRoute of the Gateway API takes half a MiB then, and several more once its CEL rules are needed.
//
//	POST widgets.example.com ─▶ commit ─▶ sync: names? status, rows ─▶ 201       from here on /apis/example.com/v1/widgets is there
//	POST /apis/example.com/v1/widgets ─▶ shape (prune, default) ─▶ judge (schema, lists, CEL) ─▶ toStorage ─▶ commit
//	GET ─▶ bytes as stored, if they are no older than the schema; else complete ─▶ 200
//
// All versions of a definition show the same stored objects. Conversion is what Kubernetes calls None: only apiVersion changes, and the
// version's schema prunes. A definition that asks for a conversion webhook is accepted, with a warning, and converted by None as well:
// most of them can do without as long as all clients speak the storage version.

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"github.com/tidwall/gjson"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	definitionvalidation "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel/model"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	schemavalidation "k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta/table"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/version"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	celcommon "k8s.io/apiserver/pkg/cel/common"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/client-go/util/jsonpath"
	"k8s.io/kube-openapi/pkg/validation/spec"
	kjson "sigs.k8s.io/json"
)

const (
	schemaIdle   = 5 * time.Minute // compiled schemas that nobody has used for so long are let go of
	retryCleanup = time.Second     // while objects of a deleted definition wait for their finalizers
)

// ---- Definitions

// definitions keeps the registry in step with the stored definitions. sync may be called by anybody; one goroutine runs run.
type definitions struct {
	st  *store
	reg *registry
	wr  *writes // deletes the objects of a definition that goes
	log zerolog.Logger
	row *resource // the type of definitions itself

	mu    sync.Mutex // guards what follows; held while the status of a definition is committed
	rev   int64      // what table shows
	table map[string]*definition
}

// A definition is what is kept in memory of a stored one. Immutable.
type definition struct {
	name, group string
	created     int64 // its createRev: of two that want a name the older one gets it
	accepted    apiextensionsv1.CustomResourceDefinitionNames
	wanting     bool // some name is not accepted
	terminating bool
	established bool
	rows        []*resource // the served versions
	storage     *resource   // the storage version, served or not
	schemas     *schemas
}

// newDefinitions serves the type of definitions. sync then brings in those that are stored.
func newDefinitions(st *store, reg *registry, wr *writes, log zerolog.Logger) *definitions {
	d := &definitions{st: st, reg: reg, wr: wr, log: log, table: map[string]*definition{}}
	d.row = groupVersion(apiextensionsv1.GroupName, "v1",
		row[apiextensionsv1.CustomResourceDefinition](inExtensions|counted, "customresourcedefinitions crd crds", "status"))[0]
	d.row.custom = &custom{prepare: prepareDefinition, validate: validateDefinition, warnings: definitionWarnings,
		deleting: markTerminating, committed: d.sync}
	reg.replaceCustom([]*resource{d.row})
	return d
}

// run follows the definitions until ctx ends: it empties those that are deleted, and lets go of what is compiled and idle.
func (d *definitions) run(ctx context.Context) {
	idle := time.NewTicker(schemaIdle / 5)
	defer idle.Stop()
	for ctx.Err() == nil {
		wake := d.st.wake(d.row.base)
		waiting, err := d.cleanUp(ctx)
		if err != nil && ctx.Err() == nil {
			d.log.Error().Err(err).Msg("definitions of custom resources")
		}
		var retry <-chan time.Time
		if waiting || err != nil {
			retry = time.After(retryCleanup)
		}
		select {
		case <-ctx.Done():
		case <-wake:
		case <-retry:
		case now := <-idle.C:
			d.forgetIdle(now)
		}
	}
}

// sync brings table and registry up to what is stored, and the stored status of each definition up to what follows from it. It is
// called after each write to a definition, before the answer: who reads the answer can use the type.
func (d *definitions) sync(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	changed := false
	for {
		current := d.st.revision()
		events, upTo, err := d.st.events(d.row.base, d.rev, 0, nil)
		if d.rev == 0 || errors.Is(err, errCompacted) {
			events, upTo, err = d.reloadLocked()
		}
		if err != nil {
			return err
		}
		for i := range events {
			if err := d.takeLocked(ctx, &events[i].record); err != nil {
				return err
			}
			changed = true
		}
		if d.rev = upTo; len(events) == 0 && upTo >= current {
			break
		}
	}
	if changed {
		rows := []*resource{d.row}
		for _, def := range d.table {
			rows = append(rows, def.rows...)
		}
		d.reg.replaceCustom(rows)
	}
	return nil
}

// reloadLocked reads all definitions as if each had just been written.
func (d *definitions) reloadLocked() (events []event, rev int64, err error) {
	clear(d.table)
	c := &chunk{}
	for at := (span{prefix: d.row.base}); ; at.rev, at.start = c.rev, c.next {
		if err := d.st.chunk(at, c); err != nil {
			return nil, 0, err
		}
		for _, rec := range c.records {
			rec.json = bytes.Clone(rec.json) // the chunk's buffer is used again
			events = append(events, event{record: rec})
		}
		if c.next == "" {
			return events, c.rev, nil
		}
	}
}

// takeLocked enters one written definition into the table, and decides about the names that it wants or frees.
func (d *definitions) takeLocked(ctx context.Context, rec *record) error {
	_, name := namespacedName(rec.key)
	if rec.deleted {
		gone := d.table[name]
		delete(d.table, name)
		return d.reconsiderLocked(ctx, gone)
	}
	obj, err := d.row.decodeStored(rec.json)
	if err != nil {
		return fmt.Errorf("definition %s: %w", name, err)
	}
	crd := obj.(*apiextensionsv1.CustomResourceDefinition)
	before := d.table[name]
	d.table[name] = d.define(crd, rec, before)
	if err := d.decideLocked(ctx, crd, rec); err != nil {
		return err
	}
	return d.reconsiderLocked(ctx, before)
}

// reconsiderLocked gives the names that a definition had, and may have given up, to those that want them, oldest first.
func (d *definitions) reconsiderLocked(ctx context.Context, before *definition) error {
	if before == nil {
		return nil
	}
	var wanting []*definition
	for _, def := range d.table {
		if def.wanting && def.group == before.group && def.name != before.name {
			wanting = append(wanting, def)
		}
	}
	slices.SortFunc(wanting, func(a, b *definition) int { return cmp.Compare(a.created, b.created) })
	for _, def := range wanting {
		rec, err := d.st.get(d.row.key("", def.name))
		if errors.Is(err, errNotFound) {
			continue // its deletion is in the log, too
		}
		if err != nil {
			return err
		}
		obj, err := d.row.decodeStored(rec.json)
		if err != nil {
			return err
		}
		if err := d.decideLocked(ctx, obj.(*apiextensionsv1.CustomResourceDefinition), &rec); err != nil {
			return err
		}
	}
	return nil
}

// decideLocked stores the status that follows from a definition, if it is new. The write shows up in the log as an event of its own.
func (d *definitions) decideLocked(ctx context.Context, crd *apiextensionsv1.CustomResourceDefinition, rec *record) error {
	before := crd.Status.DeepCopy()
	d.acceptNames(crd)
	judgeApproval(crd)
	if apiequality.Semantic.DeepEqual(before, &crd.Status) {
		return nil
	}
	stored, revAt, err := d.row.encodeStored(crd)
	if err != nil {
		return err
	}
	_, err = d.st.commit(ctx, change{op: opUpdate, key: rec.key, expect: rec.rev, json: stored, revAt: revAt, prev: rec.json, deleting: rec.deleting})
	if errors.Is(err, errConflict) || errors.Is(err, errNotFound) {
		return nil // somebody was faster; the newer version is in the log
	}
	return err
}

// acceptNames writes the conditions NamesAccepted and Established, and the names: plural, singular and short names share one space
// within a group, kind and list kind another.
func (d *definitions) acceptNames(crd *apiextensionsv1.CustomResourceDefinition) {
	resources, kinds := map[string]bool{}, map[string]bool{}
	for _, def := range d.table {
		if def.group != crd.Spec.Group || def.name == crd.Name {
			continue
		}
		for _, name := range append([]string{def.accepted.Plural, def.accepted.Singular}, def.accepted.ShortNames...) {
			resources[name] = true
		}
		kinds[def.accepted.Kind], kinds[def.accepted.ListKind] = true, true
	}
	want, got := &crd.Spec.Names, &crd.Status.AcceptedNames
	condition := apiextensionsv1.CustomResourceDefinitionCondition{Type: apiextensionsv1.NamesAccepted,
		Status: apiextensionsv1.ConditionTrue, Reason: "NoConflicts", Message: "no conflicts found"}
	accept := func(reason string, taken map[string]bool, names ...string) bool {
		var conflicts []string
		for _, name := range names {
			if taken[name] {
				conflicts = append(conflicts, fmt.Sprintf("%q is already in use", name))
			}
		}
		if len(conflicts) == 0 {
			return true
		}
		condition.Status, condition.Reason, condition.Message = apiextensionsv1.ConditionFalse, reason, strings.Join(conflicts, ", ")
		if len(conflicts) > 1 {
			condition.Message = "[" + condition.Message + "]"
		}
		return false
	}
	if accept("PluralConflict", resources, want.Plural) {
		got.Plural = want.Plural
	}
	if accept("SingularConflict", resources, want.Singular) {
		got.Singular = want.Singular
	}
	if accept("ShortNamesConflict", resources, want.ShortNames...) {
		got.ShortNames = want.ShortNames
	}
	if accept("KindConflict", kinds, want.Kind) {
		got.Kind = want.Kind
	}
	if accept("ListKindConflict", kinds, want.ListKind) {
		got.ListKind = want.ListKind
	}
	got.Categories = want.Categories
	apihelpers.SetCRDCondition(crd, condition)
	establish(crd)
}

// establish sets the condition Established, which stays once it is true.
func establish(crd *apiextensionsv1.CustomResourceDefinition) {
	condition := apiextensionsv1.CustomResourceDefinitionCondition{Type: apiextensionsv1.Established,
		Status: apiextensionsv1.ConditionFalse, Reason: "NotAccepted", Message: "not all names are accepted"}
	switch {
	case apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established):
		return
	case apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.NamesAccepted):
		condition.Status, condition.Reason = apiextensionsv1.ConditionTrue, "InitialNamesAccepted"
		condition.Message = "the initial names have been accepted"
	}
	apihelpers.SetCRDCondition(crd, condition)
}

// judgeApproval sets the condition that tells whether a type in a group of Kubernetes' own, such as k8s.io, has been approved.
func judgeApproval(crd *apiextensionsv1.CustomResourceDefinition) {
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

// ---- From a definition to rows

// define makes the rows of a definition. What before has compiled, and knows about the age of its schema, it hands on.
func (d *definitions) define(crd *apiextensionsv1.CustomResourceDefinition, rec *record, before *definition) *definition {
	def := &definition{name: crd.Name, group: crd.Spec.Group, created: rec.createRev, accepted: crd.Status.AcceptedNames,
		terminating: crd.DeletionTimestamp != nil, established: apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established)}
	accepted := apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.NamesAccepted)
	def.wanting = !accepted
	def.schemas = &schemas{st: d.st, key: rec.key, since: rec.rev, spec: digest(gjson.GetBytes(rec.json, "spec").Raw)}
	storage := storageVersion(crd)
	def.schemas.stored = versionDigest(rec.json, storage)
	if before != nil && before.created == def.created {
		if before.schemas.spec == def.schemas.spec {
			def.schemas = before.schemas
		} else if before.schemas.stored == def.schemas.stored {
			def.schemas.since = before.schemas.since
		}
	}
	if !accepted && !def.established {
		return def
	}
	for i := range crd.Spec.Versions {
		v := &crd.Spec.Versions[i]
		res := def.row(crd, v)
		res.custom.settled = def.schemas.settled
		if tag := versionDigest(rec.json, v.Name); tag != def.schemas.stored {
			res.custom.settled = func([]byte) bool { return false }
			res.custom.toStorage = def.schemas.toStorage
		}
		res.schemaTag = def.schemas.spec
		if v.Storage {
			def.storage = res
		}
		if v.Served {
			def.rows = append(def.rows, res)
		}
	}
	return def
}

func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:8])
}

// versionDigest tells versions with different schemas apart.
func versionDigest(stored []byte, name string) string {
	for _, v := range gjson.GetBytes(stored, "spec.versions").Array() {
		if v.Get("name").String() == name {
			return digest(v.Get("schema").Raw)
		}
	}
	return ""
}

func storageVersion(crd *apiextensionsv1.CustomResourceDefinition) string {
	name, _ := apihelpers.GetCRDStorageVersion(crd) // validation wants one
	return name
}

// row is the row of one version.
func (def *definition) row(crd *apiextensionsv1.CustomResourceDefinition, v *apiextensionsv1.CustomResourceDefinitionVersion) *resource {
	names := &crd.Status.AcceptedNames
	res := &resource{kind: names.Kind, listKind: names.ListKind, plural: names.Plural, singular: names.Singular, shortNames: names.ShortNames,
		categories: names.Categories, namespaced: crd.Spec.Scope == apiextensionsv1.NamespaceScoped, generation: true,
		verbs: []string{"delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"}}
	cr := &customVersion{schemas: def.schemas, version: v.Name, res: res}
	if subs := v.Subresources; subs != nil && subs.Status != nil {
		cr.status = true
		res.subresources = append(res.subresources, subresourceOf("status", names.Kind))
	}
	if subs := v.Subresources; subs != nil && subs.Scale != nil {
		cr.scale = subs.Scale
		res.subresources = append(res.subresources, subresourceOf("scale", names.Kind))
	}
	if v.Deprecated {
		res.deprecation = &deprecation{text: deprecationText(crd, v), deprecated: [2]int{1, 0}}
	}
	res.custom = &custom{prepare: cr.prepare, validate: cr.validate, shape: cr.shape, complete: cr.complete, scale: cr.scaleOf}
	if def.terminating {
		res.custom.admit = cr.refuse
	}
	if len(v.AdditionalPrinterColumns) > 0 {
		res.custom.columns, res.custom.cells = cr.columns, cr.cells
	}
	for _, f := range v.SelectableFields {
		res.custom.selectable = append(res.custom.selectable, strings.TrimPrefix(f.JSONPath, "."))
	}
	res.schema = cr.openAPI
	return groupVersion(crd.Spec.Group, v.Name, res)[0]
}

// deprecationText is the definition's own, or one that names the newest version to use instead.
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

// ---- Writing a definition

// prepareDefinition fills in defaults; the status is the server's but on /status, where the spec is what it was.
func prepareDefinition(obj, old object, sub string) (object, error) {
	crd := obj.(*apiextensionsv1.CustomResourceDefinition)
	apiextensionsv1.SetObjectDefaults_CustomResourceDefinition(crd)
	var before apiextensionsv1.CustomResourceDefinition
	if old != nil {
		old.(*apiextensionsv1.CustomResourceDefinition).DeepCopyInto(&before)
	}
	if sub == "status" {
		crd.Spec = before.Spec
		return crd, nil
	}
	crd.Status = before.Status
	if storage := storageVersion(crd); storage != "" && !slices.Contains(crd.Status.StoredVersions, storage) {
		crd.Status.StoredVersions = append(crd.Status.StoredVersions, storage)
	}
	return crd, nil
}

// validateDefinition judges a definition by Kubernetes' own rules, CEL expressions and their estimated cost included.
func validateDefinition(ctx context.Context, obj, old object, sub string) field.ErrorList {
	now, before := &apiextensions.CustomResourceDefinition{}, &apiextensions.CustomResourceDefinition{}
	if err := internalDefinition(obj, now); err != nil {
		return field.ErrorList{field.InternalError(nil, err)}
	}
	if old == nil {
		return definitionvalidation.ValidateCustomResourceDefinition(ctx, now)
	}
	if err := internalDefinition(old, before); err != nil {
		return field.ErrorList{field.InternalError(nil, err)}
	}
	if sub == "status" {
		return definitionvalidation.ValidateUpdateCustomResourceDefinitionStatus(now, before)
	}
	return definitionvalidation.ValidateCustomResourceDefinitionUpdate(ctx, now, before)
}

func internalDefinition(obj object, out *apiextensions.CustomResourceDefinition) error {
	in := obj.DeepCopyObject().(*apiextensionsv1.CustomResourceDefinition)
	return apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(in, out, nil)
}

// definitionWarnings names what a definition asks for and does not get: formats that nobody checks, and conversion by a webhook.
func definitionWarnings(obj, old object) (texts []string) {
	crd := obj.(*apiextensionsv1.CustomResourceDefinition)
	known := map[string]bool{}
	if old != nil {
		unknownFormats(old.(*apiextensionsv1.CustomResourceDefinition), known)
	}
	added := map[string]bool{}
	unknownFormats(crd, added)
	for _, format := range slices.Sorted(maps.Keys(added)) {
		if !known[format] {
			texts = append(texts, fmt.Sprintf("unrecognized format %q", format))
		}
	}
	if crd.Spec.Conversion != nil && crd.Spec.Conversion.Strategy == apiextensionsv1.WebhookConverter {
		texts = append(texts, "spec.conversion: this server calls no conversion webhooks; versions are converted as with strategy None, which changes apiVersion alone")
	}
	return texts
}

// markTerminating is what DELETE does to a definition: it goes when its objects have gone.
func markTerminating(obj object) {
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

// cleanUp deletes the objects of definitions that are being deleted, then lets those go that have none left. waiting says that an
// object is held back by its finalizers.
func (d *definitions) cleanUp(ctx context.Context) (waiting bool, err error) {
	if err := d.sync(ctx); err != nil {
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
		done, emptyErr := d.empty(ctx, def)
		waiting = waiting || !done
		err = errors.Join(err, emptyErr)
	}
	return waiting, err
}

// empty is one round for one definition.
func (d *definitions) empty(ctx context.Context, def *definition) (done bool, err error) {
	condition := apiextensionsv1.CustomResourceDefinitionCondition{Type: apiextensionsv1.Terminating, Status: apiextensionsv1.ConditionFalse,
		Reason: "NeverEstablished", Message: "resource was never established"}
	if def.established && def.storage != nil {
		condition.Reason, condition.Message = "InstanceDeletionCompleted", "removed all instances"
		if err := d.deleteObjects(ctx, def.storage); err != nil {
			return false, err
		}
		if left, _, _ := d.st.count(def.storage.base); left > 0 {
			condition.Status, condition.Reason = apiextensionsv1.ConditionTrue, "InstanceDeletionInProgress"
			condition.Message = "CustomResource deletion is in progress"
			return false, d.setTerminating(ctx, def, condition)
		}
	}
	return true, d.setTerminating(ctx, def, condition)
}

// deleteObjects deletes what is not being deleted already.
func (d *definitions) deleteObjects(ctx context.Context, res *resource) error {
	background := metav1.DeletePropagationBackground
	c := &chunk{}
	for at := (span{prefix: res.base}); ; at.rev, at.start = c.rev, c.next {
		if err := d.st.chunk(at, c); err != nil {
			return err
		}
		var found []*record
		for i := range c.records {
			if !c.records[i].deleting {
				found = append(found, &c.records[i])
			}
		}
		err := parallel(found, func(rec *record) error {
			namespace, name := namespacedName(rec.key)
			_, _, err := d.wr.delete(ctx, res, namespace, name, &metav1.DeleteOptions{PropagationPolicy: &background})
			if apierrors.IsNotFound(err) {
				return nil
			}
			return err
		})
		if err != nil || c.next == "" {
			return err
		}
	}
}

// setTerminating tells how far the deletion of a definition is; once it is no longer going on, nothing holds the definition back.
func (d *definitions) setTerminating(ctx context.Context, def *definition, condition apiextensionsv1.CustomResourceDefinitionCondition) error {
	t := target{res: d.row, name: def.name, sub: "status"}
	_, _, err := d.wr.modify(ctx, t, writeOptions{}, func(old object, _ *record) (object, error) {
		crd := old.DeepCopyObject().(*apiextensionsv1.CustomResourceDefinition)
		apihelpers.SetCRDCondition(crd, condition)
		if condition.Status == apiextensionsv1.ConditionFalse {
			apihelpers.CRDRemoveFinalizer(crd, apiextensionsv1.CustomResourceCleanupFinalizer)
		}
		return crd, nil
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// ---- Schemas

// schemas is what the versions of one definition say about objects: loaded from the store and compiled when somebody needs it.
type schemas struct {
	st     *store
	key    string
	spec   string       // digest of the definition's spec
	stored string       // digest of the storage version's schema
	since  int64        // the revision of the definition that brought this schema; younger objects are as it wants them
	used   atomic.Int64 // when anything compiled was last used, in Unix nanoseconds

	mu       sync.Mutex // guards compiled and serialises compiling
	compiled map[string]*compiled
}

// A compiled is one version's part that costs memory. Immutable but for rules, which come with the first write.
type compiled struct {
	storage string // the storage version's name
	props   *apiextensions.JSONSchemaProps
	schema  *structuralschema.Structural
	columns []customColumn

	mu    sync.Mutex // guards rules
	rules *rules
}

// rules judge objects.
type rules struct {
	whole, status schemavalidation.SchemaValidator
	cel           *cel.Validator // nil: no expressions
}

// version returns one compiled version; "" is the storage version. An error means that the definition has just gone.
func (s *schemas) version(name string) (*compiled, error) {
	s.used.Store(time.Now().UnixNano())
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.compiled[name]; c != nil {
		return c, nil
	}
	rec, err := s.st.get(s.key)
	if err != nil {
		return nil, errNoSuchVersion
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(rec.json, crd); err != nil {
		return nil, err
	}
	c, err := compileVersion(crd, name)
	if err != nil {
		return nil, err
	}
	if s.compiled == nil {
		s.compiled = map[string]*compiled{}
	}
	s.compiled[name] = c
	return c, nil
}

// errNoSuchVersion answers a request that met the end of its type.
var errNoSuchVersion = statusError(404, metav1.StatusReasonNotFound, "the server could not find the requested resource")

func compileVersion(crd *apiextensionsv1.CustomResourceDefinition, name string) (*compiled, error) {
	for i := range crd.Spec.Versions {
		v := &crd.Spec.Versions[i]
		if v.Name != name && !(name == "" && v.Storage) {
			continue
		}
		internal := &apiextensions.CustomResourceValidation{}
		if v.Schema != nil {
			if err := apiextensionsv1.Convert_v1_CustomResourceValidation_To_apiextensions_CustomResourceValidation(v.Schema, internal, nil); err != nil {
				return nil, err
			}
		}
		c := &compiled{storage: storageVersion(crd), props: internal.OpenAPIV3Schema, columns: compileColumns(v.AdditionalPrinterColumns)}
		s, err := structuralschema.NewStructural(internal.OpenAPIV3Schema)
		if err != nil {
			return nil, err
		}
		c.schema = s.DeepCopy() // its defaults are shared with props
		return c, defaulting.PruneDefaults(c.schema)
	}
	return nil, errNoSuchVersion
}

// judges returns what judges objects, compiled at the first write.
func (c *compiled) judges() (*rules, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.rules != nil {
		return c.rules, nil
	}
	whole, _, err := schemavalidation.NewSchemaValidator(c.props)
	if err != nil {
		return nil, err
	}
	r := &rules{whole: whole, cel: cel.NewValidator(c.schema, true, celconfig.PerCallLimit)}
	if c.props != nil {
		if status, ok := c.props.Properties["status"]; ok {
			if r.status, _, err = schemavalidation.NewSchemaValidator(&status); err != nil {
				return nil, err
			}
		}
	}
	c.rules = r
	return r, nil
}

// forgetIdle lets go of what is compiled and was not used for a while.
func (d *definitions) forgetIdle(now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, def := range d.table {
		def.schemas.forget(now)
	}
}

func (s *schemas) forget(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Sub(time.Unix(0, s.used.Load())) > schemaIdle {
		s.compiled = nil
	}
}

// settled says that a stored object is as today's schema wants it. An object that was shaped before a change of the schema and
// committed after it passes, too, without a default that the change brought: the next write puts it right.
func (s *schemas) settled(stored []byte) bool {
	return gjson.GetBytes(stored, "metadata.resourceVersion").Int() > s.since
}

// toStorage gives an object of another version the storage version's shape.
func (s *schemas) toStorage(u *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	c, err := s.version("")
	if err != nil || isBookmark(u) {
		return u, err
	}
	u = u.DeepCopy()
	c.prune(u)
	defaulting.Default(u.Object, c.schema)
	return u, nil
}

// isBookmark tells a watch's bookmark, which has nothing but a revision, from an object.
func isBookmark(u *unstructured.Unstructured) bool { return u.GetUID() == "" && u.GetName() == "" }

// prune drops what the schema does not know, and nulls where it allows none. metadata, kind and apiVersion stay.
func (c *compiled) prune(u *unstructured.Unstructured) (unknown []string) {
	unknown = pruning.PruneWithOptions(u.Object, c.schema, true, structuralschema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true})
	defaulting.PruneNonNullableNullsWithoutDefaults(u.Object, c.schema)
	return unknown
}

// ---- Objects

// A customVersion is a served version's side of the walk of a request. Immutable.
type customVersion struct {
	schemas *schemas
	version string
	res     *resource
	status  bool // has the subresource
	scale   *apiextensionsv1.CustomResourceSubresourceScale
}

func (cr *customVersion) compiled() (*compiled, error) { return cr.schemas.version(cr.version) }

func (cr *customVersion) refuse() error {
	return apierrors.NewForbidden(cr.res.groupResource(), "", errors.New("create not allowed while custom resource definition is terminating"))
}

// openAPI is the version's schema as the definition has it.
func (cr *customVersion) openAPI() (json.RawMessage, error) {
	rec, err := cr.schemas.st.get(cr.schemas.key)
	if err != nil {
		return nil, errNoSuchVersion
	}
	for _, v := range gjson.GetBytes(rec.json, "spec.versions").Array() {
		if s := v.Get("schema.openAPIV3Schema"); v.Get("name").String() == cr.version && s.Exists() {
			return json.RawMessage(s.Raw), nil
		}
	}
	return json.RawMessage(`{"type":"object","x-kubernetes-preserve-unknown-fields":true}`), nil
}

// structural is the version's schema as server-side apply and the others who walk through objects need it.
func (cr *customVersion) structural() (*structuralschema.Structural, error) {
	c, err := cr.compiled()
	if err != nil {
		return nil, err
	}
	return c.schema, nil
}

// shape makes an object out of what a client sent.
func (cr *customVersion) shape(u *unstructured.Unstructured) (unknown []error, err error) {
	c, err := cr.compiled()
	if err != nil {
		return nil, err
	}
	meta, found, paths, err := objectmeta.GetObjectMetaWithOptions(u.Object, objectmeta.ObjectMetaOptions{ReturnUnknownFieldPaths: true})
	if err != nil {
		return nil, err
	}
	if u.GroupVersionKind() == cr.res.groupVersionKind() {
		paths = append(paths, c.prune(u)...)
		coerceErr, more := objectmeta.CoerceWithOptions(nil, u.Object, c.schema, false, objectmeta.CoerceOptions{ReturnUnknownFieldPaths: true})
		if coerceErr != nil {
			return nil, coerceErr
		}
		paths = append(paths, more...)
	}
	if !found {
		u.Object["metadata"] = map[string]any{}
	} else if err := objectmeta.SetObjectMeta(u.Object, meta); err != nil {
		return nil, err
	}
	defaulting.Default(u.Object, c.schema)
	for _, path := range paths {
		unknown = append(unknown, fmt.Errorf("unknown field %q", path))
	}
	return unknown, nil
}

// complete brings a stored object up to date: the storage version's defaults, and what this version's schema knows.
func (cr *customVersion) complete(u *unstructured.Unstructured) error {
	if isBookmark(u) {
		return nil
	}
	stored, err := cr.schemas.version("")
	if err != nil {
		return err
	}
	c, err := cr.compiled()
	if err != nil {
		return err
	}
	defaulting.Default(u.Object, stored.schema)
	c.prune(u)
	return nil
}

// prepare keeps apart what belongs to /status and what does not.
func (cr *customVersion) prepare(obj, old object, sub string) (object, error) {
	u := obj.(*unstructured.Unstructured)
	switch {
	case sub == "status":
		return restrictCustomStatus(u, old.(*unstructured.Unstructured)), nil
	case !cr.status:
		return u, nil
	}
	delete(u.Object, "status")
	if old != nil {
		if status, ok := old.(*unstructured.Unstructured).Object["status"]; ok {
			u.Object["status"] = status
		}
	}
	return u, nil
}

// validate judges an object: metadata, schema, scale, embedded objects, lists that are sets or maps, CEL rules.
func (cr *customVersion) validate(ctx context.Context, obj, old object, sub string) field.ErrorList {
	c, err := cr.compiled()
	if err != nil {
		return field.ErrorList{field.InternalError(nil, err)}
	}
	r, err := c.judges()
	if err != nil {
		return field.ErrorList{field.InternalError(nil, err)}
	}
	j := &judgement{cr: cr, schema: c.schema, rules: r, obj: obj.(*unstructured.Unstructured)}
	switch {
	case old == nil:
		j.create()
	case sub == "status":
		j.statusChange(old.(*unstructured.Unstructured))
	default:
		j.change(old.(*unstructured.Unstructured))
	}
	j.expressions(ctx)
	return j.errs
}

// A judgement is one object on trial.
type judgement struct {
	cr     *customVersion
	schema *structuralschema.Structural
	rules  *rules
	obj    *unstructured.Unstructured
	old    map[string]any              // nil for a create
	same   *celcommon.CorrelatedObject // what has not changed is not held against an update
	errs   field.ErrorList
}

func (j *judgement) add(errs field.ErrorList) { j.errs = append(j.errs, errs...) }

func (j *judgement) create() {
	j.add(validation.ValidateObjectMetaAccessor(j.obj, j.cr.res.namespaced, validation.NameIsDNSSubdomain, field.NewPath("metadata")))
	j.add(schemavalidation.ValidateCustomResource(nil, j.obj.Object, j.rules.whole))
	j.scale()
	j.add(objectmeta.Validate(nil, j.obj.Object, j.schema, false))
	j.add(listtype.ValidateListSetsAndMaps(nil, j.schema, j.obj.Object))
}

// follow says from which object an update starts.
func (j *judgement) follow(old *unstructured.Unstructured) {
	j.old = old.Object
	j.same = celcommon.NewCorrelatedObject(j.obj.Object, old.Object, &model.Structural{Structural: j.schema})
	j.add(validation.ValidateObjectMetaAccessorUpdate(j.obj, old, field.NewPath("metadata")))
}

func (j *judgement) change(old *unstructured.Unstructured) {
	j.follow(old)
	j.add(schemavalidation.ValidateCustomResourceUpdate(nil, j.obj.Object, old.Object, j.rules.whole, schemavalidation.WithRatcheting(j.same)))
	j.scale()
	j.add(objectmeta.Validate(nil, j.obj.Object, j.schema, false))
	j.lists()
}

func (j *judgement) statusChange(old *unstructured.Unstructured) {
	j.follow(old)
	if status, ok := j.obj.Object["status"]; ok {
		j.add(schemavalidation.ValidateCustomResourceUpdate(field.NewPath("status"), status, old.Object["status"], j.rules.status,
			schemavalidation.WithRatcheting(j.same.Key("status"))))
	}
	j.scaleStatus()
	j.lists()
}

// lists holds repeated elements against an update only if there were none before.
func (j *judgement) lists() {
	if len(listtype.ValidateListSetsAndMaps(nil, j.schema, j.old)) == 0 {
		j.add(listtype.ValidateListSetsAndMaps(nil, j.schema, j.obj.Object))
	}
}

// expressions evaluates the CEL rules, unless the object is so wrong that they could not be relied on.
func (j *judgement) expressions(ctx context.Context) {
	if j.rules.cel == nil {
		return
	}
	for _, err := range j.errs {
		switch err.Type {
		case field.ErrorTypeNotSupported, field.ErrorTypeRequired, field.ErrorTypeTooLong, field.ErrorTypeTooMany, field.ErrorTypeTypeInvalid:
			j.add(field.ErrorList{field.Invalid(nil, nil,
				"some validation rules were not checked because the object was invalid; correct the existing errors to complete validation")})
			return
		}
	}
	var options []cel.Option
	var old any // a nil map is not a nil any
	if j.old != nil {
		old, options = j.old, []cel.Option{cel.WithRatcheting(j.same)}
	}
	errs, _ := j.rules.cel.Validate(ctx, nil, j.schema, j.obj.Object, old, celconfig.RuntimeCELCostBudget, options...)
	j.add(errs)
}

// ---- Scale

func (j *judgement) scale() {
	if s := j.cr.scale; s != nil {
		j.replicas(s.SpecReplicasPath)
	}
	j.scaleStatus()
}

func (j *judgement) scaleStatus() {
	s := j.cr.scale
	if s == nil {
		return
	}
	j.replicas(s.StatusReplicasPath)
	if s.LabelSelectorPath == nil {
		return
	}
	if text, _, err := unstructured.NestedString(j.obj.Object, pathSteps(*s.LabelSelectorPath)...); err != nil {
		j.add(field.ErrorList{field.Invalid(field.NewPath(*s.LabelSelectorPath), text, err.Error())})
	}
}

// replicas judges one of the two counts.
func (j *judgement) replicas(path string) {
	n, _, err := unstructured.NestedInt64(j.obj.Object, pathSteps(path)...)
	problem := ""
	switch {
	case err != nil:
		problem = err.Error()
	case n < 0:
		problem = "should be a non-negative integer"
	case n > math.MaxInt32:
		problem = fmt.Sprintf("should be less than or equal to %v", math.MaxInt32)
	default:
		return
	}
	j.add(field.ErrorList{field.Invalid(field.NewPath(path), n, problem)})
}

// pathSteps takes a path like .spec.replicas apart.
func pathSteps(path string) []string { return strings.Split(strings.TrimPrefix(path, "."), ".") }

// scaleOf reads the counts that a Scale shows; set, when not nil, is written first.
func (cr *customVersion) scaleOf(u *unstructured.Unstructured, set *int32) (scalable, error) {
	s := scalable{path: cr.scale.SpecReplicasPath}
	if set != nil {
		if err := unstructured.SetNestedField(u.Object, int64(*set), pathSteps(s.path)...); err != nil {
			return s, err
		}
	}
	spec, found, err := unstructured.NestedInt64(u.Object, pathSteps(s.path)...)
	if err != nil {
		return s, err
	}
	if found {
		n := int32(spec)
		s.replicas = &n
	}
	status, _, err := unstructured.NestedInt64(u.Object, pathSteps(cr.scale.StatusReplicasPath)...)
	if err != nil {
		return s, err
	}
	s.status = int32(status)
	if cr.scale.LabelSelectorPath != nil {
		s.selector, _, err = unstructured.NestedString(u.Object, pathSteps(*cr.scale.LabelSelectorPath)...)
	}
	return s, err
}

// ---- Columns

// A customColumn is one of additionalPrinterColumns; path is nil when it cannot be read.
type customColumn struct {
	definition metav1.TableColumnDefinition
	path       *jsonpath.JSONPath
	mu         *sync.Mutex // a JSONPath keeps state while it searches
}

func compileColumns(asked []apiextensionsv1.CustomResourceColumnDefinition) []customColumn {
	columns := []customColumn{{definition: metav1.TableColumnDefinition{Name: "Name", Type: "string", Format: "name",
		Description: metav1.ObjectMeta{}.SwaggerDoc()["name"]}}}
	for _, c := range asked {
		path := jsonpath.New(c.Name)
		if path.Parse("{"+c.JSONPath+"}") != nil {
			break // as the real server does: no further columns
		}
		path.AllowMissingKeys(true)
		columns = append(columns, customColumn{path: path, mu: new(sync.Mutex), definition: metav1.TableColumnDefinition{Name: c.Name, Type: c.Type,
			Format: c.Format, Priority: c.Priority,
			Description: cmp.Or(c.Description, "Custom resource definition column (in JSONPath format): "+c.JSONPath)}})
	}
	return columns
}

func (cr *customVersion) columns() (definitions []metav1.TableColumnDefinition) {
	c, err := cr.compiled()
	if err != nil {
		return nil
	}
	for i := range c.columns {
		definitions = append(definitions, c.columns[i].definition)
	}
	return definitions
}

func (cr *customVersion) cells(obj object) []any {
	cells := []any{obj.GetName()}
	c, err := cr.compiled()
	if err != nil {
		return cells
	}
	for i := 1; i < len(c.columns); i++ {
		cells = append(cells, c.columns[i].cell(obj.(*unstructured.Unstructured)))
	}
	return cells
}

// cell shows the first value that a column's path finds; nil when there is none, or one of another type.
func (c *customColumn) cell(u *unstructured.Unstructured) any {
	c.mu.Lock()
	defer c.mu.Unlock()
	results, err := c.path.FindResults(u.Object)
	if err != nil || len(results) == 0 || len(results[0]) == 0 {
		return nil
	}
	value := results[0][0].Interface()
	if c.definition.Type == "string" {
		var text bytes.Buffer
		if c.path.PrintResults(&text, []reflect.Value{reflect.ValueOf(value)}) != nil {
			return nil
		}
		return text.String()
	}
	return typedCell(c.definition.Type, value)
}

func typedCell(kind string, value any) any {
	switch v := value.(type) {
	case int64:
		if kind == "number" {
			return float64(v)
		}
		if kind == "integer" {
			return v
		}
	case float64:
		if kind == "integer" {
			return int64(v)
		}
		if kind == "number" {
			return v
		}
	case bool:
		if kind == "boolean" {
			return v
		}
	case string:
		if kind == "date" {
			return dateCell(v)
		}
	}
	return nil
}

// dateCell shows how long ago a time was.
func dateCell(text string) string {
	var stamp metav1.Time
	if stamp.UnmarshalQueryParameter(text) != nil {
		return "<invalid>"
	}
	return table.ConvertToHumanReadableDateType(stamp)
}

// unknownFormats collects the formats in a definition's schemas that no validator knows.
func unknownFormats(crd *apiextensionsv1.CustomResourceDefinition, found map[string]bool) {
	var visit func(s *apiextensionsv1.JSONSchemaProps)
	visit = func(s *apiextensionsv1.JSONSchemaProps) {
		if s == nil {
			return
		}
		asked := &spec.Schema{SchemaProps: spec.SchemaProps{Format: s.Format, Type: spec.StringOrArray{s.Type}}}
		for _, format := range schemavalidation.GetUnrecognizedFormats(asked, environment.DefaultCompatibilityVersion()) {
			found[format] = true
		}
		for _, p := range s.Properties {
			visit(&p)
		}
		if s.Items != nil {
			visit(s.Items.Schema)
		}
		if s.AdditionalProperties != nil {
			visit(s.AdditionalProperties.Schema)
		}
	}
	for _, v := range crd.Spec.Versions {
		if v.Schema != nil {
			visit(v.Schema.OpenAPIV3Schema)
		}
	}
}
