package main

import (
	"fmt"
	"maps"
	"time"
)

// animals are all controllers. In the functions below, `mended` selects the corrected twin.
var animals = []animal{
	{name: "twice", workload: "basic", watches: []string{eggs}, reconcile: twice,
		about: "lays what is missing in its cache, under generated names: a cache that is behind makes it lay twice"},
	{name: "status", workload: "basic", watches: []string{eggs}, reconcile: trustsStatus,
		about: "believes the status that it wrote, and does not look"},
	{name: "finalizer", workload: "basic", watches: []string{eggs}, reconcile: finalizer,
		about: "takes what is gone already for an error, and never lets the nest go"},
	{name: "orphan", workload: "basic", watches: []string{eggs}, reconcile: orphan,
		about: "notes the generated name of what it made after making it, and does not look for what it made without a note"},
	{name: "claim", workload: "basic", watches: []string{claims, pods}, reconcile: claim, begin: sweep,
		about: "deletes claims whose pod it does not see"},
	{name: "owner", workload: "basic", watches: []string{eggs}, reconcile: noOwner,
		about: "makes an object first, and says later to whom it belongs"},
	{name: "last", workload: "basic", watches: []string{eggs}, reconcile: lastWriter,
		about: "writes without a resourceVersion: what somebody else has written meanwhile is gone"},
	{name: "forever", workload: "basic", watches: []string{eggs}, reconcile: forever,
		about: "takes what is there already for an error, and tries for ever"},
	{name: "leader", workload: "basic", replicas: 2, only: []string{eggs}, reconcile: leader,
		about: "asks whether it leads before it begins, and not before it writes"},
	{name: "coalesced", workload: "reborn", watches: []string{eggs}, gone: cleansUp, reconcile: coalesced,
		about: "cleans up when it sees a deletion: one that it does not see leaves things behind"},
	{name: "between", workload: "basic", watches: []string{eggs}, reconcile: between,
		about: "takes the first of two objects for a sign that both are there"},
	{name: "cached", workload: "basic", watches: []string{eggs}, reconcile: trustsCache,
		about: "trusts its cache right after its own write"},
	{name: "duplicate", workload: "cycle", watches: []string{eggs}, reconcile: duplicate,
		about: "remembers in memory only how many objects it has made, under generated names: after a crash it makes them again"},
	{name: "exleader", workload: "cycle", replicas: 2, watches: []string{eggs}, reconcile: exLeader,
		about: "decides as the leader, and creates under generated names after it has lost the Lease: the next leader has created the same objects"},
	{name: "unwatched", workload: "basic", reconcile: unwatched,
		about: "removes its finalizer although the cleanup failed; it watches its own type only"},
}

// wanted returns the desired number of eggs of a nest.
func wanted(nest *object) int {
	n, _ := nest.Spec["eggs"].(float64)
	return int(n)
}

// egg returns an egg that the nest owns.
func egg(nest *object, name string) *object {
	return &object{APIVersion: "v1", Kind: "ConfigMap", Data: map[string]string{"nest": nest.Metadata.Name}, Metadata: metadata{Name: name,
		Namespace: nest.Metadata.Namespace, Labels: map[string]string{"nest": nest.Metadata.Name},
		OwnerReferences: []owner{{nest.APIVersion, nest.Kind, nest.Metadata.Name, nest.Metadata.UID}}}}
}

// layAll creates the missing eggs 1 to n with names derived from the nest's name, and deletes the
// others. It is correct.
func layAll(z *zoo, nest *object, n int) error {
	for i := 1; i <= n; i++ {
		name := fmt.Sprintf("%s-%d", nest.Metadata.Name, i)
		if z.caches[eggs].get(nest.Metadata.Namespace, name) != nil {
			continue
		}
		if _, err := z.create(eggs, egg(nest, name)); err != nil && !is(err, 409) {
			return err
		}
	}
	return nil
}

// setStatus writes a field of the status if its value differs.
func setStatus(z *zoo, nest *object, name string, value any) error {
	if fmt.Sprint(nest.Status[name]) == fmt.Sprint(value) {
		return nil
	}
	next := nest.copied()
	if next.Status == nil {
		next.Status = map[string]any{}
	}
	next.Status[name] = value
	return z.update(nests, next)
}

