package main

// This file makes hostile requests. A family is a way to be hostile; each has a deck of cards, one for each place in the types' schemas and
// each production of the family's grammar, shuffled by the seed so that what many types have comes early. What is chosen depends on
// the seed, on what the server says of its types, and on which requests it refuses.

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
)

const bodyLimit = 3 << 20 // of the server, for what is sent

// An owner is a type of the schemas, with a kind that has it somewhere, and its members.
type owner struct {
	name  string
	kinds []*kind // those that have it
	sites map[*kind][]site
}

// A card is a place and what is to be put there.
type card struct {
	owner *owner
	sort  string
	make  func(g *generator, c card) *request
	what  production
}

// A deck is dealt from the top, and from the top again.
type deck struct {
	cards []card
	next  int
	tries int // of the card that was dealt last, beyond the first
}

// A generator is the grammar with its decks.
type generator struct {
	rng      *rand.Rand
	kinds    []*kind
	tenants  map[*kind]bool   // that the tenant may create
	recorded map[*kind][]byte // protobuf of a stored object named siege
	decks    map[string]*deck
}

// families are the names for -only, in the order in which they begin. Each gets time by its share.
var (
	families = []string{"crowds", "numbers", "depths", "lists", "maps", "strings", "patches", "protobuf", "options", "clients"}
	shares   = map[string]int{"crowds": 3, "numbers": 2, "depths": 4, "lists": 6, "maps": 4, "strings": 2, "patches": 2, "protobuf": 1, "options": 1, "clients": 4}
)

// A production is a choice of the grammar: its name and the node that it makes of the room that there is.
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

// again has the family's last card dealt once more, with another kind of object perhaps: what was refused says little about what is accepted.
func (g *generator) again(family string) {
	d := g.decks[family]
	if d.tries++; d.tries > 2 {
		d.tries = 0
		return
	}
	d.next--
}

// next deals a request of a family; nil where a card does not fit what the server has.
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

// shuffled are the cards of a family: a turn for each sort of place, in which places that many types have tend to be early.
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

// shuffle puts cards in an order by chance, in which a weight that is twice as large is twice as likely to come first.
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

// ---- Productions: what is put at a place ----

// productions are those of a family for a sort of place.
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

// alternatives are the families' cards that belong to a kind and to no place in it.
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

// numbers are written with signs, exponents and digits that no machine word holds.
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

// ordered are many elements, all the same or in the one order or the other.
func ordered(of func(order string) production) []production {
	return []production{of(equal), of(descending), of(ascending)}
}

