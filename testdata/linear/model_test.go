package linear

// This file defines a minimal model of an API server. It contains the current revision and the
// objects with the revision of their last write. If the response was lost, the request was executed
// at some time before the server died, or not at all.

import (
	"fmt"
	"testing"

	"github.com/anishathalye/porcupine"
)

const keys = 4 // number of objects that the clients compete for

// A verb is the type of a request.
type verb string

const (
	create verb = "create"
	get    verb = "get"
	update verb = "update" // of both fields, if the resourceVersion matches
	patch  verb = "patch"  // of the field p
	remove verb = "delete"
	list   verb = "list"
)

// An input is a request.
type input struct {
	verb  verb
	key   int
	value string // unique among all writes
	at    int64  // for update: the expected resourceVersion
}

// A cell contains the state of an object, which may not exist.
type cell struct {
	there bool
	// its resourceVersion; -n means unknown but greater than n, because the response was lost
	rev  int64
	v, p string
}

// An output is a response.
type output struct {
	code  int // 0: there was no response
	rev   int64
	cell  cell
	cells [keys]cell // for a list
}

// A state is the state of the server.
type state struct {
	rev   int64 // a lower bound
	cells [keys]cell
}

// matches reports whether the cell is consistent with the state that was read. It returns the cell
// with its resourceVersion.
func (c cell) matches(read cell) (cell, bool) {
	if c.rev <= 0 && c.there && read.rev > -c.rev {
		c.rev = read.rev
	}
	return c, c == read
}

// code returns the expected status code of a request in this state.
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

// written returns the state after a successful write at a revision. 0 means that the revision is
// unknown.
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

// step returns the possible states after a request with the given response.
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

// model returns the model for Porcupine.
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

// ---- Invalid histories ----

// A call is an operation of a handwritten history. The times are derived from its position unless
// it overlaps with the following calls.
type call struct {
	in     input
	out    output
	longer int // number of following calls that start before this one returns
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
