package findings

// This file finds fights: A sets .spec.replicas from 1 to 2, B from 2 to 1. That two write an object in turns is the rule in Kubernetes, each
// its own part, and costs a look into a table here. Whoever has done so some times makes the object a suspect, and of suspects writes are
// compared, path by path. A path that one sets to what the other has changed it from has flipped.
//
// Two that are one by their user, program and manager (the second replica without a leader, the process that was forgotten) are told apart by
// where their requests come from. A program may have several connections, and is then no two: so each has to set its own value from its own
// address, time after time, until it counts.
//
// Of large objects the parts that are the same are left out before the rest is compared (large.go).
//
// How many bytes are compared is bounded for all suspects together; a write that is not compared is one flip fewer and nothing else, because
// no flip needs the write just before it.

import (
	"encoding/json"
	"strings"
	"time"

	"apilet/internal/changes"
)

const (
	switchesMin = 4         // turns that make a suspect,
	turnsMin    = 8         // or so many, of those who are told apart by their addresses alone
	suspectsMax = 64        // objects
	pathsMax    = 16        // of one
	flipsMin    = 6         // of one path make a finding,
	alikeMin    = 20        // or so many
	bytesPerSec = 32 << 10  // that are compared
	bytesAtOnce = 256 << 10 // after a while without any
	largeCost   = 32        // of the bytes of a large object beyond largeMin so many count as one
)

// updated looks at a write that changed something.
func (d *Detector) updated(r *outcome, key, who uint64) {
	if !d.suspicious(r, key, who) {
		return
	}
	was, is := r.was, r.is
	if len(was)+len(is) > largeMin {
		was, is = d.narrow(was, is)
	}
	rules := changes.Rules{Secret: r.group == "" && r.resource == "secrets", Paths: pathsMax, Value: textMax, Seed: d.seed}
	list, _, err := rules.Between(was, is)
	if err != nil {
		return
	}
	d.mu.Lock()
	news := d.flipLocked(r, key, who, list)
	d.mu.Unlock()
	if news != nil {
		d.tell(*news)
	}
}

// suspicious says whether a write is worth a comparison, which is then paid for.
func (d *Detector) suspicious(r *outcome, key, who uint64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := secondOf(r.at)
	e := d.objects.at(key, now)
	o := &e.value
	from := uint32(d.from(r, who))
	switch {
	case o.writer != uint32(who):
		if !soon(o.switched, now) {
			o.switches = 0
		}
		o.writer, o.switches, o.switched = uint32(who), o.switches+1, now
		e.credit = min(second(o.switches), 4) * credit
	case o.from != from:
		if !soon(o.turned, now) {
			o.turns = 0
		}
		o.turns, o.turned = o.turns+1, now
	}
	o.from = from
	if d.suspects[key] == nil && o.switches < switchesMin && o.turns < turnsMin {
		return false
	}
	kept := 0.0
	if o.switches < switchesMin { // a controller with several connections, most likely
		kept = bytesAtOnce / 2
	}
	return d.suspectLocked(r, key) && d.payLocked(r.at, len(r.was)+len(r.is), kept)
}

// from tells those apart who are one by all that they say.
func (d *Detector) from(r *outcome, who uint64) uint64 {
	if r.from == "" {
		return who
	}
	return who ^ d.hash(r.from)
}

func (d *Detector) suspectLocked(r *outcome, key uint64) bool {
	s := d.suspects[key]
	if s == nil {
		if len(d.suspects) >= suspectsMax {
			return false
		}
		s = &suspect{paths: map[string]*path{}}
		d.suspects[key] = s
	}
	s.last = r.at
	return true
}

// payLocked takes bytes out of the allowance, unless less would be left than has to be kept for others.
func (d *Detector) payLocked(now time.Time, bytes int, kept float64) bool {
	if bytes > largeMin {
		bytes = largeMin + (bytes-largeMin)/largeCost
	}
	if passed := now.Sub(d.refilled); passed > 0 {
		d.allowed = min(bytesAtOnce, d.allowed+passed.Seconds()*bytesPerSec)
		d.refilled = now
	}
	if float64(bytes) > d.allowed-kept {
		return false
	}
	d.allowed -= float64(bytes)
	return true
}

// flipLocked compares what a write changed with what another did before.
func (d *Detector) flipLocked(r *outcome, key, who uint64, list []changes.Change) *Finding {
	s := d.suspects[key]
	if s == nil { // swept meanwhile
		return nil
	}
	var worst *path
	var at *changes.Change
	var other Who
	var addresses []string
	by, from, address := keptWho(r.who), d.from(r, who), kept(r.from)
	for i := range list {
		c := &list[i]
		p := s.path(c.Path)
		if p == nil {
			continue
		}
		before, there := p.by, p.address
		if p.flip(r, who, from, c) && (worst == nil || p.flips > worst.flips) {
			worst, at, other = p, c, before
			if p.alike = p.who == who; p.alike {
				addresses = []string{address, there}
			}
		}
		p.who, p.by, p.before, p.from, p.address = who, by, p.from, from, address
		p.old, p.new = c.Hashes()
	}
	if worst == nil {
		return nil
	}
	return s.flipped(d, r, worst, at, other, addresses)
}

// path is the record of a path, unless the object has too many already; those that never flipped give way.
func (s *suspect) path(text string) *path {
	if p := s.paths[text]; p != nil {
		return p
	}
	if len(s.paths) >= pathsMax {
		for name, p := range s.paths {
			if p.flips == 0 {
				delete(s.paths, name)
				break
			}
		}
	}
	if len(s.paths) >= pathsMax {
		return nil
	}
	p := &path{}
	s.paths[strings.Clone(text)] = p
	return p
}

// flip says whether a change undoes the one that another made. Of two that are told apart by their addresses alone each has to do what it did
// before, or all is forgotten.
func (p *path) flip(r *outcome, who, from uint64, c *changes.Change) bool {
	old, new := c.Hashes()
	if p.who == 0 || p.old != new || p.new != old {
		return false
	}
	if p.who == who && (p.from == from || p.before != from) {
		p.flips = 0
		return false
	}
	if r.at.Sub(p.flipped) > calm {
		p.flips, p.since = 0, r.at
	}
	p.flips, p.flipped = p.flips+1, r.at
	p.revs.add(r)
	return true
}

// flipped takes a flip into the finding, which begins with enough of them.
func (s *suspect) flipped(d *Detector, r *outcome, p *path, c *changes.Change, other Who, addresses []string) *Finding {
	if s.found != nil && s.found.Ended == nil {
		s.found.Times, s.found.Last = s.found.Times+1, r.at.UTC()
		s.found.add(r)
		return nil
	}
	if p.flips < flipsMin || p.alike && p.flips < alikeMin {
		return nil
	}
	if s.found = d.beginLocked(Fight, r, evidence{p.since, p.flips, p.revs}, other); s.found == nil {
		return nil
	}
	f := s.found
	f.Paths, f.From = []string{c.Path}, addresses
	for name, p := range s.paths {
		if p.flips > 1 && name != c.Path && len(f.Paths) < examplesMax {
			f.Paths = append(f.Paths, name)
		}
	}
	for _, value := range []json.RawMessage{c.New, c.Old} { // as Who and From: the first is whose write this is
		if value == nil {
			value = json.RawMessage("null")
		}
		f.Values = append(f.Values, value)
	}
	told := f.copy()
	return &told
}
