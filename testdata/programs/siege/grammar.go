package main

// This file generates hostile requests. The deck of a family contains a card for every place in the
// schemas and every production. The order of the cards is determined by the seed. Places that are
// used by many types usually come first in the deck. The requests depend on the seed, on the
// server's OpenAPI documents, and on the requests that the server rejects.

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
)

const bodyLimit = 3 << 20 // the server's limit for request bodies

// An owner is a type and the kinds that use it.
type owner struct {
	name string
	// the kinds that contain the type
	kinds []*kind
	sites map[*kind][]site
}

// A card is a place in a type and the production to put there.
type card struct {
	owner *owner
	sort  string
	make  func(g *generator, c card) *request
	what  production
}

// A deck is a list of cards, dealt in order. It starts over after the last card.
type deck struct {
	cards []card
	next  int
	tries int // number of times the last card was returned to the deck
}

// A generator contains the grammar's decks.
type generator struct {
	rng      *rand.Rand
	kinds    []*kind
	tenants  map[*kind]bool   // kinds that the tenant may create
	recorded map[*kind][]byte // protobuf of a stored object named siege
	decks    map[string]*deck
}

// families are the values of -only in the order in which they are started. Each family gets a share
// of the time.
var (
	families = []string{"crowds", "numbers", "depths", "lists", "maps", "strings", "patches", "protobuf", "options", "clients"}
	shares   = map[string]int{"crowds": 3, "numbers": 2, "depths": 4, "lists": 6, "maps": 4, "strings": 2, "patches": 2, "protobuf": 1, "options": 1, "clients": 4}
)

// A production is a choice of the grammar. fill returns the node to put at a place, using at most
// room bytes.
type production struct {
	name string
	fill func(g *generator, k *kind, at site, room int) *node
}

func newGenerator(seed uint64, kinds []*kind, tenants map[*kind]bool, recorded map[*kind][]byte) *generator {
	g := &generator{rng: rand.New(rand.NewPCG(seed, seed)), kinds: kinds, tenants: tenants, recorded: recorded, decks: map[string]*deck{}}
	owners := ownersOf(kinds)
	for _, family := range families {
		g.decks[family] = &deck{cards: g.shuffled(family, owners)}
	}
	return g
}

// again returns the last card to the deck so that it is tried again with a different kind, but at
// most twice. A rejected request does not show whether the same card is accepted for another kind.
func (g *generator) again(family string) {
	d := g.decks[family]
	if d.tries++; d.tries > 2 {
		d.tries = 0
		return
	}
	d.next--
}

// next returns the next request of a family, or nil if the card does not fit the server's types.
func (g *generator) next(family string) *request {
	d := g.decks[family]
	if len(d.cards) == 0 {
		return nil
	}
	c := d.cards[d.next%len(d.cards)]
	d.next++
	q := c.make(g, c)
	if q != nil {
		q.Tags = append(q.Tags, family)
	}
	return q
}

func ownersOf(kinds []*kind) []*owner {
	var all []*owner
	byName := map[string]*owner{}
	for _, k := range kinds {
		for _, at := range k.sites() {
			o := byName[at.owner]
			if o == nil {
				o = &owner{name: at.owner, sites: map[*kind][]site{}}
				byName[at.owner] = o
				all = append(all, o)
			}
			if o.sites[k] == nil {
				o.kinds = append(o.kinds, k)
			}
			o.sites[k] = append(o.sites[k], at)
		}
	}
	return all
}

