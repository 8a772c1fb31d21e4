package findings

// This file detects fights: A changes .spec.replicas from 1 to 2, and B changes it from 2 to 1. In
// Kubernetes, it is normal for two clients to update different parts of the same object in turns.
// This only costs a table look-up for each write. If they do so several times, the object becomes a
// suspect, and further writes to it are compared path by path. A path is said to flip if one client
// restores a value that was changed by the other.
//
// If there are two clients with the same user, program and manager (such as a second replica
// without leader election, or a forgotten process), they are distinguished by their addresses. A
// single program may also use several connections. Therefore each address must repeatedly set the
// same value before the flips count.
//
// For large objects, the equal parts are removed before the comparison (large.go).
//
// There is a limit on the total number of bytes that are compared for all suspects. If a write is
// not compared, a single flip may be missed. Other flips can still be detected, because that does
// not require the immediately preceding write.

import (
	"encoding/json"
	"strings"
	"time"

	"apilet/internal/changes"
)

const (
	switchesMin = 4         // switches between writers that make an object a suspect
	turnsMin    = 8         // switches between addresses, if the writers differ only in their address
	suspectsMax = 64        // maximum number of suspect objects
	pathsMax    = 16        // maximum number of paths of one object
	flipsMin    = 6         // number of flips of a path that make a finding
	alikeMin    = 20        // the same, if the writers differ only in their address
	bytesPerSec = 32 << 10  // rate of bytes compared
	bytesAtOnce = 256 << 10 // maximum number of bytes compared in a burst
	largeCost   = 32        // For large objects, largeCost bytes in excess of largeMin count as a single byte.
)

// updated processes a write that changed an object.
func (d *Detector) updated(r *outcome, key, who uint64) {
	if !d.suspicious(r, key, who) {
		return
	}
	was, is := r.was, r.is
	if len(was)+len(is) > largeMin {
		was, is = d.narrow(was, is)
	}
	rules := changes.Options{Secret: r.group == "" && r.resource == "secrets", MaxChanges: pathsMax, MaxValueBytes: textMax, Seed: d.seed}
	list, _, err := rules.Compare(was, is)
	if err != nil {
		return
	}
	d.mu.Lock()
	news := d.flipLocked(r, key, who, list)
	d.mu.Unlock()
	if news != nil {
		d.reportAll(*news)
	}
}

// suspicious reports whether the write should be compared. If so, it has paid for the comparison.
func (d *Detector) suspicious(r *outcome, key, who uint64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := secondOf(r.at)
	e := d.objects.at(key, now)
	o := &e.value
	from := uint32(d.clientHash(r, who))
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
	if o.switches < switchesMin { // most likely a controller with several connections
		kept = bytesAtOnce / 2
	}
	return d.suspectLocked(r, key) && d.payLocked(r.at, len(r.was)+len(r.is), kept)
}

// clientHash returns a hash of the client and its address.
func (d *Detector) clientHash(r *outcome, who uint64) uint64 {
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

// payLocked deducts the given number of bytes from the allowance. It returns false if less than
// kept would be left for other objects. The caller must hold mu.
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

// flipLocked compares the changes of a write with earlier changes by another client. The caller
// must hold mu.
func (d *Detector) flipLocked(r *outcome, key, who uint64, list []changes.Change) *Finding {
	s := d.suspects[key]
	if s == nil { // removed by Sweep in the meantime
		return nil
	}
	var worst *path
	var at *changes.Change
	var other Client
	var addresses []string
	by, from, address := boundedClient(r.client), d.clientHash(r, who), boundedCopy(r.from)
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

// path returns the record of a path. If there are too many paths, it removes a path that has never
// flipped. If there is no such path, it returns nil.
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

// flip reports whether a change undoes a change by another client. If the two clients only differ
// in their addresses, each must repeat its own change. Otherwise the number of flips is reset to
// zero.
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

// flipped adds a flip to the suspect's finding. It starts a finding after enough flips.
func (s *suspect) flipped(d *Detector, r *outcome, p *path, c *changes.Change, other Client, addresses []string) *Finding {
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
	// in the order of Who and From: the first value is from this write
	for _, value := range []json.RawMessage{c.New, c.Old} {
		if value == nil {
			value = json.RawMessage("null")
		}
		f.Values = append(f.Values, value)
	}
	reported := f.copy()
	return &reported
}
