package scheme

import (
	"strings"
	"testing"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"apilet/internal/apitest/kubetest"
)

// storeAndRead sends a body in one version and reads it in another.
func storeAndRead(t *testing.T, plural, inVersion, outVersion, body string) string {
	t.Helper()
	reg := NewRegistry()
	find := func(apiVersion string) *Resource {
		for _, res := range reg.All() {
			if res.APIVersion() == apiVersion && res.Plural == plural {
				return res
			}
		}
		t.Fatal("no " + apiVersion + " " + plural)
		return nil
	}
	in, out := find(inVersion), find(outVersion)
	obj, strictErrs, err := in.Decode([]byte(body), "application/json", "")
	if err != nil || len(strictErrs) > 0 {
		t.Fatal(err, strictErrs)
	}
	stored, _, err := in.EncodeStored(obj)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := documentOf(out, stored)
	if err != nil {
		t.Fatal(err)
	}
	if in.Key("n", "x") != out.Key("n", "x") {
		t.Errorf("keys differ: %s and %s", in.Key("n", "x"), out.Key("n", "x"))
	}
	return string(doc)
}

// What kube-apiserver 1.36 answered when the object in the second column, made in one version, was read in the other.
func TestVersionsConvertAsInKubeAPIServer(t *testing.T) {
	const hpaV2 = `{"kind":"HorizontalPodAutoscaler","apiVersion":"autoscaling/v2","metadata":{"name":"y","resourceVersion":""},"spec":{"scaleTargetRef":{"kind":"Deployment","name":"x","apiVersion":"apps/v1"},"maxReplicas":3,
		"behavior":{"scaleUp":{"stabilizationWindowSeconds":0,"selectPolicy":"Max","policies":[{"type":"Pods","value":4,"periodSeconds":15}]},"scaleDown":{"stabilizationWindowSeconds":5,"selectPolicy":"Max"}},
		"metrics":[{"type":"Resource","resource":{"name":"memory","target":{"type":"AverageValue","averageValue":"5Mi"}}},
			{"type":"Pods","pods":{"metric":{"name":"m","selector":{"matchLabels":{"a":"b"}}},"target":{"type":"AverageValue","averageValue":"5"}}},
			{"type":"Resource","resource":{"name":"cpu","target":{"type":"Utilization","averageUtilization":60}}}]},
		"status":{"currentReplicas":1,"desiredReplicas":2,"conditions":[{"type":"AbleToScale","status":"True","lastTransitionTime":"2026-01-01T00:00:00Z","reason":"r","message":"m"}],
			"currentMetrics":[{"type":"Resource","resource":{"name":"cpu","current":{"averageUtilization":33,"averageValue":"3"}}},{"type":"Resource","resource":{"name":"memory","current":{"averageValue":"3Mi"}}}]}}`
	const hpaV1 = `{"kind":"HorizontalPodAutoscaler","apiVersion":"autoscaling/v1","metadata":{"name":"y","annotations":{
			"autoscaling.alpha.kubernetes.io/behavior":"{\"ScaleUp\":{\"StabilizationWindowSeconds\":0,\"SelectPolicy\":\"Max\",\"Policies\":[{\"Type\":\"Pods\",\"Value\":4,\"PeriodSeconds\":15}],\"Tolerance\":null},\"ScaleDown\":{\"StabilizationWindowSeconds\":5,\"SelectPolicy\":\"Max\",\"Policies\":null,\"Tolerance\":null}}",
			"autoscaling.alpha.kubernetes.io/conditions":"[{\"type\":\"AbleToScale\",\"status\":\"True\",\"lastTransitionTime\":\"2026-01-01T00:00:00Z\",\"reason\":\"r\",\"message\":\"m\"}]",
			"autoscaling.alpha.kubernetes.io/current-metrics":"[{\"type\":\"Resource\",\"resource\":{\"name\":\"cpu\",\"currentAverageUtilization\":33,\"currentAverageValue\":\"3\"}},{\"type\":\"Resource\",\"resource\":{\"name\":\"memory\",\"currentAverageValue\":\"3Mi\"}}]",
			"autoscaling.alpha.kubernetes.io/metrics":"[{\"type\":\"Resource\",\"resource\":{\"name\":\"memory\",\"targetAverageValue\":\"5Mi\"}},{\"type\":\"Pods\",\"pods\":{\"metricName\":\"m\",\"targetAverageValue\":\"5\",\"selector\":{\"matchLabels\":{\"a\":\"b\"}}}}]"}},
		"spec":{"scaleTargetRef":{"kind":"Deployment","name":"x","apiVersion":"apps/v1"},"maxReplicas":3,"targetCPUUtilizationPercentage":60},
		"status":{"currentReplicas":1,"desiredReplicas":2,"currentCPUUtilizationPercentage":33}}`
	cases := []struct{ name, plural, inVersion, outVersion, body, want string }{
		{"autoscaler read in v1", "horizontalpodautoscalers", "autoscaling/v2", "autoscaling/v1", hpaV2, hpaV1},
		{"autoscaler written in v1", "horizontalpodautoscalers", "autoscaling/v1", "autoscaling/v2", hpaV1, strings.Replace(hpaV2, `"maxReplicas"`, `"minReplicas":1,"maxReplicas"`, 1)},
		{"autoscaler without metrics", "horizontalpodautoscalers", "autoscaling/v1", "autoscaling/v2",
			`{"metadata":{"name":"x"},"spec":{"maxReplicas":3,"scaleTargetRef":{"kind":"Deployment","name":"x"}}}`,
			`{"kind":"HorizontalPodAutoscaler","apiVersion":"autoscaling/v2","metadata":{"name":"x","resourceVersion":""},"spec":{"minReplicas":1,"maxReplicas":3,"scaleTargetRef":{"kind":"Deployment","name":"x"},
				"metrics":[{"type":"Resource","resource":{"name":"cpu","target":{"type":"Utilization","averageUtilization":80}}}]},"status":{"desiredReplicas":0,"currentMetrics":null}}`},
		{"event written in events.k8s.io", "events", "events.k8s.io/v1", "v1",
			`{"metadata":{"name":"e1","namespace":"default"},"eventTime":"2026-01-01T00:00:00.000000Z","series":{"count":3,"lastObservedTime":"2026-01-01T00:00:00.123456Z"},"action":"a","reason":"r","regarding":{"kind":"Pod","name":"p","namespace":"default"},"related":{"kind":"Node","name":"n"},"note":"note","type":"Normal","reportingController":"c","reportingInstance":"i"}`,
			`{"kind":"Event","apiVersion":"v1","metadata":{"name":"e1","namespace":"default","resourceVersion":""},"involvedObject":{"kind":"Pod","namespace":"default","name":"p"},"reason":"r","message":"note","source":{},"firstTimestamp":null,"lastTimestamp":null,"type":"Normal","eventTime":"2026-01-01T00:00:00.000000Z","series":{"count":3,"lastObservedTime":"2026-01-01T00:00:00.123456Z"},"action":"a","related":{"kind":"Node","name":"n"},"reportingComponent":"c","reportingInstance":"i"}`},
		{"event read in events.k8s.io", "events", "v1", "events.k8s.io/v1",
			`{"metadata":{"name":"e2"},"involvedObject":{"kind":"Pod","name":"p","namespace":"default"},"message":"m","reason":"r","source":{"component":"sc","host":"h"},"firstTimestamp":"2026-01-01T00:00:00Z","lastTimestamp":"2026-01-01T00:00:00Z","count":2}`,
			`{"kind":"Event","apiVersion":"events.k8s.io/v1","metadata":{"name":"e2"},"eventTime":null,"reason":"r","regarding":{"kind":"Pod","namespace":"default","name":"p"},"note":"m","deprecatedSource":{"component":"sc","host":"h"},"deprecatedFirstTimestamp":"2026-01-01T00:00:00Z","deprecatedLastTimestamp":"2026-01-01T00:00:00Z","deprecatedCount":2}`},
		{"budget that matches nothing", "poddisruptionbudgets", "policy/v1beta1", "policy/v1", `{"metadata":{"name":"x"},"spec":{"selector":{}}}`,
			`{"kind":"PodDisruptionBudget","apiVersion":"policy/v1","metadata":{"name":"x","resourceVersion":""},"spec":{"selector":{"matchExpressions":[{"key":"pdb.kubernetes.io/deprecated-v1beta1-empty-selector-match","operator":"Exists"}]}},"status":{"disruptionsAllowed":0,"currentHealthy":0,"desiredHealthy":0,"expectedPods":0}}`},
		{"budget that matches all", "poddisruptionbudgets", "policy/v1", "policy/v1beta1", `{"metadata":{"name":"x"},"spec":{"selector":{}}}`,
			`{"kind":"PodDisruptionBudget","apiVersion":"policy/v1beta1","metadata":{"name":"x"},"spec":{"selector":{"matchExpressions":[{"key":"pdb.kubernetes.io/deprecated-v1beta1-empty-selector-match","operator":"DoesNotExist"}]}},"status":{"disruptionsAllowed":0,"currentHealthy":0,"desiredHealthy":0,"expectedPods":0}}`},
		{"level with zero shares", "prioritylevelconfigurations", "flowcontrol.apiserver.k8s.io/v1", "flowcontrol.apiserver.k8s.io/v1beta3",
			`{"metadata":{"name":"x"},"spec":{"type":"Limited","limited":{"nominalConcurrencyShares":0}}}`,
			`{"kind":"PriorityLevelConfiguration","apiVersion":"flowcontrol.apiserver.k8s.io/v1beta3","metadata":{"name":"x","annotations":{"flowcontrol.k8s.io/v1beta3-preserve-zero-concurrency-shares":""}},"spec":{"type":"Limited","limited":{"nominalConcurrencyShares":0,"limitResponse":{"type":""}}},"status":{}}`},
		{"level that keeps zero shares", "prioritylevelconfigurations", "flowcontrol.apiserver.k8s.io/v1beta3", "flowcontrol.apiserver.k8s.io/v1",
			`{"metadata":{"name":"x","annotations":{"flowcontrol.k8s.io/v1beta3-preserve-zero-concurrency-shares":""}},"spec":{"type":"Limited","limited":{"nominalConcurrencyShares":0}}}`,
			`{"kind":"PriorityLevelConfiguration","apiVersion":"flowcontrol.apiserver.k8s.io/v1","metadata":{"name":"x","resourceVersion":""},"spec":{"type":"Limited","limited":{"nominalConcurrencyShares":0,"limitResponse":{"type":""},"lendablePercent":0}},"status":{}}`},
		{"cron job", "cronjobs", "batch/v1beta1", "batch/v1", `{"metadata":{"name":"x"},"spec":{"schedule":"* * * * *"}}`,
			`{"kind":"CronJob","apiVersion":"batch/v1","metadata":{"name":"x","resourceVersion":""},"spec":{"schedule":"* * * * *","concurrencyPolicy":"Allow","suspend":false,
				"jobTemplate":{"metadata":{},"spec":{"template":{"metadata":{},"spec":{"containers":null,"restartPolicy":"Always","terminationGracePeriodSeconds":30,"dnsPolicy":"ClusterFirst","securityContext":{},"schedulerName":"default-scheduler"}}}},
				"successfulJobsHistoryLimit":3,"failedJobsHistoryLimit":1},"status":{}}`},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			kubetest.SameJSON(t, storeAndRead(t, c.plural, c.inVersion, c.outVersion, c.body), c.want)
		})
	}
}

