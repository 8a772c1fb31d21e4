package flowcontrol

// This file is what the configuration of flow control says, and nothing of it moves: which flow schema takes a request, how that
// tells flows apart, which queues a flow may use, how many seats a level has and how many it lends. apf.go lives by it.
//
// A FlowSchema names whom and what it takes, its place in the order (matchingPrecedence, then name) and a priority level. The
// first that matches takes the request:
//
//	exempt             1   system:masters, anything                     ──▶ exempt: no seats, no queues
//	system-nodes     500   system:nodes, anything          by user      ──▶ system: 30 shares, lends 33 %, 64 queues, hands of 6
//	catch-all      10000   everybody, anything             by user      ──▶ catch-all: 5 shares, no queues
//
// A level's seats are its part of the server's by shares: nominal = ceil(server's seats · shares / all shares). Of these it lends
// what it may and does not need, every ten seconds; see lendSeats.

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	defaultShares = 30
	smoothing     = 0.977 // of the demand's envelope, for each period: it halves in five minutes
	maxHand       = 15    // a hash of 64 bits deals no more cards than this evenly
	minTarget     = 0.001 // keeps the lending's proportions finite
)

// A Digest is what of a request decides its fate. Requests for no resource have their lower-case method as verb.
type Digest struct {
	User                        string      // the name, after impersonation
	Groups                      []string    // all that the user is in
	ResourceRequest             bool        // a rule for resources may match it; else one for paths
	Verb, Path                  string      // the path is for a request for no resource
	Group, Version, Namespace   string      // "" is the core group, and no namespace
	Resource, Subresource, Name string      // "" where there is none
	Received                    time.Time   // waiting counts from here
	PeerClosed                  func() bool // whether the client has left, where the context does not tell; may be nil
}

// Classification

// A rules is the compiled form of one FlowSchema. Immutable.
type rules struct {
	Name         string
	precedence   int32
	rules        []flowcontrolv1.PolicyRulesWithSubjects
	method       flowcontrolv1.FlowDistinguisherMethodType
	pattern      *regexp.Regexp // annotationPattern
	tenantPrefix string         // annotationTenant
}

// Extensions of the flow distinguisher, which Kubernetes' designers wanted and never shipped. As annotations they leave the
// object what Kubernetes knows.
const (
	// A regular expression with one group, tried on what the distinguisher method yields: the group's text tells flows apart.
	annotationPattern = "flowcontrol.apilet.dev/distinguisher-pattern"
	// The first of the user's groups that has this prefix tells flows apart: all users of a tenant are one flow.
	annotationTenant = "flowcontrol.apilet.dev/tenant-group-prefix"
)

func newFlowRules(obj *flowcontrolv1.FlowSchema) rules {
	s := rules{Name: obj.Name, precedence: obj.Spec.MatchingPrecedence, rules: obj.Spec.Rules,
		tenantPrefix: obj.Annotations[annotationTenant]}
	if obj.Spec.DistinguisherMethod != nil {
		s.method = obj.Spec.DistinguisherMethod.Type
	}
	// A pattern that does not compile, or has not one group, is no pattern: the flows are told apart as without it.
	if re, err := regexp.Compile(obj.Annotations[annotationPattern]); err == nil && re.NumSubexp() == 1 {
		s.pattern = re
	}
	return s
}

func (s *rules) matches(dig *Digest) bool {
	for i := range s.rules {
		if matchesRule(&s.rules[i], dig) {
			return true
		}
	}
	return false
}

func matchesRule(rule *flowcontrolv1.PolicyRulesWithSubjects, dig *Digest) bool {
	if !matchesSubject(rule.Subjects, dig) {
		return false
	}
	if dig.ResourceRequest {
		for i := range rule.ResourceRules {
			if matchesResource(&rule.ResourceRules[i], dig) {
				return true
			}
		}
		return false
	}
	for i := range rule.NonResourceRules {
		nonResource := &rule.NonResourceRules[i]
		if hasOrAll(nonResource.Verbs, dig.Verb) && matchesPath(nonResource.NonResourceURLs, dig.Path) {
			return true
		}
	}
	return false
}

