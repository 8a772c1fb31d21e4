package main

import (
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// limitedLevel is a level that queues, or rejects when queues is 0.
func limitedLevel(name string, shares, queues, hand, length int32) *flowcontrolv1.PriorityLevelConfiguration {
	obj := &flowcontrolv1.PriorityLevelConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "uid-of-level-" + metav1.ObjectMeta{Name: name}.UID}}
	obj.Spec.Type = flowcontrolv1.PriorityLevelEnablementLimited
	obj.Spec.Limited = &flowcontrolv1.LimitedPriorityLevelConfiguration{
		NominalConcurrencyShares: new(shares),
		LimitResponse:            flowcontrolv1.LimitResponse{Type: flowcontrolv1.LimitResponseTypeReject},
	}
	if queues > 0 {
		obj.Spec.Limited.LimitResponse = flowcontrolv1.LimitResponse{Type: flowcontrolv1.LimitResponseTypeQueue,
			Queuing: &flowcontrolv1.QueuingConfiguration{Queues: queues, HandSize: hand, QueueLengthLimit: length}}
	}
	return obj
}

// schemaFor sends the users of a group to a level, told apart by name.
func schemaFor(level, group string) *flowcontrolv1.FlowSchema {
	all := []string{"*"}
	obj := &flowcontrolv1.FlowSchema{ObjectMeta: metav1.ObjectMeta{Name: level}}
	obj.Spec.PriorityLevelConfiguration.Name = level
	obj.Spec.MatchingPrecedence = 1000
	obj.Spec.DistinguisherMethod = &flowcontrolv1.FlowDistinguisherMethod{Type: flowcontrolv1.FlowDistinguisherMethodByUserType}
	obj.Spec.Rules = []flowcontrolv1.PolicyRulesWithSubjects{{
		Subjects:         []flowcontrolv1.Subject{{Kind: flowcontrolv1.SubjectKindGroup, Group: &flowcontrolv1.GroupSubject{Name: group}}},
		ResourceRules:    []flowcontrolv1.ResourcePolicyRule{{Verbs: all, APIGroups: all, Resources: all, Namespaces: all, ClusterScope: true}},
		NonResourceRules: []flowcontrolv1.NonResourcePolicyRule{{Verbs: all, NonResourceURLs: all}},
	}}
	return obj
}
