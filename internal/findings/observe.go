package findings

// This file classifies finished requests. Requests are either counted as part of a loop (loops.go)
// or checked for fights (fight.go).

// observe processes a request.
func (d *Detector) observe(r *outcome) {
	if d == nil || r.client.User == "" || r.resource == "" || r.code == 429 || r.code >= 500 {
		return
	}
	who := d.hash(r.client.User, r.client.Agent, r.client.Manager)
	switch r.verb {
	case "get":
		d.count(r, Read, getsHot, d.hash(r.verb, r.group, r.resource, r.subresource, r.namespace, r.name)^who)
	case "list":
		d.count(r, Read, listsHot, d.hash(r.verb, r.group, r.resource, r.namespace, r.name, r.selector)^who)
	case "watch":
		if r.took < shortWatch {
			d.count(r, Watch, watchesHot, d.hash(r.verb, r.group, r.resource, r.namespace, r.name, r.selector)^who)
		}
	case "create", "update", "patch", "delete":
		d.observeWrite(r, who)
	}
}

func (d *Detector) observeWrite(r *outcome, who uint64) {
	key := d.hash(r.group, r.resource, r.namespace, r.name)
	switch {
	case r.code == 409:
		d.count(r, Conflict, conflictsHot, key^who^d.hash(r.verb, r.subresource))
	case r.code >= 300 || !r.wrote:
	case r.old == r.new:
		if d.countNoOp(r, key, who) {
			d.count(r, NoOp, noOpsHot, d.hash(r.group, r.resource, r.subresource)^who)
		}
	case r.old == 0:
		d.created(r, key, who)
	case r.new == 0 || r.verb == "delete":
		d.deleted(r, key, who)
	default:
		d.updated(r, key, who)
	}
}