func twice(z *zoo, nest *object) error {
	if z.mended {
		return layAll(z, nest, wanted(nest))
	}
	for n := len(z.caches[eggs].all("nest", nest.Metadata.Name)); n < wanted(nest); n++ {
		made := egg(nest, "")
		made.Metadata.GenerateName = nest.Metadata.Name + "-"
		made, err := z.create(eggs, made)
		if err != nil {
			return err
		}
		z.caches[eggs].take("ADDED", made)
	}
	return nil
}

func trustsStatus(z *zoo, nest *object) error {
	if !z.mended && fmt.Sprint(nest.Status["laid"]) == fmt.Sprint(wanted(nest)) {
		return nil
	}
	if err := layAll(z, nest, wanted(nest)); err != nil {
		return err
	}
	return setStatus(z, nest, "laid", wanted(nest))
}

const guard = "zoo.example.com/guard"

// finalizer stores an entry for each nest that is not removed by garbage collection.
func finalizer(z *zoo, nest *object) error {
	entry := egg(nest, "entry-"+nest.Metadata.Name)
	entry.Metadata.OwnerReferences = nil
	guarded := len(nest.Metadata.Finalizers) > 0
	next := nest.copied()
	switch {
	case nest.Metadata.DeletionTimestamp != "" && !guarded:
		return nil
	case nest.Metadata.DeletionTimestamp != "":
		if err := z.remove(eggs, entry); err != nil && !(z.mended && is(err, 404)) {
			return err
		}
		next.Metadata.Finalizers = nil
		return gentle(z.update(nests, next), 404)
	case !guarded:
		next.Metadata.Finalizers = []string{guard}
		return z.update(nests, next)
	case z.caches[eggs].get(nest.Metadata.Namespace, entry.Metadata.Name) == nil:
		// an entry for a nest that only exists in a stale cache would never be deleted
		if z.mended {
			live, err := z.get(nests, nest.Metadata.Namespace, nest.Metadata.Name)
			if err != nil || live.Metadata.UID != nest.Metadata.UID {
				return gentle(err, 404)
			}
		}
		_, err := z.create(eggs, entry)
		return gentle(err, 409)
	}
	return nil
}

// gentle returns err, or nil if err has a status code that is as good as success.
func gentle(err error, code int) error {
	if is(err, code) {
		return nil
	}
	return err
}

func orphan(z *zoo, nest *object) error {
	if name, _ := nest.Status["egg"].(string); name != "" {
		if z.caches[eggs].get(nest.Metadata.Namespace, name) != nil {
			return nil
		}
		if _, err := z.get(eggs, nest.Metadata.Namespace, name); !is(err, 404) {
			return err
		}
	}
	if z.mended { // looks for created but unrecorded eggs on the server, not in the cache
		all, err := z.list(eggs, nest.Metadata.Namespace)
		if err != nil {
			return err
		}
		for i := range all {
			if owners := all[i].Metadata.OwnerReferences; len(owners) > 0 && owners[0].UID == nest.Metadata.UID {
				return setStatus(z, nest, "egg", all[i].Metadata.Name)
			}
		}
	}
	made := egg(nest, "")
	made.Metadata.GenerateName = nest.Metadata.Name + "-"
	made, err := z.create(eggs, made)
	if err != nil {
		return err
	}
	return setStatus(z, nest, "egg", made.Metadata.Name)
}

// claim creates a claim for the nest and a pod that uses the claim.
func claim(z *zoo, nest *object) error {
	name, namespace := nest.Metadata.Name, nest.Metadata.Namespace
	meta := egg(nest, name).Metadata
	if z.caches[claims].get(namespace, name) == nil {
		c := &object{APIVersion: "v1", Kind: "PersistentVolumeClaim", Metadata: meta, Spec: map[string]any{"accessModes": []string{"ReadWriteOnce"},
			"resources": map[string]any{"requests": map[string]string{"storage": "1Gi"}}}}
		if _, err := z.create(claims, c); err != nil && !is(err, 409) {
			return err
		}
	}
	if z.caches[pods].get(namespace, name) != nil {
		return nil
	}
	p := &object{APIVersion: "v1", Kind: "Pod", Metadata: meta, Spec: map[string]any{
		"containers": []any{map[string]any{"name": "nest", "image": "nest"}},
		"volumes":    []any{map[string]any{"name": "data", "persistentVolumeClaim": map[string]any{"claimName": name}}}}}
	_, err := z.create(pods, p)
	return gentle(err, 409)
}