func series(order string) production {
	return production{order, func(g *generator, k *kind, at site, room int) *node {
		items := k.resolve(at.schema.Items)
		elem := k.valid(items, at.field)
		if elem.Kind == "object" && len(elem.Members) == 0 {
			for _, name := range []string{"name", "key", "type"} { // what elements are known by, where nothing is required
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
		} else if elem.Kind == "object" && choice == 2 { // nothing is said of it, and much is made of it
			elem.Members, key = nil, ""
		}
		n := &node{Kind: "series", Order: order, Elem: elem, Key: key, N: 99_999_999}
		n.N = max(2, room/(1+len(n.element(nil, max(n.number(n.N-1), n.number(0))))))
		return n
	}}
}

// numbered is the member of an element that takes the number: its name, or what there is.
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

// nestings are deep, and deep × wide: in the middle of all levels are as many values as there is room for. The first is for all places.
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

// nest is a tower of objects or lists, in an object where a place wants one; its names begin as the place's description says.
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

// texts are long, of letters that some step may double, quote, split or look up.
var texts = []production{spelling("a"), spelling("\u0000"), spelling("<"), spelling("."), spelling("/"), spelling("$(A)"), spelling(","), spelling("é"), spelling("%"),
	spelling("("), spelling("*"), spelling("\n"), spelling("- "), spelling("0.")}

func spelling(unit string) production {
	return production{fmt.Sprintf("long %q", unit), func(g *generator, k *kind, at site, room int) *node {
		return &node{Kind: "text", Text: unit, N: room / len(quoted(nil, unit))}
	}}
}

// ---- Requests that write ----

// write puts a card's production at places of its sort in its owner, several at once where there are several: shrinking tells which it was.
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
	if c.sort == "list" { // elements are short, and many soon
		room /= 4
	}
	object := k.base("")
	for _, at := range places {
		n := c.what.fill(g, k, at, room/len(places))
		n.Tags = []string{at.tag(), at.sort, c.what.name}
		if strings.HasPrefix(at.sort, "number") || n.Kind == "deep" {
			n.Tags = n.Tags[1:] // what is hard to read, or to write, is so everywhere
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

// sent is a request that writes an object in one of the ways that there are, or writes it and then reads it in another form.
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
	if !g.tenants[k] || g.rng.IntN(4) > 0 { // what an administrator stores would be the server's configuration
		q.Query = append(q.Query, [2]string{"dryRun", "All"})
	}
	if g.rng.IntN(4) == 0 {
		q.Query = append(q.Query, [2]string{"fieldValidation", []string{"Strict", "Warn", "Ignore"}[g.rng.IntN(3)]})
	}
	g.form(q)
	return q
}

// form asks for the answer in one of its forms.
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

// readBack stores the object of q under a name of its own and reads it, alone or among others.
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

// persona is the one with the least rights that may write this kind; now and then another, who gets to hear so.
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

// copies is a JSON patch that copies what it has made before into itself.
func (g *generator) copies(c card) *request {
	from := []string{"", "/metadata", "/metadata/labels", "/metadata/annotations"}[g.rng.IntN(4)]
	add := parsed(`{"op":"add","path":"/metadata/annotations","value":{}}`)
	again := &node{Kind: "series", Order: equal, N: 20 + g.rng.IntN(5000), Elem: parsed(`{"op":"copy","path":"/metadata/annotations/a"}`)}
	again.Elem.set("from", text(from))
	return g.patch(c.owner.kinds[0], "application/json-patch+json", spliced(add, again))
}

// spliced is a list of one element and then those of a series, which has to be the whole body: so the first comes in all of them.
func spliced(first, rest *node) *node {
	rest.N = min(rest.N, 9000)
	l := &node{Kind: "list", Items: []*node{first}, Tags: []string{"copies"}}
	for range min(rest.N, 200) {
		l.Items = append(l.Items, clone(rest.Elem))
	}
	return l
}

// operations is a JSON patch of as many operations as there is room for.
func (g *generator) operations(c card) *request {
	op := []string{`{"op":"test","path":"/metadata/name","value":"siege"}`, `{"op":"add","path":"/metadata/finalizers","value":["a.b/c"]}`, `{"op":"add","path":"/metadata/labels","value":{"a":"b"}}`,
		`{"op":"replace","path":"/metadata","value":{"name":"siege"}}`, `{"op":"move","from":"/metadata/name","path":"/metadata/name"}`}[g.rng.IntN(5)]
	elem := parsed(op)
	n := &node{Kind: "series", Order: equal, Elem: elem, N: []int{5000, 10_000, 30_000}[g.rng.IntN(3)], Tags: []string{"operations " + elem.get("op").Text}}
	return g.patch(c.owner.kinds[0], "application/json-patch+json", n)
}

// replacement is a merge patch of many members, or of many levels.
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

// merging is a patch of a long list into an object that has a long list in that place: elements are looked up by what they are called.
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

// repeated is a recorded object many times: fields that may be repeated are, and of the others the last counts.
func (g *generator) repeated(c card) *request {
	k := c.owner.kinds[0]
	raw := objectOf(g.recorded[k])
	if raw == nil {
		return nil
	}
	n := &node{Kind: "bytes", Head: k.apiVersion, Tail: k.name, Data: raw, N: min(5000, (256<<10)<<g.rng.IntN(4)/len(raw)), Tags: []string{"repeated " + k.name}}
	return g.binary(k, n)
}

// mutated is a recorded object with a few bytes changed, cut out or put in.
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

// binary writes protobuf over the recorded object, which names itself, or sends it as a new one.
func (g *generator) binary(k *kind, n *node) *request {
	q := &request{As: g.persona(k), Method: "PUT", Path: k.collection + "/siege", ContentType: "application/vnd.kubernetes.protobuf", Body: n, Query: [][2]string{{"dryRun", "All"}}}
	if g.rng.IntN(4) == 0 {
		q.Method, q.Path = "POST", k.collection
	}
	return q
}

// objectOf is what is in the envelope of a recorded answer.
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

// options are values for query parameters, by name.
var options = map[string][]string{
	"pretty": {"true", "1", "x"}, "limit": {"1", "0", "-1", "9223372036854775807", "1e9"}, "resourceVersion": {"0", "1", "999999999999", "-1", "x"},
	"resourceVersionMatch": {"Exact", "NotOlderThan", "x"}, "watch": {"true"}, "sendInitialEvents": {"true", "false"}, "allowWatchBookmarks": {"true"},
	"timeoutSeconds": {"1", "0", "-1", "99999999999999"}, "dryRun": {"All", "x"}, "gracePeriodSeconds": {"0", "-1"},
}

// reading reads objects of a kind with options by chance, and now and then in the past.
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

// option is a value for a parameter; selectors and what is not in the table get one of a grammar.
func (g *generator) option(name string) [2]string {
	if values := options[name]; values != nil {
		return [2]string{name, values[g.rng.IntN(len(values))]}
	}
	unit := []string{"a=b,", "a!=b,", "a in (b,c),", "!a,", "a,", "(", "metadata.name=x,", "metadata.name!=x,", "é", "%00", "eyJ2IjoibWV0YS5rOHMuaW8vdjEi"}[g.rng.IntN(11)]
	return [2]string{name, strings.TrimSuffix(strings.Repeat(unit, 1+g.rng.IntN(40_000/len(unit))), ",")}
}

// aside asks a path that is no resource.
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

// crowd has many connections ask for one object that is as large as the server lets it become, and do something with the answer that
// its server may not have reckoned with.
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

// growth is a create and two patches, each as large as a body may be, that make one object of the three.
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
