package plugins

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podsecurity "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
)

// countingEvaluator counts what it is asked.
type countingEvaluator struct {
	policy.Evaluator
	asked int
}

func (e *countingEvaluator) EvaluatePod(level podsecurity.LevelVersion, meta *metav1.ObjectMeta, spec *corev1.PodSpec) []policy.CheckResult {
	e.asked++
	return e.Evaluator.EvaluatePod(level, meta, spec)
}

// TestPodIsHeldAgainstALevelOnce: what a namespace enforces is mostly what it audits and warns of, too. Another version of a level is another one.
func TestPodIsHeldAgainstALevelOnce(t *testing.T) {
	t.Parallel()
	rules, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	level := func(l podsecurity.Level, v podsecurity.Version) podsecurity.LevelVersion {
		return podsecurity.LevelVersion{Level: l, Version: v}
	}
	latest, old := podsecurity.LatestVersion(), podsecurity.MajorMinorVersion(1, 20)
	restricted, baseline := podsecurity.LevelRestricted, podsecurity.LevelBaseline
	for _, c := range []struct {
		name   string
		levels [3]podsecurity.LevelVersion
		asked  int
	}{
		{"all the same", [3]podsecurity.LevelVersion{level(restricted, latest), level(restricted, latest), level(restricted, latest)}, 1},
		{"one is stricter", [3]podsecurity.LevelVersion{level(baseline, latest), level(restricted, latest), level(restricted, latest)}, 2},
		{"one is older", [3]podsecurity.LevelVersion{level(restricted, latest), level(restricted, old), level(restricted, latest)}, 2},
		{"all differ", [3]podsecurity.LevelVersion{level(baseline, latest), level(restricted, old), level(restricted, latest)}, 3},
	} {
		count := &countingEvaluator{Evaluator: rules}
		held := podFindings{standards: &podStandards{evaluator: func() policy.Evaluator { return count }}, meta: &metav1.ObjectMeta{Name: "p"},
			spec: &corev1.PodSpec{HostNetwork: true, Containers: []corev1.Container{{Name: "c"}}}}
		for _, l := range c.levels {
			want := policy.AggregateCheckResults(rules.EvaluatePod(l, held.meta, held.spec))
			if got := held.evaluate(l); got.Allowed || got.ForbiddenDetail() != want.ForbiddenDetail() {
				t.Errorf("%s, %s: %q, want %q", c.name, l.String(), got.ForbiddenDetail(), want.ForbiddenDetail())
			}
		}
		if count.asked != c.asked {
			t.Errorf("%s: evaluated %d times, want %d", c.name, count.asked, c.asked)
		}
	}
}