func matchesSubject(subjects []flowcontrolv1.Subject, dig *Digest) bool {
	for i := range subjects {
		switch sub := &subjects[i]; {
		case sub.User != nil && sub.Kind == flowcontrolv1.SubjectKindUser:
			if sub.User.Name == "*" || sub.User.Name == dig.User {
				return true
			}
		case sub.Group != nil && sub.Kind == flowcontrolv1.SubjectKindGroup:
			if sub.Group.Name == "*" || slices.Contains(dig.Groups, sub.Group.Name) {
				return true
			}
		case sub.ServiceAccount != nil && sub.Kind == flowcontrolv1.SubjectKindServiceAccount:
			if matchesServiceAccount(sub.ServiceAccount, dig.User) {
				return true
			}
		}
	}
	return false
}

func matchesServiceAccount(account *flowcontrolv1.ServiceAccountSubject, user string) bool {
	rest, ok := strings.CutPrefix(user, "system:serviceaccount:")
	if !ok {
		return false
	}
	namespace, name, ok := strings.Cut(rest, ":")
	return ok && namespace == account.Namespace && (account.Name == "*" || account.Name == name)
}

func matchesResource(rule *flowcontrolv1.ResourcePolicyRule, dig *Digest) bool {
	if dig.Namespace == "" {
		if !rule.ClusterScope {
			return false
		}
	} else if !hasOrAll(rule.Namespaces, dig.Namespace) {
		return false
	}
	return hasOrAll(rule.Verbs, dig.Verb) && hasOrAll(rule.APIGroups, dig.Group) && namesResource(rule.Resources, dig)
}

// namesResource tells whether the list has resource, or resource/subresource where the request has one.
func namesResource(list []string, dig *Digest) bool {
	if dig.Subresource == "" || isAll(list) {
		return hasOrAll(list, dig.Resource)
	}
	for _, entry := range list {
		resource, subresource, _ := strings.Cut(entry, "/")
		if resource == dig.Resource && subresource == dig.Subresource {
			return true
		}
	}
	return false
}

// matchesPath takes an entry for itself and for what lies below it; the trailing /* that the API's documentation asks for may be
// left out, as in Kubernetes.
func matchesPath(entries []string, path string) bool {
	for _, entry := range entries {
		if entry == "*" || entry == path {
			return true
		}
		entry = strings.TrimSuffix(strings.TrimSuffix(entry, "*"), "/")
		if rest, ok := strings.CutPrefix(path, entry); ok && strings.HasPrefix(rest, "/") {
			return true
		}
	}
	return false
}

func hasOrAll(list []string, value string) bool { return isAll(list) || slices.Contains(list, value) }

// isAll: the asterisk counts only when it stands alone.
func isAll(list []string) bool { return len(list) == 1 && list[0] == "*" }

// distinguisher tells the flows of a schema apart.
func (s *rules) distinguisher(dig *Digest) string {
	value := ""
	switch s.method {
	case flowcontrolv1.FlowDistinguisherMethodByUserType:
		value = dig.User
	case flowcontrolv1.FlowDistinguisherMethodByNamespaceType:
		value = dig.Namespace
	}
	if s.pattern != nil {
		if match := s.pattern.FindStringSubmatch(value); match != nil {
			value = match[1]
		}
	}
	if s.tenantPrefix != "" {
		for _, group := range dig.Groups {
			if strings.HasPrefix(group, s.tenantPrefix) {
				return group
			}
		}
	}
	return value
}

// Shuffle sharding

// flowHash names a flow by 64 bits.
func flowHash(schema, distinguisher string) uint64 {
	var room [256]byte
	text := append(room[:0], schema...)
	text = append(text, 0)
	text = append(text, distinguisher...)
	sum := sha256.Sum256(text)
	return binary.LittleEndian.Uint64(sum[:])
}

// deal appends a hand of distinct cards from a deck, all hands being as likely as the hash's bits are even. Each remainder of the
// hash is a card's place among those left; counting the earlier cards that lie before it gives the card.
func deal(hash uint64, deck, hand int, cards []int) []int {
	var places [maxHand]int
	for i := range min(hand, maxHand, deck) {
		left := uint64(deck - i)
		places[i] = int(hash % left)
		hash /= left
		card := places[i]
		for j := i - 1; j >= 0; j-- {
			if places[j] <= card {
				card++
			}
		}
		cards = append(cards, card)
	}
	return cards
}

// entropyBits is how much of the hash a hand uses up; Kubernetes allows 60, which leaves every hand nearly as likely as another.
func entropyBits(deck, hand int) int {
	return int(math.Ceil(math.Log2(float64(deck)) * float64(hand)))
}

