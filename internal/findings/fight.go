package findings

// This file finds fights: A sets .spec.replicas from 1 to 2, B from 2 to 1. That two write an object in turns is the rule in Kubernetes, each
// its own part, and costs a look into a table here. Whoever has done so some times makes the object a suspect, and of suspects writes are
// compared, path by path. A path that one sets to what the other has changed it from has flipped.
//
// How many bytes are compared is bounded for all suspects together; a write that is not compared is one flip fewer and nothing else, because
// no flip needs the write just before it.

import (
	"encoding/json"
	"strings"
	"time"

	"apilet/internal/history/changes"
)

const (
	switchesMin = 4         // turns that make a suspect
	suspectsMax = 64        // objects
	pathsMax    = 16        // of one
	flipsMin    = 6         // of one path make a finding
	bytesPerSec = 32 << 10  // that are compared
	bytesAtOnce = 256 << 10 // after a while without any; larger objects are never compared
)

// A suspect is an object that two write in turns.
type suspect struct {
	last  time.Time
	paths map[string]*path
	found *Finding
}

// A path is what became of one place in the object.
type path struct {
	who      uint64
	old, new uint64 // hashes of the values
	by       Who
	flips    int64
	revs     revisions
	flipped  time.Time
	since    time.Time
}

// updated looks at a write that changed something.
func (d *Detector) updated(r *Request, key, who uint64) {
	if !d.suspicious(r, key, who) {
		return
	}
	rules := changes.Rules{Secret: r.Group == "" && r.Resource == "secrets", Paths: pathsMax, Value: textMax, Seed: d.seed}
	list, _, err := rules.Between(r.Was, r.Is)
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
func (d *Detector) suspicious(r *Request, key, who uint64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := secondOf(r.At)
	e := d.objects.at(key, now)
	o := &e.value
	if o.writer != uint32(who) {
		if !soon(o.switched, now) {
			o.switches = 0
		}
		o.writer, o.switches, o.switched = uint32(who), o.switches+1, now
		e.credit = min(second(o.switches), 4) * credit
	}
	if d.suspects[key] == nil && o.switches < switchesMin {
		return false
	}
	return d.suspectLocked(r, key) && d.payLocked(r.At, len(r.Was)+len(r.Is))
}

func (d *Detector) suspectLocked(r *Request, key uint64) bool {
	s := d.suspects[key]
	if s == nil {
		if len(d.suspects) >= suspectsMax {
			return false
		}
		s = &suspect{paths: map[string]*path{}}
		d.suspects[key] = s
	}
	s.last = r.At
	return true
}

// payLocked takes bytes out of the allowance.
func (d *Detector) payLocked(now time.Time, bytes int) bool {
	if passed := now.Sub(d.refilled); passed > 0 {
		d.allowed = min(bytesAtOnce, d.allowed+passed.Seconds()*bytesPerSec)
		d.refilled = now
	}
	if float64(bytes) > d.allowed {
		return false
	}
	d.allowed -= float64(bytes)
	return true
}

// flipLocked compares what a write changed with what another did before.
func (d *Detector) flipLocked(r *Request, key, who uint64, list []changes.Change) *Finding {
	s := d.suspects[key]
	if s == nil { // swept meanwhile
		return nil
	}
	var worst *path
	var at *changes.Change
	var other Who
	by := keptWho(r.Who)
	for i := range list {
		c := &list[i]
		p := s.path(c.Path)
		if p == nil {
			continue
		}
		before := p.by
		if p.flip(r, who, c) && (worst == nil || p.flips > worst.flips) {
			worst, at, other = p, c, before
		}
		p.who, p.by = who, by
		p.old, p.new = c.Hashes()
	}
	if worst == nil {
		return nil
	}
	return s.flipped(d, r, worst, at, other)
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

// flip says whether a change undoes the one that another made.
func (p *path) flip(r *Request, who uint64, c *changes.Change) bool {
	old, new := c.Hashes()
	if p.who == 0 || p.who == who || p.old != new || p.new != old {
		return false
	}
	if r.At.Sub(p.flipped) > calm {
		p.flips, p.since = 0, r.At
	}
	p.flips, p.flipped = p.flips+1, r.At
	p.revs.add(r)
	return true
}

// flipped takes a flip into the finding, which begins with enough of them.
func (s *suspect) flipped(d *Detector, r *Request, p *path, c *changes.Change, other Who) *Finding {
	if s.found != nil && s.found.Ended == nil {
		s.found.Times, s.found.Last = s.found.Times+1, r.At.UTC()
		s.found.add(r)
		return nil
	}
	if p.flips < flipsMin {
		return nil
	}
	if s.found = d.beginLocked(Fight, r, evidence{p.since, p.flips, p.revs}, other); s.found == nil {
		return nil
	}
	f := s.found
	f.Paths = []string{c.Path}
	for name, p := range s.paths {
		if p.flips > 1 && name != c.Path && len(f.Paths) < examplesMax {
			f.Paths = append(f.Paths, name)
		}
	}
	for _, value := range []json.RawMessage{c.Old, c.New} {
		if value == nil {
			value = json.RawMessage("null")
		}
		f.Values = append(f.Values, value)
	}
	told := f.copy()
	return &told
}
