package linear

// This file says what a Kubernetes API server is, in the smallest terms: a counter, and a few objects that remember the count of their
// last write. A request whose answer was lost has either happened, at some moment before the server died, or not at all.

import (
	"fmt"
	"testing"

	"github.com/anishathalye/porcupine"
)

const keys = 4 // objects that the clients fight over

// A verb is what a request asks for.
type verb string

const (
	create verb = "create"
	get    verb = "get"
	update verb = "update" // of both fields, if the object is still at a resourceVersion
	patch  verb = "patch"  // of field p
	remove verb = "delete"
	list   verb = "list"
)

// An input is a request.
type input struct {
	verb  verb
	key   int
	value string // unique among all writes
	at    int64  // update: the resourceVersion that the object must have
}

// A cell is an object, or its absence.
type cell struct {
	there bool
	rev   int64 // its resourceVersion; -n: not known, but greater than n, since the answer was lost
	v, p  string
}

// An output is an answer.
type output struct {
	code  int // 0: the answer was lost
	rev   int64
	cell  cell
	cells [keys]cell // of a list
}

// A state is all that there is.
type state struct {
	rev   int64 // at least
	cells [keys]cell
}

// matches says whether a cell can be what was read, and returns it with its resourceVersion known.
func (c cell) matches(read cell) (cell, bool) {
	if c.rev <= 0 && c.there && read.rev > -c.rev {
		c.rev = read.rev
	}
	return c, c == read
}

// code is what a request is answered in this state.
func (s *state) code(in input) int {
	there := s.cells[in.key].there
	switch {
	case in.verb == create && there:
		return 409
	case in.verb == create:
		return 201
	case !there:
		return 404
	case in.verb == update && s.cells[in.key].rev != in.at:
		return 409
	}
	return 200
}

// written is the state after a write that succeeds, at a revision; 0: it is not known.
func (s state) written(in input, rev int64) state {
	c := s.cells[in.key]
	if rev == 0 {
		c.rev = -s.rev
		s.rev++
	} else {
		c.rev, s.rev = rev, rev
	}
	c.there, c.p = true, in.value
	if in.verb != patch {
		c.v = in.value
	}
	if in.verb == remove {
		c = cell{}
	}
	s.cells[in.key] = c
	return s
}

// step returns the states that can follow when a request has had an answer.
func step(s state, in input, out output) []state {
	switch in.verb {
	case get:
		c, same := s.cells[in.key].matches(out.cell)
		s.cells[in.key] = c
		return only(s, same)
	case list:
		for i, read := range out.cells {
			c, same := s.cells[i].matches(read)
			if !same {
				return nil
			}
			s.cells[i] = c
		}
		at := s.rev
		s.rev = out.rev
		return only(s, out.rev >= at)
	}
	code := s.code(in)
	done := code < 300
	switch {
	case out.code == 0 && done:
		return []state{s, s.written(in, 0)}
	case out.code == 0:
		return []state{s}
	case out.code != code:
		return nil
	case !done:
		return []state{s}
	case in.verb == remove:
		return []state{s.written(in, s.rev+1)}
	}
	next := s.written(in, out.rev)
	return only(next, out.rev > s.rev && out.cell == next.cells[in.key])
}

func only(s state, possible bool) []state {
	if !possible {
		return nil
	}
	return []state{s}
}

// model is the above in Porcupine's terms.
func model() porcupine.Model {
	return (&porcupine.NondeterministicModel{
		Init: func() []any { return []any{state{}} },
		Step: func(s, in, out any) []any {
			var next []any
			for _, n := range step(s.(state), in.(input), out.(output)) {
				next = append(next, n)
			}
			return next
		},
		Equal:             func(a, b any) bool { return a == b },
		DescribeOperation: func(in, out any) string { return fmt.Sprintf("%+v: %+v", in, out) },
	}).ToModel()
}

// ---- Histories that must be refused ----

// A call is an operation of a history that is written by hand; times are those of its place, unless it overlaps what follows.
type call struct {
	in     input
	out    output
	longer int // so many of the following calls begin before this one is answered
}

func linearizable(calls []call) bool {
	var history []porcupine.Operation
	for i, c := range calls {
		history = append(history, porcupine.Operation{ClientId: i, Input: c.in, Output: c.out, Call: int64(10 * i), Return: int64(10*(i+c.longer) + 5)})
	}
	return porcupine.CheckOperations(model(), history)
}

func TestTheModelRefusesWhatMayNotBe(t *testing.T) {
	made := func(key int, value string, rev int64) call {
		return call{in: input{create, key, value, 0}, out: output{code: 201, rev: rev, cell: cell{true, rev, value, value}}}
	}
	a := made(0, "a", 5)
	read := func(c cell) call { return call{in: input{verb: get}, out: output{code: 200, cell: c}} }
	listed := func(rev int64, cells ...cell) call {
		out := output{code: 200, rev: rev}
		copy(out.cells[:], cells)
		return call{in: input{verb: list}, out: out}
	}
	wrote := func(v verb, value string, at, rev int64, c cell) call {
		return call{in: input{v, 0, value, at}, out: output{code: 200, rev: rev, cell: c}}
	}
	lost := func(v verb, value string, longer int) call { return call{in: input{v, 0, value, 0}, longer: longer} }
	gone, old := read(cell{}), read(cell{true, 5, "a", "a"})
	gone.out.code = 404
	updated := wrote(update, "b", 5, 6, cell{true, 6, "b", "b"})
	patched := wrote(patch, "c", 0, 7, cell{true, 7, "b", "c"})
	for _, c := range []struct {
		title string
		calls []call
		want  bool
	}{
		{"a life", []call{gone, a, old, updated, patched, {in: input{verb: remove}, out: output{code: 200}}, gone}, true},
		{"a lost create", []call{a, gone}, false},
		{"a lost update", []call{a, updated, old}, false},
		{"a patch that forgets an update", []call{a, updated, wrote(patch, "c", 0, 7, cell{true, 7, "a", "c"})}, false},
		{"two updates of one version", []call{a, updated, wrote(update, "c", 5, 7, cell{true, 7, "c", "c"})}, false},
		{"a conflict without a cause", []call{a, {in: input{update, 0, "b", 5}, out: output{code: 409}}}, false},
		{"a delete of what was deleted", []call{a, {in: input{verb: remove}, out: output{code: 200}}, {in: input{verb: remove}, out: output{code: 200}}}, false},
		{"a revision that goes back", []call{a, made(1, "b", 4)}, false},
		{"a revision that is used twice", []call{a, made(1, "b", 5)}, false},
		{"a list that is behind", []call{a, listed(4)}, false},
		{"a list that is torn", []call{a, made(1, "b", 6), listed(6, cell{}, cell{true, 6, "b", "b"})}, false},
		{"a list", []call{a, made(1, "b", 6), listed(9, cell{true, 5, "a", "a"}, cell{true, 6, "b", "b"})}, true},
		{"a lost answer that happened", []call{lost(create, "a", 0), old}, true},
		{"a lost answer that did not", []call{lost(create, "a", 0), gone}, true},
		{"a lost answer that happened and went", []call{lost(create, "a", 0), old, gone}, false},
		{"a lost answer that happened late", []call{lost(create, "a", 2), gone, old}, true},
		{"a lost answer that happened after the server's death", []call{lost(create, "a", 0), gone, old}, false},
	} {
		if got := linearizable(c.calls); got != c.want {
			t.Errorf("%s: got %t, want %t", c.title, got, c.want)
		}
	}
}