// Levels

// usableLevel tells whether a level's parts fit together; one whose do not counts as missing.
func usableLevel(spec *flowcontrolv1.PriorityLevelConfigurationSpec) bool {
	limited := spec.Limited
	switch spec.Type {
	case flowcontrolv1.PriorityLevelEnablementExempt:
		return limited == nil
	case flowcontrolv1.PriorityLevelEnablementLimited:
		if limited == nil {
			return false
		}
	default:
		return false
	}
	queuing := limited.LimitResponse.Queuing
	if limited.LimitResponse.Type != flowcontrolv1.LimitResponseTypeQueue {
		return limited.LimitResponse.Type == flowcontrolv1.LimitResponseTypeReject && queuing == nil
	}
	return queuing != nil && queuing.Queues > 0 && queuing.HandSize > 0 && queuing.HandSize <= min(queuing.Queues, maxHand) &&
		entropyBits(int(queuing.Queues), int(queuing.HandSize)) <= 60
}

func queuesOf(spec *flowcontrolv1.PriorityLevelConfigurationSpec) int {
	if spec.Limited == nil || spec.Limited.LimitResponse.Queuing == nil {
		return 0
	}
	return int(spec.Limited.LimitResponse.Queuing.Queues)
}

// Lending seats

// A claim is what a level says when seats are shared out, and what it gets. Its seats without lending are the nominal ones.
type allocation struct {
	exempt   bool
	shares   int32
	lendable int32  // percent of the nominal seats
	borrow   *int32 // percent of the nominal seats, nil: no bound
	nominal  int
	min, max int // what is left when all that may be is lent, what it has when it borrows all it may

	high       int // demand in the last period: its highest,
	mean, sd   float64
	smoothed   float64 // and its envelope, which rises at once and falls slowly
	keep       float64 // of it in a period, where that is not the usual one; 0: smoothing
	target     float64 // what it would like
	low, limit int     // what it must get at least; what it gets
}

func (c *allocation) read(spec *flowcontrolv1.PriorityLevelConfigurationSpec) {
	c.exempt = spec.Type == flowcontrolv1.PriorityLevelEnablementExempt
	shares, lendable := (*int32)(nil), (*int32)(nil)
	if c.exempt {
		c.shares, c.borrow = 0, nil
		if spec.Exempt != nil {
			shares, lendable = spec.Exempt.NominalConcurrencyShares, spec.Exempt.LendablePercent
		}
	} else {
		c.shares, c.borrow = defaultShares, spec.Limited.BorrowingLimitPercent
		shares, lendable = spec.Limited.NominalConcurrencyShares, spec.Limited.LendablePercent
	}
	if shares != nil {
		c.shares = *shares
	}
	c.lendable = 0
	if lendable != nil {
		c.lendable = *lendable
	}
}

// divide derives the seats from the shares. Rounding up may give away a few seats more than the server has, but never none.
func (c *allocation) divide(serverSeats int, shares float64) {
	fresh := c.limit == 0 && c.max == 0
	if c.nominal = 0; shares > 0 {
		c.nominal = int(math.Ceil(float64(serverSeats) * float64(c.shares) / shares))
	}
	percent := func(p int32) int { return int(math.Round(float64(c.nominal) * float64(p) / 100)) }
	lendable := percent(c.lendable)
	c.min, c.max = c.nominal-lendable, c.nominal+serverSeats
	if c.borrow != nil {
		c.max = c.nominal + percent(*c.borrow)
	}
	if fresh {
		c.limit = c.nominal - lendable/2
	}
}

// observe takes in the demand of a period.
func (c *allocation) observe(high int, mean, sd float64, long bool) {
	c.high = high
	if !long { // two changes of the configuration at one instant
		return
	}
	c.mean, c.sd = mean, sd
	envelope := mean + sd
	keep := smoothing
	if c.keep > 0 {
		keep = c.keep
	}
	c.smoothed = max(envelope, keep*c.smoothed+(1-keep)*envelope)
}

