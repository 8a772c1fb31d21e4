package main

// This file shrinks a request that trips a meter. It removes parts of the request if the meter
// still trips without them.

import (
	"slices"
)

// shrink returns the smallest request that it finds for which trips returns true; for q it must. It
// stops when trips returns false for all reductions, or when more returns false because the time is
// over.
func shrink(q *request, trips func(*request) bool, more func() bool) *request {
	for again := true; again; {
		again = false
		for _, smaller := range reductions(q) {
			if !more() {
				return q
			}
			if trips(smaller) {
				q, again = smaller, true
				break
			}
		}
	}
	return q
}

// reductions returns requests that are slightly smaller than q. The largest reductions come first.
func reductions(q *request) []*request {
	var all []*request
	propose := func(reduce func(*request)) {
		c := clone(q)
		reduce(c)
		all = append(all, c)
	}
	for i := range q.marked() { // only one of the generated nodes
		if len(q.marked()) > 1 {
			propose(func(c *request) { c.keepOnly(i) })
		}
	}
	for i := range q.marked() { // remove only one of them, because the cause may need two
		if len(q.marked()) > 2 {
			propose(func(c *request) { c.without(c.marked()[i]) })
		}
	}
	if q.Connections > 1 {
		propose(func(c *request) { c.Connections /= 2 })
	}
	for i := range q.Query {
		propose(func(c *request) { c.Query = slices.Delete(c.Query, i, i+1) })
	}
	if q.Accept != "" {
		propose(func(c *request) { c.Accept = "" })
	}
	for i := range q.Before {
		propose(func(c *request) { c.Before = slices.Delete(c.Before, i, i+1) })
	}
	if i := slices.Index(personas, q.As); i > 0 {
		propose(func(c *request) { c.As = personas[i-1] })
	}
	for i, n := range q.trees() {
		for _, reduce := range reductionsOf(n) {
			propose(func(c *request) { reduce(c.trees()[i]) })
		}
	}
	return all
}

// trees returns all nodes of the request and of the requests in Before.
func (q *request) trees() []*node {
	all := q.Body.nodes()
	for _, b := range q.Before {
		all = append(all, b.trees()...)
	}
	return all
}

// marked returns the nodes that were inserted by the grammar.
func (q *request) marked() []*node {
	return slices.DeleteFunc(q.trees(), func(n *node) bool { return len(n.Tags) == 0 })
}

// halve reduces the length of the generated nodes to half. If they are not long, it reduces their
// depth. It reports whether it changed anything.
func (q *request) halve() (less bool) {
	for _, of := range []func(*node) *int{func(n *node) *int { return &n.N }, func(n *node) *int { return &n.Depth }} {
		for _, n := range q.Body.nodes() {
			if size := of(n); *size > 100 {
				*size /= 2
				less = true
			}
		}
		if less {
			break
		}
	}
	return less
}

// keepOnly removes all marked nodes except for one; without removes a single node.
func (q *request) keepOnly(i int) {
	marked := q.marked()
	q.remove(func(n *node) bool {
		return slices.Contains(marked, n) && n != marked[i] && !slices.Contains(n.nodes(), marked[i])
	})
}

func (q *request) without(one *node) { q.remove(func(n *node) bool { return n == one }) }

func (q *request) remove(drop func(*node) bool) {
	if q.Body != nil {
		q.Body.remove(drop)
	}
	for _, b := range q.Before {
		b.remove(drop)
	}
}

// reductionsOf returns functions that make a node smaller.
func reductionsOf(n *node) []func(*node) {
	var all []func(*node)
	if n.N > 1 {
		all = append(all, func(n *node) { n.N /= 2 })
	}
	if n.Depth > 1 {
		all = append(all, func(n *node) { n.Depth /= 2 })
	}
	for i, m := range n.Members {
		if m.Name != "apiVersion" && m.Name != "kind" && m.Name != "metadata" {
			all = append(all, func(n *node) { n.Members = slices.Delete(n.Members, i, i+1) })
		}
	}
	for i := range n.Items {
		all = append(all, func(n *node) { n.Items = slices.Delete(n.Items, i, i+1) })
	}
	return all
}