// sweep deletes unused claims when the controller starts.
func sweep(z *zoo) error {
	for _, c := range z.caches[claims].all("", "") {
		if z.caches[pods].get(c.Metadata.Namespace, c.Metadata.Name) != nil {
			continue
		}
		// a claim is needed as long as the nest exists, and this is only known by the server
		if z.mended {
			if _, err := z.get(nests, c.Metadata.Namespace, c.Metadata.Name); !is(err, 404) {
				if err != nil {
					return err
				}
				continue
			}
		}
		if err := z.remove(claims, c); err != nil && !is(err, 404) {
			return err
		}
	}
	return nil
}

func noOwner(z *zoo, nest *object) error {
	if z.mended {
		return layAll(z, nest, 1)
	}
	made := egg(nest, nest.Metadata.Name+"-1")
	if z.caches[eggs].get(nest.Metadata.Namespace, made.Metadata.Name) != nil {
		return nil
	}
	made.Metadata.OwnerReferences = nil
	made, err := z.create(eggs, made)
	if err != nil {
		return gentle(err, 409)
	}
	made.Metadata.OwnerReferences = egg(nest, "").Metadata.OwnerReferences
	return z.update(eggs, made)
}

// lastWriter writes the list of nests to an object that was created by the user.
func lastWriter(z *zoo, nest *object) error {
	ledger := z.caches[eggs].get(nest.Metadata.Namespace, "ledger")
	if ledger == nil {
		return nil
	}
	next := ledger.copied()
	next.Data = map[string]string{}
	for _, n := range z.caches[nests].all("", "") {
		next.Data[n.Metadata.Name] = fmt.Sprint(wanted(n))
	}
	if maps.Equal(next.Data, ledger.Data) {
		return nil
	}
	if !z.mended {
		next.Metadata.ResourceVersion = ""
	}
	return z.update(eggs, next)
}