// lendSeats shares all nominal seats out among the levels and returns the fraction of its target that each gets whom no bound
// stops. A level gets back what it lent and needs before anybody borrows. What the exempt use is not there to lend.
func lendSeats(claims []*allocation) (fairFrac float64) {
	var seats, least, low int
	for _, c := range claims {
		seats += c.nominal
		if c.exempt {
			c.limit = max(c.min, c.high)
			c.target = float64(c.limit)
			seats -= c.limit
			continue
		}
		c.low = max(c.min, min(c.nominal, c.high))
		c.target = max(float64(c.low), c.smoothed)
		least += c.min
		low += c.low
	}
	part := 0.0 // of what is between the least and the low
	switch {
	case seats <= least:
	case seats < low:
		part = float64(seats-least) / float64(low-least)
	default:
		part, fairFrac = 1, solveFairFrac(claims, float64(seats))
	}
	for _, c := range claims {
		if c.exempt {
			continue
		}
		c.limit = c.min + int(math.Round(part*float64(c.low-c.min)))
		if fairFrac > 0 {
			c.limit = int(math.Round(c.bounded(fairFrac)))
		}
	}
	return fairFrac
}

// bounded is the fraction p of the level's target, within what the level may get.
func (c *allocation) bounded(p float64) float64 {
	return min(float64(c.max), max(float64(c.low), p*max(c.target, minTarget)))
}

// solveFairFrac returns the p with which the limited levels' bounded sums to seats. The sum never falls as p grows; bisection ends
// after as many steps as a float has bits. If many p do, it is the greatest; if none gives enough, the least that gives all.
func solveFairFrac(claims []*allocation, seats float64) float64 {
	sum := func(p float64) (total float64) {
		for _, c := range claims {
			if !c.exempt {
				total += c.bounded(p)
			}
		}
		return total
	}
	lo, hi := 0.0, 0.0
	for _, c := range claims {
		hi = max(hi, float64(c.max)/max(c.target, minTarget))
	}
	for mid := hi / 2; lo < mid && mid < hi; mid = (lo + hi) / 2 {
		if sum(mid) <= seats {
			lo = mid
		} else {
			hi = mid
		}
	}
	return hi
}

// The objects that are always there

// Objects is a configuration, or part of one.
type Objects struct {
	Schemas []*flowcontrolv1.FlowSchema                 // FlowSchemas, in any order
	Levels  []*flowcontrolv1.PriorityLevelConfiguration // PriorityLevelConfigurations
}

var (
	anyValue           = []string{"*"}
	anyoneSubjects     = groupSubjects("system:unauthenticated", "system:authenticated")
	nodeSubjects       = groupSubjects("system:nodes")
	kubeSystemSubjects = []flowcontrolv1.Subject{{Kind: flowcontrolv1.SubjectKindServiceAccount,
		ServiceAccount: &flowcontrolv1.ServiceAccountSubject{Namespace: "kube-system", Name: "*"}}}
	controllerSubjects, schedulerSubjects = userSubjects("system:kube-controller-manager"), userSubjects("system:kube-scheduler")

	// mandatory are the objects without which nothing works: they keep administrators in and have a place for every request.
	mandatorySchemas = []builtInSchema{
		{"exempt", "exempt", 1, "", groupSubjects("system:masters"), ruleAllRequests},
		{"catch-all", "catch-all", 10000, byUser, anyoneSubjects, ruleAllRequests},
	}
	mandatoryLevels = []builtInLevel{
		{name: "exempt", exempt: true},
		{name: "catch-all", shares: 5},
	}
	// suggested are a good start.
	suggestedSchemas = []builtInSchema{
		{"system-nodes", "system", 500, byUser, nodeSubjects, ruleAllRequests},
		{"system-node-high", "node-high", 400, byUser, nodeSubjects, ruleNodeObjects},
		{"probes", "exempt", 2, "", anyoneSubjects, ruleProbes},
		{"system-leader-election", "leader-election", 100, byUser,
			slices.Concat(controllerSubjects, schedulerSubjects, kubeSystemSubjects), ruleLeaderLeases},
		{"kube-controller-manager", "workload-high", 800, byNamespace, controllerSubjects, ruleAllRequests},
		{"kube-scheduler", "workload-high", 800, byNamespace, schedulerSubjects, ruleAllRequests},
		{"kube-system-service-accounts", "workload-high", 900, byNamespace, kubeSystemSubjects, ruleAllRequests},
		{"service-accounts", "workload-low", 9000, byUser, groupSubjects("system:serviceaccounts"), ruleAllRequests},
		{"global-default", "global-default", 9900, byUser, anyoneSubjects, ruleAllRequests},
	}
	suggestedLevels = []builtInLevel{
		{name: "system", shares: 30, lendable: 33, queues: 64, hand: 6},
		{name: "node-high", shares: 40, lendable: 25, queues: 64, hand: 6},
		{name: "leader-election", shares: 10, lendable: 0, queues: 16, hand: 4},
		{name: "workload-high", shares: 40, lendable: 50, queues: 128, hand: 6},
		{name: "workload-low", shares: 100, lendable: 90, queues: 128, hand: 6},
		{name: "global-default", shares: 20, lendable: 50, queues: 128, hand: 6},
	}
)

