package flowcontrol

// This file implements the configuration of flow control. It selects the flow schema of a request,
// the flow within the schema, and the queues that may be used by the flow. It also computes the
// number of seats of each level. Nothing in this file depends on running requests.
//
// A FlowSchema has subjects and rules that select requests, a position in the matching order
// (matchingPrecedence, then name), and the name of a priority level. The first matching schema
// classifies the request:
//
//	exempt             1   system:masters, anything                     ──▶ exempt: no seats, no queues
//	system-nodes     500   system:nodes, anything          by user      ──▶ system: 30 shares, lends 33 %, 64 queues, hands of 6
//	catch-all      10000   everybody, anything             by user      ──▶ catch-all: 5 shares, no queues
//
// The nominal seats of a level are its share of the server's seats: nominal = ceil(server's seats ·
// shares / all shares). If a level does not need all of its seats, other levels can borrow some of
// them. The number of borrowed seats is updated every ten seconds. See lendSeats.

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
	// decay of the demand's envelope per period, which halves it in five minutes
	smoothing = 0.977
	maxHand   = 15    // maximum number of queues that a hash of 64 bits selects evenly
	minTarget = 0.001 // minimum target, which avoids a division by zero
)

// A Digest contains the attributes of a request that are used for classification. If the request is
// not for a resource, the verb is the HTTP method in lower case.
type Digest struct {
	User   string   // name of the user, after impersonation
	Groups []string // all groups of the user
	// selects between the resource rules and the non-resource rules
	ResourceRequest bool
	// the path is set only for requests that are not for a resource
	Verb, Path                  string
	Group, Version, Namespace   string    // an empty string is the core group or no namespace
	Resource, Subresource, Name string    // empty if the request has none
	Received                    time.Time // start of the request's waiting time
	// reports whether the client has disconnected, if the context cannot; may be nil
	PeerClosed func() bool
}

// Classification

// rules is the compiled form of a FlowSchema. It is immutable.
type rules struct {
	Name         string
	precedence   int32
	rules        []flowcontrolv1.PolicyRulesWithSubjects
	method       flowcontrolv1.FlowDistinguisherMethodType
	pattern      *regexp.Regexp // annotationPattern
	tenantPrefix string         // annotationTenant
}

// Extensions of the flow distinguisher, which were proposed for Kubernetes but never released. They
// are annotations, so the objects remain valid in Kubernetes.
const (
	// A regular expression with one group, which is matched against the result of the distinguisher
	// method. The text of the group becomes the flow distinguisher.
	annotationPattern = "flowcontrol.apilet.dev/distinguisher-pattern"
	// The first group of the user with this prefix becomes the flow distinguisher, so all users of
	// a tenant share one flow.
	annotationTenant = "flowcontrol.apilet.dev/tenant-group-prefix"
)