func forever(z *zoo, nest *object) error {
	if z.mended {
		return layAll(z, nest, 1)
	}
	first := egg(nest, nest.Metadata.Name+"-1")
	if z.caches[eggs].get(nest.Metadata.Namespace, first.Metadata.Name) != nil {
		return nil
	}
	for {
		made, err := z.create(eggs, first)
		if err == nil {
			z.caches[eggs].take("ADDED", made)
		}
		if err == nil || is(err, 403) || is(err, 404) {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// leader writes the desired number of eggs of each nest into an object.
func leader(z *zoo, nest *object) error {
	if !z.leads.valid() {
		time.Sleep(10 * time.Millisecond)
		return errNotLeader
	}
	if err := setStatus(z, nest, "seen", wanted(nest)); err != nil {
		return err
	}
	if z.mended && !z.leads.valid() {
		return errNotLeader
	}
	name := nest.Metadata.Name + "-size"
	size := egg(nest, name)
	size.Data["eggs"] = fmt.Sprint(wanted(nest))
	have, err := z.get(eggs, nest.Metadata.Namespace, name)
	switch {
	case is(err, 404):
		_, err = z.create(eggs, size)
		return err
	case err != nil || have.Data["eggs"] == size.Data["eggs"]:
		return err
	case z.mended:
		size.Metadata.ResourceVersion = have.Metadata.ResourceVersion
	}
	return z.update(eggs, size)
}

func coalesced(z *zoo, nest *object) error {
	for i := 1; i <= wanted(nest); i++ {
		made := egg(nest, fmt.Sprintf("%s-%d", nest.Metadata.Name, i))
		made.Metadata.OwnerReferences = nil
		made.Data["of"] = nest.Metadata.UID
		if have := z.caches[eggs].get(nest.Metadata.Namespace, made.Metadata.Name); have != nil && (!z.mended || have.Data["of"] == nest.Metadata.UID) {
			continue
		}
		if _, err := z.create(eggs, made); err != nil && (!z.mended || !is(err, 409)) {
			return err
		}
	}
	if z.mended {
		return leftOver(z, nest)
	}
	return nil
}

// leftOver deletes the eggs of a deleted nest of the same name. It recognizes them by the UID, even
// if it has missed the deletion.
func leftOver(z *zoo, nest *object) error {
	all, err := z.list(eggs, nest.Metadata.Namespace)
	if err != nil {
		return err
	}
	stale := false
	for i := range all {
		if all[i].Metadata.Labels["nest"] != nest.Metadata.Name || all[i].Data["of"] == nest.Metadata.UID {
			continue
		}
		if now, err := z.get(nests, nest.Metadata.Namespace, nest.Metadata.Name); err != nil || now.Metadata.UID != nest.Metadata.UID {
			return err // this nest is the deleted one
		}
		stale = true
		if err := z.remove(eggs, &all[i]); err != nil && !is(err, 404) {
			return err
		}
	}
	if stale {
		return errAgain
	}
	return nil
}

// cleansUp is called when the deletion of a nest was observed.
func cleansUp(z *zoo, nest *object) {
	for _, e := range z.caches[eggs].all("nest", nest.Metadata.Name) {
		if e.Data["of"] == nest.Metadata.UID {
			_ = z.remove(eggs, e) // the error is ignored, which is part of the bug
		}
	}
}

func between(z *zoo, nest *object) error {
	if z.mended {
		return layAll(z, nest, 2)
	}
	first, second := egg(nest, nest.Metadata.Name+"-1"), egg(nest, nest.Metadata.Name+"-2")
	if z.caches[eggs].get(nest.Metadata.Namespace, first.Metadata.Name) != nil {
		return nil
	}
	if _, err := z.create(eggs, first); err != nil {
		return gentle(err, 409)
	}
	_, err := z.create(eggs, second)
	return gentle(err, 409)
}

func trustsCache(z *zoo, nest *object) error {
	if z.mended {
		if err := layAll(z, nest, 1); err != nil {
			return err
		}
		return setStatus(z, nest, "laid", true)
	}
	if len(z.caches[eggs].all("nest", nest.Metadata.Name)) == 0 {
		made := egg(nest, "")
		made.Metadata.GenerateName = nest.Metadata.Name + "-"
		if _, err := z.create(eggs, made); err != nil {
			return err
		}
	}
	time.Sleep(50 * time.Millisecond) // some work, during which the cache usually catches up
	return setStatus(z, nest, "laid", true)
}

func duplicate(z *zoo, nest *object) error {
	if z.mended {
		return layAll(z, nest, wanted(nest))
	}
	for z.laid[nest.Metadata.UID] < wanted(nest) {
		made := egg(nest, "")
		made.Metadata.GenerateName = nest.Metadata.Name + "-"
		if _, err := z.create(eggs, made); err != nil {
			return gentle(err, 404)
		}
		z.laid[nest.Metadata.UID]++
	}
	return nil
}

// exLeader counts a nest's eggs on the server, writes the status, and then creates the missing
// eggs. Names derived from the nest's are safe, because the server rejects the second create.
func exLeader(z *zoo, nest *object) error {
	if !z.leads.valid() {
		time.Sleep(10 * time.Millisecond)
		return errNotLeader
	}
	all, err := z.list(eggs, nest.Metadata.Namespace)
	if err != nil {
		return err
	}
	have := 0
	for i := range all {
		if all[i].Metadata.Labels["nest"] == nest.Metadata.Name {
			have++
		}
	}
	if err := setStatus(z, nest, "wanted", wanted(nest)); err != nil {
		return err
	}
	if z.mended {
		return layAll(z, nest, wanted(nest))
	}
	for ; have < wanted(nest); have++ {
		made := egg(nest, "")
		made.Metadata.GenerateName = nest.Metadata.Name + "-"
		if _, err := z.create(eggs, made); err != nil {
			return err
		}
	}
	return nil
}

// unwatched does the same as finalizer, but it reads the entry from the server.
func unwatched(z *zoo, nest *object) error {
	entry := egg(nest, "entry-"+nest.Metadata.Name)
	entry.Metadata.OwnerReferences = nil
	guarded := len(nest.Metadata.Finalizers) > 0
	next := nest.copied()
	switch {
	case nest.Metadata.DeletionTimestamp != "" && !guarded:
		return nil
	case nest.Metadata.DeletionTimestamp != "":
		if err := z.remove(eggs, entry); err != nil && z.mended && !is(err, 404) {
			return err
		}
		next.Metadata.Finalizers = nil
		return gentle(z.update(nests, next), 404)
	case !guarded:
		next.Metadata.Finalizers = []string{guard}
		return gentle(z.update(nests, next), 404)
	}
	live, err := z.get(nests, nest.Metadata.Namespace, nest.Metadata.Name)
	if err != nil || live.Metadata.UID != nest.Metadata.UID || live.Metadata.DeletionTimestamp != "" {
		return gentle(err, 404)
	}
	_, err = z.create(eggs, entry)
	return gentle(err, 409)
}