// What the built-in schemas take.
var (
	ruleAllRequests = flowcontrolv1.PolicyRulesWithSubjects{
		ResourceRules: []flowcontrolv1.ResourcePolicyRule{
			{Verbs: anyValue, APIGroups: anyValue, Resources: anyValue, Namespaces: anyValue, ClusterScope: true}},
		NonResourceRules: []flowcontrolv1.NonResourcePolicyRule{{Verbs: anyValue, NonResourceURLs: anyValue}},
	}
	ruleNodeObjects = flowcontrolv1.PolicyRulesWithSubjects{ResourceRules: []flowcontrolv1.ResourcePolicyRule{
		{Verbs: anyValue, APIGroups: []string{""}, Resources: []string{"nodes", "nodes/status"}, Namespaces: anyValue, ClusterScope: true},
		{Verbs: anyValue, APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Namespaces: anyValue}}}
	ruleLeaderLeases = flowcontrolv1.PolicyRulesWithSubjects{ResourceRules: []flowcontrolv1.ResourcePolicyRule{
		{Verbs: []string{"get", "create", "update"}, APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"},
			Namespaces: anyValue}}}
	ruleProbes = flowcontrolv1.PolicyRulesWithSubjects{NonResourceRules: []flowcontrolv1.NonResourcePolicyRule{
		{Verbs: []string{"get"}, NonResourceURLs: []string{"/healthz", "/readyz", "/livez"}}}}
)

const (
	byUser      = flowcontrolv1.FlowDistinguisherMethodByUserType
	byNamespace = flowcontrolv1.FlowDistinguisherMethodByNamespaceType
)

// autoUpdate marks objects that are kept as this version of the server has them.
func autoUpdate(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Annotations: map[string]string{flowcontrolv1.AutoUpdateAnnotationKey: "true"}}
}

type builtInSchema struct {
	name, level string
	precedence  int32
	method      flowcontrolv1.FlowDistinguisherMethodType
	subjects    []flowcontrolv1.Subject
	rules       flowcontrolv1.PolicyRulesWithSubjects
}

func (row builtInSchema) object() *flowcontrolv1.FlowSchema {
	row.rules.Subjects = row.subjects
	obj := &flowcontrolv1.FlowSchema{ObjectMeta: autoUpdate(row.name)}
	obj.Spec = flowcontrolv1.FlowSchemaSpec{MatchingPrecedence: row.precedence, Rules: []flowcontrolv1.PolicyRulesWithSubjects{row.rules},
		PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: row.level}}
	if row.method != "" {
		obj.Spec.DistinguisherMethod = &flowcontrolv1.FlowDistinguisherMethod{Type: row.method}
	}
	return obj.DeepCopy() // of the tables' slices
}

// A builtInLevel without queues rejects.
type builtInLevel struct {
	name                           string
	exempt                         bool
	shares, lendable, queues, hand int32
}

func (row builtInLevel) object() *flowcontrolv1.PriorityLevelConfiguration {
	obj := &flowcontrolv1.PriorityLevelConfiguration{ObjectMeta: autoUpdate(row.name)}
	if row.exempt {
		obj.Spec.Type = flowcontrolv1.PriorityLevelEnablementExempt
		obj.Spec.Exempt = &flowcontrolv1.ExemptPriorityLevelConfiguration{NominalConcurrencyShares: &row.shares, LendablePercent: &row.lendable}
		return obj
	}
	response := flowcontrolv1.LimitResponse{Type: flowcontrolv1.LimitResponseTypeReject}
	if row.queues > 0 {
		response = flowcontrolv1.LimitResponse{Type: flowcontrolv1.LimitResponseTypeQueue,
			Queuing: &flowcontrolv1.QueuingConfiguration{Queues: row.queues, HandSize: row.hand, QueueLengthLimit: 50}}
	}
	obj.Spec.Type = flowcontrolv1.PriorityLevelEnablementLimited
	obj.Spec.Limited = &flowcontrolv1.LimitedPriorityLevelConfiguration{NominalConcurrencyShares: &row.shares, LendablePercent: &row.lendable,
		LimitResponse: response}
	return obj
}