// shuffled returns the cards of a family. Cards for different sorts of places alternate.
func (g *generator) shuffled(family string, owners []*owner) []card {
	turns := map[string][]card{}
	for _, o := range owners {
		for _, sort := range sortsOf(o) {
			for _, p := range productions(family, sort) {
				turns[sort] = append(turns[sort], card{o, sort, (*generator).write, p})
			}
		}
	}
	for _, k := range g.kinds {
		alone := &owner{name: k.name, kinds: []*kind{k}}
		for _, make := range alternatives(family) {
			turns["kind"] = append(turns["kind"], card{owner: alone, make: make})
		}
	}
	var sorts []string
	for sort := range turns {
		sorts = append(sorts, sort)
	}
	slices.Sort(sorts)
	for _, sort := range sorts {
		g.shuffle(turns[sort])
	}
	var all []card
	for i := 0; len(turns) > 0; i++ {
		for _, sort := range sorts {
			if i < len(turns[sort]) {
				all = append(all, turns[sort][i])
			} else {
				delete(turns, sort)
			}
		}
	}
	return all
}

// shuffle sorts the cards randomly. A card with twice the weight is twice as likely to come first.
func (g *generator) shuffle(cards []card) {
	keys := make(map[*owner]map[string]float64)
	for _, c := range cards {
		if keys[c.owner] == nil {
			keys[c.owner] = map[string]float64{}
		}
		keys[c.owner][c.what.name] = -math.Log(1-g.rng.Float64()) / float64(len(c.owner.kinds))
	}
	slices.SortStableFunc(cards, func(a, b card) int { return cmp.Compare(keys[a.owner][a.what.name], keys[b.owner][b.what.name]) })
}

