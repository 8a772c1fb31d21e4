package findings

// This file counts how often each client reads the same data, writes without changing anything, or
// encounters conflicts within a time window. It also detects objects that are repeatedly deleted by
// one client and created by another.

import "time"

const (
	getsHot, listsHot, noOpsHot, conflictsHot, watchesHot = 50, 20, 10, 10, 10 // per window

	recreateMin = 5
)

// soon reports whether two events are close enough to be related. Requests are not necessarily
// processed in the order in which they ended.
func soon(before, now second) bool {
	return int64(now)-int64(before) <= int64(calm/time.Second)
}

// count counts an activity, and starts a finding if it has been hot for long enough.
func (d *Detector) count(r *outcome, kind string, hot uint32, hash uint64) {
	d.mu.Lock()
	news := d.countLocked(r, kind, hot, hash)
	d.mu.Unlock()
	if news != nil {
		d.reportAll(*news)
	}
}

func (d *Detector) countLocked(r *outcome, kind string, hot uint32, hash uint64) (news *Finding) {
	now := secondOf(r.at)
	e := d.loops.at(hash, now)
	l := &e.value
	if number := now / window; number != l.window {
		if number == l.window+1 && l.count >= hot {
			l.streak, l.total = l.streak+1, l.total+l.count
		} else {
			l.streak, l.total = 0, 0
		}
		l.window, l.count = number, 0
		e.credit = min(second(l.streak), 2*hotWindows) * credit
	}
	l.count++
	l.revs.add(r)
	if l.found != nil && l.found.Ended != nil {
		l.found = nil
	}
	switch {
	case l.found != nil:
		l.found.Times++
		if l.count >= hot {
			l.found.Last = r.at.UTC()
		}
		l.found.add(r)
	case l.streak >= hotWindows-1 && l.count >= hot:
		since := time.Unix(int64(l.window-second(l.streak))*window, 0)
		if l.found = d.beginLocked(kind, r, evidence{since, int64(l.total + l.count), l.revs}); l.found != nil {
			reported := l.found.copy()
			return &reported
		}
	}
	return nil
}

// countNoOp reports whether the same client also wrote the object without a change shortly before.
func (d *Detector) countNoOp(r *outcome, key, who uint64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := secondOf(r.at)
	o := &d.objects.at(key, now).value
	again := o.idler == uint32(who) && soon(o.idled, now)
	o.idler, o.idled = uint32(who), now
	return again
}

// deleted records the client that deletes an object. The client that later removes the last
// finalizer does not replace it.
func (d *Detector) deleted(r *outcome, key, who uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := secondOf(r.at)
	o := &d.objects.at(key, now).value
	if r.verb == "delete" || o.deleter == 0 || !soon(o.gone, now) {
		o.deleter = uint32(who)
		if o.recreated != nil {
			o.recreated.deleter = boundedClient(r.client)
		}
	}
	o.gone, o.switches = now, 0
}

// created checks whether the object was recently deleted by another client.
func (d *Detector) created(r *outcome, key, who uint64) {
	d.mu.Lock()
	news := d.createdLocked(r, key, who)
	d.mu.Unlock()
	if news != nil {
		d.reportAll(*news)
	}
}

func (d *Detector) createdLocked(r *outcome, key, who uint64) *Finding {
	now := secondOf(r.at)
	e := d.objects.at(key, now)
	o := &e.value
	o.writer, o.switches = uint32(who), 0
	if o.deleter == 0 || o.deleter == uint32(who) || !soon(o.gone, now) {
		return nil
	}
	if o.recreated == nil || !soon(o.came, now) {
		o.returned, o.recreated = 0, &pair{since: r.at}
	}
	o.returned, o.came = o.returned+1, now
	e.credit = min(second(o.returned), 4) * credit
	p := o.recreated
	p.revs.add(r)
	if p.found != nil && p.found.Ended == nil {
		p.found.Times, p.found.Last = p.found.Times+1, r.at.UTC()
		p.found.add(r)
		return nil
	}
	if o.returned < recreateMin || p.deleter.User == "" {
		return nil
	}
	if p.found = d.beginLocked(Recreate, r, evidence{p.since, int64(o.returned), p.revs}, p.deleter); p.found == nil {
		return nil
	}
	reported := p.found.copy()
	return &reported
}