// objectsOf makes fresh objects of rows.
func objectsOf[T any, R interface{ object() T }](rows []R) (objs []T) {
	for _, row := range rows {
		objs = append(objs, row.object())
	}
	return objs
}

// MandatoryObjects are those without which no request would be classified: exempt and catch-all, schemas and levels. A new copy each time.
func MandatoryObjects() Objects {
	return Objects{objectsOf(mandatorySchemas), objectsOf(mandatoryLevels)}
}

// SuggestedObjects are the defaults that operators may change or delete. A new copy each time.
func SuggestedObjects() Objects {
	return Objects{objectsOf(suggestedSchemas), objectsOf(suggestedLevels)}
}

func groupSubjects(names ...string) (subjects []flowcontrolv1.Subject) {
	for _, name := range names {
		subjects = append(subjects, flowcontrolv1.Subject{Kind: flowcontrolv1.SubjectKindGroup, Group: &flowcontrolv1.GroupSubject{Name: name}})
	}
	return subjects
}

func userSubjects(names ...string) (subjects []flowcontrolv1.Subject) {
	for _, name := range names {
		subjects = append(subjects, flowcontrolv1.Subject{Kind: flowcontrolv1.SubjectKindUser, User: &flowcontrolv1.UserSubject{Name: name}})
	}
	return subjects
}

// WithMandatory adds the built-in copy of what is missing: between its deletion and its return nothing changes.
func WithMandatory(objs Objects) Objects {
	for _, schema := range MandatoryObjects().Schemas {
		if !slices.ContainsFunc(objs.Schemas, func(obj *flowcontrolv1.FlowSchema) bool { return obj.Name == schema.Name }) {
			objs.Schemas = append(slices.Clip(objs.Schemas), schema)
		}
	}
	for _, level := range MandatoryObjects().Levels {
		if !slices.ContainsFunc(objs.Levels, func(obj *flowcontrolv1.PriorityLevelConfiguration) bool {
			return obj.Name == level.Name && usableLevel(&obj.Spec)
		}) {
			objs.Levels = append(slices.Clip(objs.Levels), level)
		}
	}
	return objs
}

// Corrections are what it takes to bring one kind of object up to date.
type Corrections[T any] struct {
	Create, Update []T      // what is missing, and what differs: as it is to be
	Remove         []string // names of what was built in once
}

// MaintainSchemas compares what exists with what is built in; it is to be called every minute, for schemas and for levels.
//
//	exists  built in   annotation               done
//	no      yes                                 created
//	yes     mandatory  any                      spec and annotation are set right
//	yes     suggested  true                     spec is set right
//	yes     suggested  false                    left alone
//	yes     suggested  none, or no truth value  like true if nobody has changed the spec (generation 1), else like false; annotated
//	yes     no         true                     removed: an older version's
//	yes     no         else                     left alone: somebody's own
func MaintainSchemas(existing []*flowcontrolv1.FlowSchema) Corrections[*flowcontrolv1.FlowSchema] {
	return maintain(existing, MandatoryObjects().Schemas, SuggestedObjects().Schemas, func(obj, want *flowcontrolv1.FlowSchema) bool {
		same := equality.Semantic.DeepEqual(obj.Spec, want.Spec)
		obj.Spec = *want.Spec.DeepCopy()
		return same
	})
}

// MaintainLevels leaves what operators may set of the exempt level: its shares and how many of them it lends.
func MaintainLevels(existing []*flowcontrolv1.PriorityLevelConfiguration) Corrections[*flowcontrolv1.PriorityLevelConfiguration] {
	correct := func(obj, want *flowcontrolv1.PriorityLevelConfiguration) bool {
		spec := want.Spec.DeepCopy()
		if spec.Exempt != nil && obj.Spec.Exempt != nil {
			spec.Exempt = obj.Spec.Exempt
		}
		same := equality.Semantic.DeepEqual(&obj.Spec, spec)
		obj.Spec = *spec
		return same
	}
	return maintain(existing, MandatoryObjects().Levels, SuggestedObjects().Levels, correct)
}