func newFlowRules(obj *flowcontrolv1.FlowSchema) rules {
	s := rules{Name: obj.Name, precedence: obj.Spec.MatchingPrecedence, rules: obj.Spec.Rules,
		tenantPrefix: obj.Annotations[annotationTenant]}
	if obj.Spec.DistinguisherMethod != nil {
		s.method = obj.Spec.DistinguisherMethod.Type
	}
	// The pattern is ignored if it does not compile or does not have exactly one group.
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

// namesResource reports whether the list contains the request's resource, or resource/subresource
// if the request has a subresource.
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

// matchesPath reports whether the path equals one of the entries or is below it. As in Kubernetes,
// an entry may omit the trailing /* that the API documentation requires.
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

// isAll reports whether the list is a single asterisk. An asterisk is ignored if there are other
// entries.
func isAll(list []string) bool { return len(list) == 1 && list[0] == "*" }

// distinguisher returns the flow distinguisher of the request.
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

// flowHash returns the hash that identifies a flow.
func flowHash(schema, distinguisher string) uint64 {
	var room [256]byte
	text := append(room[:0], schema...)
	text = append(text, 0)
	text = append(text, distinguisher...)
	sum := sha256.Sum256(text)
	return binary.LittleEndian.Uint64(sum[:])
}

// dealHand appends a hand of distinct queue numbers below deck to cards. All hands are equally
// likely if the bits of the hash are evenly distributed. Each remainder of the hash is the position
// of a card among the remaining cards. Adding the number of earlier cards before that position
// gives the card.
func dealHand(hash uint64, deck, hand int, cards []int) []int {
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

// entropyBits returns the number of bits of the hash that a hand uses. Kubernetes allows at most
// 60, which makes all hands nearly equally likely.
func entropyBits(deck, hand int) int {
	return int(math.Ceil(math.Log2(float64(deck)) * float64(hand)))
}

// Levels

// usableLevel reports whether the fields of a level's spec are consistent. A level with an
// inconsistent spec is treated as missing.
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

// An allocation contains the lending parameters of a level and the number of seats that the level
// gets. Without lending it gets its nominal seats.
type allocation struct {
	exempt   bool
	shares   int32
	lendable int32  // percent of the nominal seats
	borrow   *int32 // percentage of the nominal seats, or nil if there is no limit
	nominal  int
	min, max int // number of seats after lending or borrowing the maximum

	high       int // maximum demand in the last period
	mean, sd   float64
	smoothed   float64 // envelope of the demand, which rises immediately and falls slowly
	keep       float64 // decay of the envelope per period; 0 means smoothing
	target     float64 // number of seats that the level should have if there were enough
	low, limit int     // minimum number of seats for this period, and the number that it gets
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

// divide computes the seats from the shares. Because of rounding up, the sum may exceed the
// server's seats by a few, but no level with shares gets zero seats.
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

// observe records the demand of a period.
func (c *allocation) observe(high int, mean, sd float64, long bool) {
	c.high = high
	if !long { // the configuration was changed twice at the same time
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

// lendSeats computes the number of seats of each level. It returns the fraction of the target that
// is assigned to each level within its limits. If a level needs the seats that it has lent, it gets
// them back before other levels can borrow any. The seats that are used by exempt levels cannot be
// lent to other levels.
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
	part := 0.0 // fraction of the distance from min to low
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

// bounded returns the fraction p of the level's target, limited to the range from low to max.
func (c *allocation) bounded(p float64) float64 {
	return min(float64(c.max), max(float64(c.low), p*max(c.target, minTarget)))
}

// solveFairFrac returns the p for which the bounded seats of the limited levels sum to seats. The
// sum is a monotonic function of p, so the solution can be found by bisection. If several values of
// p are solutions, the result is the largest. If there is no solution because all levels have
// reached their maximum, the result is the smallest p that reaches it.
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

// Built-in objects

// Objects contains the API objects of a configuration.
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

	// The mandatory objects guarantee access for administrators, and a level for every request.
	mandatorySchemas = []builtInSchema{
		{"exempt", "exempt", 1, "", groupSubjects("system:masters"), ruleAllRequests},
		{"catch-all", "catch-all", 10000, byUser, anyoneSubjects, ruleAllRequests},
	}
	mandatoryLevels = []builtInLevel{
		{name: "exempt", exempt: true},
		{name: "catch-all", shares: 5},
	}
	// The suggested objects are the default configuration.
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

// The rules of the built-in schemas.
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

// autoUpdate returns the metadata of an object that the server keeps at its built-in version.
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
	return obj.DeepCopy() // because the spec shares slices with the tables
}

// A builtInLevel without queues rejects requests if no seat is free.
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

// objectsOf returns a new object for each row.
func objectsOf[T any, R interface{ object() T }](rows []R) (objs []T) {
	for _, row := range rows {
		objs = append(objs, row.object())
	}
	return objs
}

// MandatoryObjects returns new copies of the objects that are required to classify every request:
// the schemas and levels named exempt and catch-all.
func MandatoryObjects() Objects {
	return Objects{objectsOf(mandatorySchemas), objectsOf(mandatoryLevels)}
}

// SuggestedObjects returns new copies of the default objects, which operators may change or delete.
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

// WithMandatory adds the built-in copies of missing mandatory objects. The configuration is
// therefore unchanged between the deletion of such an object and its re-creation.
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

// Corrections contains the changes that update the stored objects of one kind to the built-in ones.
type Corrections[T any] struct {
	Create, Update []T      // objects to create, and objects to update with their new content
	Remove         []string // names of objects that were built into an earlier version
}

// MaintainSchemas compares the existing schemas with the built-in ones. The caller should call it
// every minute, and MaintainLevels for the levels.
//
//	exists  built in   annotation               action
//	no      yes                                 create
//	yes     mandatory  any                      correct the spec and the annotation
//	yes     suggested  true                     correct the spec
//	yes     suggested  false                    none
//	yes     suggested  missing or not a bool    as for true if the spec is unchanged (generation 1), else as for false; annotate
//	yes     no         true                     remove, because an earlier version created it
//	yes     no         other                    none, because a user created it
func MaintainSchemas(existing []*flowcontrolv1.FlowSchema) Corrections[*flowcontrolv1.FlowSchema] {
	return maintain(existing, MandatoryObjects().Schemas, SuggestedObjects().Schemas, func(obj, want *flowcontrolv1.FlowSchema) bool {
		same := equality.Semantic.DeepEqual(obj.Spec, want.Spec)
		obj.Spec = *want.Spec.DeepCopy()
		return same
	})
}

// MaintainLevels is like MaintainSchemas, but for priority levels. It does not change the shares
// and the lendable percentage of the exempt level, which may be set by operators.
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

// maintain implements MaintainSchemas and MaintainLevels. The correct function corrects the spec of
// obj and reports whether it was already correct.
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

// DanglingConditions returns the missing status conditions by the name of the schema. The condition
// of a schema states whether its priority level exists.
func DanglingConditions(objs Objects, now time.Time) map[string]flowcontrolv1.FlowSchemaCondition {
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

// A Pacer limits the writes of each name to six per minute. This prevents two servers with
// different opinions from overwriting the conditions forever.
type Pacer struct {
	written map[string][]time.Time
}

const writesPerMinute = 6

// Allow reports whether name may be written at the time now. If so, it counts the write.
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

// SetCondition adds the condition to the status, or replaces the condition of the same type.
func SetCondition(status *flowcontrolv1.FlowSchemaStatus, condition flowcontrolv1.FlowSchemaCondition) {
	for i := range status.Conditions {
		if status.Conditions[i].Type == condition.Type {
			status.Conditions[i] = condition
			return
		}
	}
	status.Conditions = append(status.Conditions, condition)
}