func sortsOf(o *owner) []string {
	var all []string
	for _, sites := range o.sites {
		for _, at := range sites {
			all = append(all, at.sort)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// ---- Productions: the values that are put at a place ----

// productions returns the family's productions for a sort of place.
func productions(family, sort string) []production {
	switch {
	case family == "numbers" && strings.HasPrefix(sort, "number"):
		return numbers
	case family == "lists" && sort == "list":
		return ordered(series)
	case family == "maps" && (sort == "map" || sort == "free"):
		return ordered(pairs)
	case family == "strings" && sort == "text":
		return texts
	case family == "depths" && (sort == "free" || sort == "map" || sort == "list"):
		return nestings[:map[string]int{"free": 4, "map": 1, "list": 1}[sort]]
	}
	return nil
}

// alternatives returns cards for the whole object instead of a place in it.
func alternatives(family string) []func(*generator, card) *request {
	switch family {
	case "crowds":
		return []func(*generator, card) *request{(*generator).crowd}
	case "patches":
		return []func(*generator, card) *request{(*generator).copies, (*generator).operations, (*generator).replacement, (*generator).merging, (*generator).merging}
	case "protobuf":
		return []func(*generator, card) *request{(*generator).repeated, (*generator).mutated}
	case "options":
		return []func(*generator, card) *request{(*generator).reading, (*generator).reading, (*generator).aside}
	case "clients":
		return detours
	}
	return nil
}

// numbers contains numbers with signs, exponents and digits that do not fit into a machine word.
var numbers = []production{
	numeral("huge negative exponent", "1e-2147483648", "0e-16000000", "-1E-999999999", "9e-9223372036854775808"),
	numeral("huge positive exponent", "1e2147483647", "0e16000000", "-9E999999999", "1e9223372036854775807"),
	numeral("large exponent", "1e-99999", "1e99999", "-3E-400", "7e400"),
	numeral("beyond a word", "2147483648", "-2147483649", "9223372036854775808", "18446744073709551616", "-9223372036854775809", "1e19"),
	digits("digits", "", "9", ""), digits("digits of a fraction", "0.", "0", "1"), digits("digits and a suffix", "1", "0", "Ei"), digits("digits of an exponent", "1e", "1", ""),
}

func numeral(name string, spellings ...string) production {
	return production{name, func(g *generator, k *kind, at site, room int) *node {
		n := literal(spellings[g.rng.IntN(len(spellings))])
		if at.schema.Type == "string" || g.rng.IntN(2) == 0 {
			n.Kind = "text"
		}
		return n
	}}
}

func digits(name, head, digit, tail string) production {
	return production{name, func(g *generator, k *kind, at site, room int) *node {
		n := &node{Kind: "literal", Head: head, Text: digit, Tail: tail, N: min(room, 100_000)}
		if at.schema.Type == "string" || strings.ContainsAny(tail, "Ei") || g.rng.IntN(2) == 0 {
			n.Kind = "text"
		}
		return n
	}}
}

// ordered returns productions for many elements: all equal, descending, and ascending.
func ordered(of func(order string) production) []production {
	return []production{of(equal), of(descending), of(ascending)}
}

func series(order string) production {
	return production{order, func(g *generator, k *kind, at site, room int) *node {
		items := k.resolve(at.schema.Items)
		elem := k.valid(items, at.field)
		if elem.Kind == "object" && len(elem.Members) == 0 {
			// usual keys of elements without required members
			for _, name := range []string{"name", "key", "type"} {
				if member := items.Properties[name]; member != nil && k.sortOf(k.resolve(member)) == "text" {
					elem.set(name, k.valid(k.resolve(member), name))
				}
			}
		}
		key := numbered(elem)
		if choice := g.rng.IntN(6); elem.Kind == "object" && choice < 2 {
			k.complete(elem, items)
			if len(elem.Members) > 0 {
				key = elem.Members[g.rng.IntN(len(elem.Members))].Name
			}
		} else if elem.Kind == "object" && choice == 2 {
			// an element without members is also allowed
			elem.Members, key = nil, ""
		}
		n := &node{Kind: "series", Order: order, Elem: elem, Key: key, N: 99_999_999}
		n.N = max(2, room/(1+len(n.element(nil, max(n.number(n.N-1), n.number(0))))))
		return n
	}}
}

// numbered returns the name of the member for the number. It prefers the name, then any text, then
// any literal.
func numbered(elem *node) string {
	best := ""
	for _, m := range elem.Members {
		if m.Value.Kind == "text" && (best == "" || m.Name == "name") || m.Value.Kind == "literal" && best == "" {
			best = m.Name
		}
	}
	return best
}

func pairs(order string) production {
	return production{order, func(g *generator, k *kind, at site, room int) *node {
		value := &node{Kind: "object"}
		if v := k.values(at.schema); v != nil {
			value = k.valid(v, at.field)
		}
		prefix := prefixes(at.schema)
		n := &node{Kind: "pairs", Order: order, Elem: value, Key: cmp.Or(prefix[g.rng.IntN(len(prefix))], prefix[0], "k")}
		n.N = max(2, room/(12+len(n.Key)+len(value.bytes())))
		return n
	}}
}

// nestings contains deep values. Some of them are also as wide as possible at the innermost level.
// The first production applies to all places.
var nestings = []production{
	{"deep", func(g *generator, k *kind, at site, room int) *node {
		n := nest(g, at, literal("1"), []int{100, 900, 9000}[g.rng.IntN(3)])
		n.Depth = min(n.Depth, room/(6+len(n.Key)))
		return n
	}},
	{"deep and wide", deepAndWide}, {"deep and wide", deepAndWide}, {"deep", func(g *generator, k *kind, at site, room int) *node {
		return nest(g, at, literal("1"), min(room/12, 400_000))
	}},
}

func deepAndWide(g *generator, k *kind, at site, room int) *node {
	n := nest(g, at, nil, []int{60, 240, 480}[g.rng.IntN(3)])
	left := max(100, room-n.Depth*(6+len(n.Key)))
	if n.Key == "" {
		n.Elem = &node{Kind: "series", Order: equal, Elem: literal("1"), N: left / 2}
	} else {
		n.Elem = &node{Kind: "pairs", Order: ascending, Key: n.Key, Elem: &node{Kind: "object"}, N: left / (14 + len(n.Key))}
	}
	return n
}

// nest returns nested objects or lists. It nests objects if the place is an object, and their names
// begin with the prefix in the place's description.
func nest(g *generator, at site, innermost *node, depth int) *node {
	prefix := prefixes(at.schema)
	key := prefix[0]
	if key != "" {
		return &node{Kind: "deep", Key: key + "a", Depth: depth, Elem: innermost}
	}
	if g.rng.IntN(2) == 0 {
		key = "a"
	}
	return &node{Kind: "deep", Key: key, Depth: depth, Elem: innermost}
}

// texts contains long texts with characters that may need to be quoted or escaped.
var texts = []production{spelling("a"), spelling("\u0000"), spelling("<"), spelling("."), spelling("/"), spelling("$(A)"), spelling(","), spelling("é"), spelling("%"),
	spelling("("), spelling("*"), spelling("\n"), spelling("- "), spelling("0.")}

func spelling(unit string) production {
	return production{fmt.Sprintf("long %q", unit), func(g *generator, k *kind, at site, room int) *node {
		return &node{Kind: "text", Text: unit, N: room / len(quoted(nil, unit))}
	}}
}

// ---- Requests that write ----

// write inserts the production at places of the right sort. If several places are available, it
// uses more than one. The relevant place is found by shrinking the request.
func (g *generator) write(c card) *request {
	k := c.owner.kinds[g.rng.IntN(len(c.owner.kinds))]
	var places []site
	for _, at := range c.owner.sites[k] {
		if at.sort == c.sort {
			places = append(places, at)
		}
	}
	if len(places) == 0 {
		return nil
	}
	g.rng.Shuffle(len(places), func(i, j int) { places[i], places[j] = places[j], places[i] })
	places = places[:min(len(places), []int{1, 3, 12}[g.rng.IntN(3)])]
	room := []int{128 << 10, 512 << 10, 1 << 20, bodyLimit - 128<<10, bodyLimit - 128<<10}[g.rng.IntN(5)]
	if c.sort == "list" { // many short elements fit into little room
		room /= 4
	}
	object := k.base("")
	for _, at := range places {
		n := c.what.fill(g, k, at, room/len(places))
		n.Tags = []string{at.tag(), at.sort, c.what.name}
		if strings.HasPrefix(at.sort, "number") || n.Kind == "deep" {
			// such values are hard to read or write at every place, so drop the place's tag
			n.Tags = n.Tags[1:]
		}
		if at.sort == "free" && n.Kind == "deep" && n.Key == "" {
			inner := *n
			inner.Tags = nil
			n = &node{Kind: "object", Members: []member{{"a", &inner}}, Tags: n.Tags}
		}
		if err := k.put(object, at.path, n); err != nil {
			return nil
		}
	}
	return g.sent(k, object)
}

// sent returns a request that creates or updates the object. It may also read the object in another
// format.
func (g *generator) sent(k *kind, object *node) *request {
	q := &request{As: g.persona(k), Method: "POST", Path: k.collection, ContentType: "application/json", Body: object}
	if k.part() || k.review() {
		return q
	}
	switch g.rng.IntN(10) {
	case 0:
		q.Method, q.Path = "PUT", k.collection+"/siege"
		object.get("metadata").set("name", text("siege"))
	case 1:
		q.Method, q.Path, q.ContentType = "PATCH", k.collection+"/siege", "application/apply-patch+yaml"
		object.get("metadata").set("name", text("siege"))
		q.Query = append(q.Query, [2]string{"fieldManager", "siege"}, [2]string{"force", "true"})
	case 2:
		q.ContentType = "application/yaml"
	case 3, 4:
		if g.tenants[k] {
			return g.readBack(k, q)
		}
	}
	// objects stored by an administrator would change the server's configuration
	if !g.tenants[k] || g.rng.IntN(4) > 0 {
		q.Query = append(q.Query, [2]string{"dryRun", "All"})
	}
	if g.rng.IntN(4) == 0 {
		q.Query = append(q.Query, [2]string{"fieldValidation", []string{"Strict", "Warn", "Ignore"}[g.rng.IntN(3)]})
	}
	g.form(q)
	return q
}

// form selects the format of the response.
func (g *generator) form(q *request) {
	switch g.rng.IntN(6) {
	case 0, 1:
		q.Query = append(q.Query, [2]string{"pretty", "true"})
	case 2:
		q.Accept = "application/yaml"
	case 3:
		q.Accept = []string{"application/vnd.kubernetes.protobuf", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1", "application/json;as=Table;g=meta.k8s.io;v=v1"}[g.rng.IntN(3)]
	}
}

// readBack stores the object with a unique name and reads it or lists it.
func (g *generator) readBack(k *kind, q *request) *request {
	metadata := q.Body.get("metadata")
	metadata.Members = slices.DeleteFunc(metadata.Members, func(m member) bool { return m.Name == "generateName" })
	name := fmt.Sprintf("siege-%d", g.rng.Uint32())
	if metadata.get("name") != nil {
		return q
	}
	metadata.set("name", text(name))
	read := &request{As: q.As, Method: "GET", Path: k.collection + "/" + name, Before: []*request{q}}
	if g.rng.IntN(3) == 0 {
		read.Path = k.collection
	}
	g.form(read)
	return read
}

// persona returns the persona with the fewest rights that may write this kind. Occasionally it
// returns a persona without this right.
func (g *generator) persona(k *kind) string {
	switch n := g.rng.IntN(24); {
	case n == 0:
		return "stranger"
	case n == 1:
		return "node"
	case g.tenants[k]:
		return "tenant"
	}
	return "administrator"
}

// ---- Patches ----

func (g *generator) patch(k *kind, contentType string, body *node) *request {
	if k.review() || !slices.Contains(k.verbs, "PATCH") {
		return nil
	}
	q := &request{As: g.persona(k), Method: "PATCH", Path: k.collection + "/siege", ContentType: contentType, Body: body, Query: [][2]string{{"dryRun", "All"}}}
	if len(k.subresources) > 0 && g.rng.IntN(3) == 0 {
		q.Path += "/" + k.subresources[g.rng.IntN(len(k.subresources))]
	}
	body.Tags = append(body.Tags, contentType)
	return q
}

// copies returns a JSON patch that repeatedly copies its own results into the object.
func (g *generator) copies(c card) *request {
	from := []string{"", "/metadata", "/metadata/labels", "/metadata/annotations"}[g.rng.IntN(4)]
	add := parsed(`{"op":"add","path":"/metadata/annotations","value":{}}`)
	again := &node{Kind: "series", Order: equal, N: 20 + g.rng.IntN(5000), Elem: parsed(`{"op":"copy","path":"/metadata/annotations/a"}`)}
	again.Elem.set("from", text(from))
	return g.patch(c.owner.kinds[0], "application/json-patch+json", spliced(add, again))
}

// spliced returns a list of the first element followed by the elements of the series. A series must
// be the whole body, so the elements are listed one by one.
func spliced(first, rest *node) *node {
	rest.N = min(rest.N, 9000)
	l := &node{Kind: "list", Items: []*node{first}, Tags: []string{"copies"}}
	for range min(rest.N, 200) {
		l.Items = append(l.Items, clone(rest.Elem))
	}
	return l
}

// operations returns a JSON patch with many operations.
func (g *generator) operations(c card) *request {
	op := []string{`{"op":"test","path":"/metadata/name","value":"siege"}`, `{"op":"add","path":"/metadata/finalizers","value":["a.b/c"]}`, `{"op":"add","path":"/metadata/labels","value":{"a":"b"}}`,
		`{"op":"replace","path":"/metadata","value":{"name":"siege"}}`, `{"op":"move","from":"/metadata/name","path":"/metadata/name"}`}[g.rng.IntN(5)]
	elem := parsed(op)
	n := &node{Kind: "series", Order: equal, Elem: elem, N: []int{5000, 10_000, 30_000}[g.rng.IntN(3)], Tags: []string{"operations " + elem.get("op").Text}}
	return g.patch(c.owner.kinds[0], "application/json-patch+json", n)
}

// replacement returns a merge patch with many members or many levels.
func (g *generator) replacement(c card) *request {
	body := parsed(`{"metadata":{}}`)
	at := []string{"annotations", "labels", "x"}[g.rng.IntN(3)]
	n := &node{Kind: "pairs", Key: "k", Order: []string{ascending, descending}[g.rng.IntN(2)], Elem: text("v"), N: 100_000, Tags: []string{"members of " + at}}
	if g.rng.IntN(2) == 0 {
		n = &node{Kind: "deep", Key: "a", Depth: []int{900, 9000, 200_000}[g.rng.IntN(3)], Elem: literal("1"), Tags: []string{"levels of " + at}}
	}
	body.get("metadata").set(at, n)
	types := []string{"application/merge-patch+json", "application/strategic-merge-patch+json", "application/apply-patch+yaml"}
	return g.patch(c.owner.kinds[0], types[g.rng.IntN(len(types))], body)
}

// merging returns a patch that merges a long list into another long list. The server looks elements
// up by their merge keys.
func (g *generator) merging(c card) *request {
	k := c.owner.kinds[0]
	var places []site
	for _, at := range k.sites() {
		if at.sort == "list" && at.path[0] != "metadata" && at.path[0] != "status" && k.sortOf(k.resolve(at.schema.Items)) == "object" && !slices.Contains(at.path, "k") {
			places = append(places, at)
		}
	}
	if len(places) == 0 || !g.tenants[k] {
		return nil
	}
	at := places[g.rng.IntN(len(places))]
	name := fmt.Sprintf("siege-%d", g.rng.Uint32())
	object, change := k.base(name), k.base(name)
	orders := []string{ascending, descending}
	for _, o := range []*node{object, change} {
		n := series(orders[g.rng.IntN(2)]).fill(g, k, at, 64<<10<<g.rng.IntN(4))
		n.Tags = []string{at.tag(), "merging"}
		if err := k.put(o, at.path, n); err != nil {
			return nil
		}
	}
	types := []string{"application/strategic-merge-patch+json", "application/strategic-merge-patch+json", "application/merge-patch+json", "application/apply-patch+yaml"}
	q := g.patch(k, types[g.rng.IntN(len(types))], change)
	if q == nil {
		return nil
	}
	q.Path = k.collection + "/" + name
	q.Before = []*request{{As: q.As, Method: "POST", Path: k.collection, ContentType: "application/json", Body: object}}
	if q.ContentType == "application/apply-patch+yaml" {
		q.Query = append(q.Query, [2]string{"fieldManager", "siege"}, [2]string{"force", "true"})
	}
	return q
}

// ---- Protobuf ----

// repeated sends the same recorded object several times in the body. In protobuf, repeated fields
// are concatenated. For other fields, the last value is used.
func (g *generator) repeated(c card) *request {
	k := c.owner.kinds[0]
	raw := objectOf(g.recorded[k])
	if raw == nil {
		return nil
	}
	n := &node{Kind: "bytes", Head: k.apiVersion, Tail: k.name, Data: raw, N: min(5000, (256<<10)<<g.rng.IntN(4)/len(raw)), Tags: []string{"repeated " + k.name}}
	return g.binary(k, n)
}

// mutated sends a recorded object after changing, removing or inserting a few bytes.
func (g *generator) mutated(c card) *request {
	k := c.owner.kinds[0]
	raw := slices.Clone(objectOf(g.recorded[k]))
	if raw == nil {
		return nil
	}
	for range 1 + g.rng.IntN(8) {
		at := g.rng.IntN(len(raw))
		switch g.rng.IntN(4) {
		case 0:
			raw[at] ^= 1 << g.rng.IntN(8)
		case 1:
			raw = slices.Insert(raw, at, []byte{0xff, 0xff, 0xff, 0xff, 0x7f}...)
		case 2:
			raw = slices.Insert(raw, at, raw[at:min(len(raw), at+g.rng.IntN(40))]...)
		default:
			raw[at] = []byte{0, 1, 0x7f, 0x80, 0xff}[g.rng.IntN(5)]
		}
	}
	n := &node{Kind: "bytes", Head: k.apiVersion, Tail: k.name, Data: raw, N: 1, Tags: []string{"mutated " + k.name}}
	return g.binary(k, n)
}

// binary sends protobuf as an update of the recorded object or as a create.
func (g *generator) binary(k *kind, n *node) *request {
	q := &request{As: g.persona(k), Method: "PUT", Path: k.collection + "/siege", ContentType: "application/vnd.kubernetes.protobuf", Body: n, Query: [][2]string{{"dryRun", "All"}}}
	if g.rng.IntN(4) == 0 {
		q.Method, q.Path = "POST", k.collection
	}
	return q
}

// objectOf returns the object's bytes from the envelope of a recorded response.
func objectOf(answer []byte) []byte {
	if len(answer) < 4 {
		return nil
	}
	rest := answer[4:]
	for len(rest) > 0 {
		key := rest[0]
		length, used := varint(rest[1:])
		if used == 0 || key&7 != 2 || length > uint64(len(rest)-1-used) {
			return nil
		}
		if key>>3 == 2 {
			return rest[1+used : 1+used+int(length)]
		}
		rest = rest[1+used+int(length):]
	}
	return nil
}

func varint(b []byte) (v uint64, used int) {
	for i, c := range b[:min(len(b), 10)] {
		v |= uint64(c&0x7f) << (7 * i)
		if c < 0x80 {
			return v, i + 1
		}
	}
	return 0, 0
}

// ---- Reads ----

// options lists values for query parameters, by name.
var options = map[string][]string{
	"pretty": {"true", "1", "x"}, "limit": {"1", "0", "-1", "9223372036854775807", "1e9"}, "resourceVersion": {"0", "1", "999999999999", "-1", "x"},
	"resourceVersionMatch": {"Exact", "NotOlderThan", "x"}, "watch": {"true"}, "sendInitialEvents": {"true", "false"}, "allowWatchBookmarks": {"true"},
	"timeoutSeconds": {"1", "0", "-1", "99999999999999"}, "dryRun": {"All", "x"}, "gracePeriodSeconds": {"0", "-1"},
}

// reading reads objects of a kind with random options, sometimes at an earlier revision.
func (g *generator) reading(c card) *request {
	k := c.owner.kinds[0]
	if !slices.Contains(k.verbs, "GET") {
		return nil
	}
	q := &request{As: g.persona(k), Method: "GET", Path: k.collection}
	if g.rng.IntN(4) == 0 {
		q.Path += "/siege"
	}
	if g.rng.IntN(6) == 0 {
		q.Path = "/at/" + []string{"-1s", "1", "90", "now", "2026-01-02T03:04:05Z", "99999999999999999999"}[g.rng.IntN(6)] + q.Path
	}
	for range g.rng.IntN(4) {
		if len(k.parameters) > 0 {
			q.Query = append(q.Query, g.option(k.parameters[g.rng.IntN(len(k.parameters))]))
		}
	}
	g.form(q)
	q.Tags = append(q.Tags, "reading "+k.name)
	return q
}

// option returns a value for a parameter. If the parameter is not in the table, the value is
// generated.
func (g *generator) option(name string) [2]string {
	if values := options[name]; values != nil {
		return [2]string{name, values[g.rng.IntN(len(values))]}
	}
	unit := []string{"a=b,", "a!=b,", "a in (b,c),", "!a,", "a,", "(", "metadata.name=x,", "metadata.name!=x,", "é", "%00", "eyJ2IjoibWV0YS5rOHMuaW8vdjEi"}[g.rng.IntN(11)]
	return [2]string{name, strings.TrimSuffix(strings.Repeat(unit, 1+g.rng.IntN(40_000/len(unit))), ",")}
}

// aside requests a path that is not a resource.
func (g *generator) aside(c card) *request {
	paths := []string{"/version", "/metrics", "/openapi/v2", "/openapi/v3", "/openapi/v3/api/v1", "/api", "/apis", "/readyz?verbose", "/livez", "/debug/history", "/debug/deprecations", "/debug/ui/",
		"/debug/ui/data", "/debug/api_priority_and_fairness/dump_requests", "/debug/api_priority_and_fairness/dump_queues", "/debug/api_priority_and_fairness/dump_priority_levels", "/at/1/version",
		"/at/50/version", "/at/-1s/apis", "/at/60/openapi/v3", "/at/60/readyz", "/.well-known/openid-configuration", "/debug/history?objects=true", "/debug/history?tail=99999999"}
	path, query, _ := strings.Cut(paths[g.rng.IntN(len(paths))], "?")
	q := &request{As: []string{"stranger", "node", "tenant", "administrator"}[g.rng.IntN(4)], Method: "GET", Path: path, Tags: []string{path}}
	if name, value, is := strings.Cut(query, "="); is {
		q.Query = append(q.Query, [2]string{name, value})
	}
	switch g.rng.IntN(4) {
	case 0:
		q.Query = append(q.Query, [2]string{"pretty", "true"})
	case 1:
		q.Path = "/" + url.PathEscape(strings.Repeat("a/", g.rng.IntN(20_000))) + q.Path
	case 2:
		q.Accept = strings.Repeat([]string{"application/json;q=0.1,", "application/json;as=Table;v=v1;g=meta.k8s.io,", "*/*,"}[g.rng.IntN(3)], 1+g.rng.IntN(1000))
	}
	return q
}

// ---- Crowds ----

// crowd returns a request for a very large object that many connections send at the same time. The
// connections read the response slowly or not at all, or leave early.
func (g *generator) crowd(c card) *request {
	k := c.owner.kinds[0]
	if !slices.Contains(k.verbs, "PATCH") || !slices.Contains(k.verbs, "GET") {
		return nil
	}
	before := g.growth(k)
	if before == nil {
		return nil
	}
	q := &request{As: before[0].As, Method: "GET", Path: before[1].Path, Before: before, Connections: 1, Manner: manners[g.rng.IntN(len(manners))]}
	switch g.rng.IntN(5) {
	case 0, 1, 2:
		q.Path, q.Query = k.collection, [][2]string{{"watch", "true"}}
	case 3:
		q.Path = k.collection
	}
	return q
}

// growth returns a POST and two patches that create a large object. Each body has nearly the
// maximum size.
func (g *generator) growth(k *kind) []*request {
	var places []site
	for _, at := range k.sites() {
		words := at.sort == "list" && k.sortOf(k.resolve(at.schema.Items)) == "text" && len(k.resolve(at.schema.Items).Enum) == 0
		if (words || at.sort == "free") && len(at.path) > 1 && at.path[0] != "metadata" && at.path[0] != "status" && !slices.Contains(at.path, "k") {
			places = append(places, at)
		}
	}
	if len(places) == 0 {
		return nil
	}
	at := places[g.rng.IntN(len(places))]
	name := fmt.Sprintf("siege-%d", g.rng.Uint32())
	large := func() *node { return &node{Kind: "text", Text: "x", N: bodyLimit - 96<<10} }
	value, pointer := &node{Kind: "list", Items: []*node{large()}}, "/"+strings.Join(at.path, "/")+"/-"
	if at.sort == "free" {
		value, pointer = &node{Kind: "object", Members: []member{{"a", large()}}}, "/"+strings.Join(at.path, "/")+"/b"
	}
	object := k.base(name)
	if err := k.put(object, at.path, value); err != nil {
		return nil
	}
	who := "administrator"
	if g.tenants[k] {
		who = "tenant"
	}
	all := []*request{{As: who, Method: "POST", Path: k.collection, ContentType: "application/json", Body: object}}
	for i := range 2 {
		add := parsed(`[{"op":"add"}]`)
		add.Items[0].set("path", text(strings.TrimSuffix(pointer, "b")+map[bool]string{true: fmt.Sprint("b", i), false: ""}[at.sort == "free"]))
		add.Items[0].set("value", large())
		all = append(all, &request{As: who, Method: "PATCH", Path: k.collection + "/" + object.get("metadata").get("name").Text, ContentType: "application/json-patch+json", Body: add})
	}
	return all
}