// maintain does the work of both; correct sets an object's spec right and tells whether it was.
func maintain[T interface {
	metav1.Object
	DeepCopy() T
}](existing, mandatory, suggested []T, correct func(obj, want T) bool) (todo Corrections[T]) {
	found := map[string]T{}
	for _, obj := range existing {
		found[obj.GetName()] = obj
	}
	for i, want := range append(slices.Clip(suggested), mandatory...) {
		obj, ok := found[want.GetName()]
		delete(found, want.GetName())
		if !ok {
			todo.Create = append(todo.Create, want)
			continue
		}
		annotated, err := strconv.ParseBool(obj.GetAnnotations()[flowcontrolv1.AutoUpdateAnnotationKey])
		ours := i >= len(suggested) || err == nil && annotated || err != nil && obj.GetGeneration() == 1
		revised := obj.DeepCopy()
		same := !ours || correct(revised, want)
		if same && err == nil && annotated == ours {
			continue
		}
		annotations := maps.Clone(obj.GetAnnotations())
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations[flowcontrolv1.AutoUpdateAnnotationKey] = strconv.FormatBool(ours)
		revised.SetAnnotations(annotations)
		todo.Update = append(todo.Update, revised)
	}
	for _, obj := range existing {
		_, foreign := found[obj.GetName()]
		if old, _ := strconv.ParseBool(obj.GetAnnotations()[flowcontrolv1.AutoUpdateAnnotationKey]); foreign && old {
			todo.Remove = append(todo.Remove, obj.GetName())
		}
	}
	return todo
}

// Dangling returns the condition that the status of each schema lacks, by the schema's name. The condition says whether the level
// is there that the schema names.
func Dangling(objs Objects, now time.Time) map[string]flowcontrolv1.FlowSchemaCondition {
	missing := map[string]flowcontrolv1.FlowSchemaCondition{}
	usableLevels := map[string]bool{}
	for _, level := range WithMandatory(objs).Levels {
		usableLevels[level.Name] = usableLevel(&level.Spec)
	}
	for _, schema := range objs.Schemas {
		name := schema.Spec.PriorityLevelConfiguration.Name
		want := flowcontrolv1.FlowSchemaCondition{Type: flowcontrolv1.FlowSchemaConditionDangling, Status: flowcontrolv1.ConditionFalse,
			Reason: "Found", LastTransitionTime: metav1.NewTime(now),
			Message: fmt.Sprintf("This FlowSchema references the PriorityLevelConfiguration object named %q and it exists", name)}
		if !usableLevels[name] {
			want.Status, want.Reason = flowcontrolv1.ConditionTrue, "NotFound"
			want.Message = fmt.Sprintf("This FlowSchema references the PriorityLevelConfiguration object named %q but there is no such object", name)
		}
		if !slices.ContainsFunc(schema.Status.Conditions, func(have flowcontrolv1.FlowSchemaCondition) bool {
			return have.Type == want.Type && have.Status == want.Status && have.Reason == want.Reason && have.Message == want.Message
		}) {
			missing[schema.Name] = want
		}
	}
	return missing
}

// A Pacer keeps two servers with different minds from writing conditions in turn for ever: six writes of a name in a minute.
type Pacer struct {
	written map[string][]time.Time
}

const writesPerMinute = 6

// Allow says whether name may be written at now, and counts it if so.
func (p *Pacer) Allow(name string, now time.Time) bool {
	recent := slices.DeleteFunc(p.written[name], func(at time.Time) bool { return now.Sub(at) >= time.Minute })
	if p.written == nil {
		p.written = map[string][]time.Time{}
	}
	allowed := len(recent) < writesPerMinute
	if allowed {
		recent = append(recent, now)
	}
	p.written[name] = recent
	return allowed
}

// SetCondition puts a condition in the place of the one of its type.
func SetCondition(status *flowcontrolv1.FlowSchemaStatus, condition flowcontrolv1.FlowSchemaCondition) {
	for i := range status.Conditions {
		if status.Conditions[i].Type == condition.Type {
			status.Conditions[i] = condition
			return
		}
	}
	status.Conditions = append(status.Conditions, condition)
}