func TestAutoscalerMetricsOfEverySourceRoundTrip(t *testing.T) {
	res := NewRegistry().Lookup("autoscaling", "v2", "horizontalpodautoscalers")
	v2 := kubetest.Filled(res.GoType)
	body, _ := MarshalAs(v2, "autoscaling/v2", res.Kind)
	v1 := storeAndRead(t, res.Plural, "autoscaling/v2", "autoscaling/v1", string(body))
	back := storeAndRead(t, res.Plural, "autoscaling/v1", "autoscaling/v2", v1)
	again := storeAndRead(t, res.Plural, "autoscaling/v2", "autoscaling/v1", back)
	kubetest.SameJSON(t, again, v1)
}

func TestEventsSurviveBothWays(t *testing.T) {
	event := kubetest.Filled(NewRegistry().Lookup("", "v1", "events").GoType).(*corev1.Event)
	res := NewRegistry().Lookup("events.k8s.io", "v1", "events")
	if back := res.ConvertIn(res.ConvertOut(event)); !equality.Semantic.DeepEqual(event, back) {
		t.Errorf("got  %+v\nwant %+v", back, event)
	}
}

// The annotations of autoscaling/v1 are documents of their own, which have limits as bodies have.
func TestAnnotationsOfAutoscalersAreBounded(t *testing.T) {
	res := NewRegistry().Lookup("autoscaling", "v1", "horizontalpodautoscalers")
	for text, want := range map[string]int{
		`[{"type":"Pods","pods":{"metricName":"m","targetAverageValue":"1"}}]`:             1,
		`[{"type":"Pods","pods":{"metricName":"m","targetAverageValue":"1e-2147483648"}}]`: 0,
		`[{"type":"Pods","pods":{"metricName":"m","TARGETAVERAGEVALUE":"1e-2147483648"}}]`: 1,
		`{`: 0,
	} {
		utilization := int32(50)
		hpa := &autoscalingv1.HorizontalPodAutoscaler{Spec: autoscalingv1.HorizontalPodAutoscalerSpec{TargetCPUUtilizationPercentage: &utilization}}
		hpa.Annotations = map[string]string{"autoscaling.alpha.kubernetes.io/metrics": text}
		if got := len(res.ConvertIn(hpa).(*autoscalingv2.HorizontalPodAutoscaler).Spec.Metrics); got != want+1 {
			t.Errorf("%.100s: %d metrics, want %d", text, got, want+1)
		}
	}
}
