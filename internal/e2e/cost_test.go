package e2e

// This file sends requests whose cost might grow faster than their size, at n and at 4n. What a client, or an object that it stores, can
// make long must cost no more than linear time and memory: four times the bytes cost about four times as much, never sixteen times.

import (
	"fmt"
	"net/url"
	"runtime"
	"strings"
	"testing"
	"time"

	"apilet/internal/apitest"
)

// An attack is a request of a size. prepare is not measured; send is, and may be called again.
type attack struct {
	title   string
	n       int
	prepare func(s *testServer, n int)
	send    func(s *testServer, n int)
}

const fixedConfigMap = "/api/v1/namespaces/default/configmaps/cost"

// listed is n numbered elements of a JSON list.
func listed(n int, format string) string {
	return strings.TrimPrefix(apitest.Numbered(n, ","+format), ",")
}

// posting is an attack that one body makes.
func posting(title string, n int, method, path, codes string, body func(n int) string, headers ...string) attack {
	return attack{title: title, n: n, send: func(s *testServer, n int) {
		if a := s.send(method, path, body(n), headers...); !strings.Contains(codes, fmt.Sprint(a.code)) {
			s.t.Errorf("%s: got %d %.300s, want %s", title, a.code, a.body, codes)
		}
	}}
}

// selecting is an attack by the terms of a selector on one object with as many labels, and more.
func selecting(title, parameter, format string) attack {
	labelled := func(s *testServer, n int) {
		s.send("DELETE", fixedConfigMap, "")
		s.want(201, "POST", "/api/v1/namespaces/default/configmaps", `{"metadata":{"name":"cost","labels":{`+listed(10*n, `"have%d":""`)+`}}}`)
	}
	return attack{title: title, n: 500, prepare: labelled, send: func(s *testServer, n int) {
		s.want(200, "GET", "/api/v1/namespaces/default/configmaps?"+parameter+"="+url.QueryEscape(listed(n, format)), "")
	}}
}

func attacks() []attack {
	const maps, services = "/api/v1/namespaces/default/configmaps", "/api/v1/namespaces/default/services"
	object := func(metadata string) string {
		return `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"cost",` + metadata + `}}`
	}
	ports := func(n int) string {
		return `{"metadata":{"name":"cost"},"spec":{"type":"NodePort","ports":[` + apitest.Numbered(n, `{"name":"p%[1]d","port":1%[1]d},`) + `{"name":"last","port":65535}]}}`
	}
	return []attack{
		posting("bad requirements of an access review", 2000, "POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "422", func(n int) string {
			return `{"spec":{"resourceAttributes":{"labelSelector":{"requirements":[` + listed(n, `{"key":"-%d"}`) + `]}}}}`
		}),
		posting("a raw selector of bad values", 4000, "POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "201", func(n int) string {
			return `{"spec":{"resourceAttributes":{"labelSelector":{"rawSelector":"k in (` + listed(n, "-%d") + `)"}}}}`
		}),
		{"bad finalizers", 500, func(s *testServer, _ int) { s.send("POST", maps, object(`"labels":{}`)) }, func(s *testServer, n int) {
			s.want(422, "PUT", fixedConfigMap, object(`"finalizers":[`+listed(n, `"x%d"`)+`]`))
		}},
		{"equal owners that control", 750, func(s *testServer, _ int) { s.send("POST", maps, object(`"labels":{}`)) }, func(s *testServer, n int) {
			s.want(422, "PUT", fixedConfigMap, object(`"ownerReferences":[`+listed(n, `{"apiVersion":"v1","kind":"K","name":"o","uid":"u%d","controller":true}`)+`]`))
		}},
		posting("owners that control", 1000, "POST", maps, "422", func(n int) string {
			return object(`"ownerReferences":[` + listed(n, `{"apiVersion":"v1","kind":"K","name":"o%[1]d","uid":"u%[1]d","controller":true}`) + `]`)
		}),
		posting("owners", 2000, "POST", maps+"?dryRun=All", "201", func(n int) string {
			return strings.Replace(object(`"ownerReferences":[`+listed(n, `{"apiVersion":"v1","kind":"K","name":"o%[1]d","uid":"u%[1]d"}`)+`]`), `"cost"`, `"costly"`, 1)
		}),
		posting("bad labels", 1000, "POST", maps, "422", func(n int) string { return object(`"labels":{` + listed(n, `"-%d":"-"`) + `}`) }),
		posting("keys", 10_000, "POST", maps+"?dryRun=All", "201", func(n int) string {
			return `{"metadata":{"name":"costly"},"data":{` + listed(n, `"k%d":""`) + `}}`
		}),
		posting("duplicate YAML keys", 4000, "PATCH", fixedConfigMap+"?fieldManager=m&fieldValidation=Strict", "400", func(n int) string {
			return "apiVersion: v1\nkind: ConfigMap\ndata:\n" + strings.Repeat("  k: v\n", n)
		}, serverApply),
		{"node ports", 1250, func(s *testServer, _ int) {
			s.send("DELETE", services+"/cost", "")
			s.want(201, "POST", services, ports(100))
		}, func(s *testServer, n int) { s.send("PUT", services+"/cost", ports(n)) }},
		selecting("terms of a label selector", "labelSelector", "!a%d"),
		selecting("values of a label selector", "labelSelector", "k!=a%d"),
		selecting("terms of a field selector", "fieldSelector", "metadata.namespace!=a%d"),
		posting("claims beside volumes that make some", 1500, "POST", "/api/v1/namespaces/default/pods", "422", func(n int) string {
			return `{"metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"i"}],"volumes":[` +
				listed(n, `{"name":"e%[1]d","ephemeral":{}},{"name":"v%[1]d","persistentVolumeClaim":{"claimName":"x"}}`) + `]}}`
		}),
		{"containers beyond a LimitRange", 4000, func(s *testServer, _ int) {
			s.send("POST", "/api/v1/namespaces", `{"metadata":{"name":"limited"}}`)
			s.send("POST", "/api/v1/namespaces/limited/limitranges", `{"metadata":{"name":"l"},"spec":{"limits":[{"type":"Container","max":{"cpu":"1"}}]}}`)
		}, func(s *testServer, n int) {
			s.want(403, "POST", "/api/v1/namespaces/limited/pods?dryRun=All", `{"metadata":{"name":"p"},"spec":{"serviceAccountName":"default","containers":[`+
				listed(n, `{"name":"c%[1]d","image":"i","resources":{"limits":{"cpu":"1%[1]d"}}}`)+`]}}`)
		}},
		posting("mounts beside devices", 2000, "POST", "/api/v1/namespaces/default/pods", "422", func(n int) string {
			return `{"metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"i","volumeMounts":[` + listed(n, `{"name":"v","mountPath":"/m%d"}`) +
				`],"volumeDevices":[` + listed(n, `{"name":"v","devicePath":"/d%d"}`) + `]}]}}`
		}),
		posting("variables beside volumes", 1500, "POST", "/api/v1/namespaces/default/pods", "422", func(n int) string {
			return `{"metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"i","env":[` +
				listed(n, `{"name":"N%[1]d","valueFrom":{"fileKeyRef":{"volumeName":"x%[1]d","path":"p","key":"k"}}}`) + `]}],"volumes":[` +
				listed(n, `{"name":"v%d","emptyDir":{}}`) + `]}}`
		}),
		posting("empty topologies", 500, "POST", "/apis/storage.k8s.io/v1/storageclasses", "422", func(n int) string {
			return `{"metadata":{"name":"cost"},"provisioner":"x.io/p","allowedTopologies":[` + strings.Repeat("{},", n) + `{}]}`
		}),
		posting("a quota of many scopes", 2000, "POST", "/api/v1/namespaces/default/resourcequotas", "422", func(n int) string {
			return `{"metadata":{"name":"cost"},"spec":{"scopes":[` + strings.Repeat(`"BestEffort",`, n) + `"x"],"hard":{` + listed(n, `"count/x%d":"1"`) + `}}}`
		}),
	}
}

// costOf is the memory that a request takes, and its time.
func (a *attack) costOf(s *testServer, n int) (bytes uint64, took time.Duration) {
	if a.prepare != nil {
		a.prepare(s, n)
	}
	begin, before := time.Now(), apitest.Allocated()
	a.send(s, n)
	return apitest.Allocated() - before, time.Since(begin)
}

// TestCostIsLinear: other work on the machine makes a request slow now and then, hardly three times in a row where it counts, and never
// takes memory in this process. Each of the attacks took some seconds, or hundreds of megabytes, at 4n once.
func TestCostIsLinear(t *testing.T) {
	s := startTest(t)
	for _, a := range attacks() {
		t.Run(a.title, func(t *testing.T) {
			for try := 1; ; try++ {
				bytes, took := a.costOf(s, a.n)
				bytes4, took4 := a.costOf(s, 4*a.n)
				grows := bytes4 > 8*bytes && bytes4 > 64<<20 || took4 > 8*took && took4 > time.Second || took4 > tooLong
				if !grows {
					return
				}
				if try == 3 {
					t.Fatalf("%d take %d KiB, %v; %d take %d KiB, %v", a.n, bytes>>10, took, 4*a.n, bytes4>>10, took4)
				}
			}
		})
	}
}

// BenchmarkGrowth prints by what a request's time and memory grow when its size doubles.
func BenchmarkGrowth(b *testing.B) {
	s := startTest(b)
	for _, a := range attacks() {
		b.Run(strings.ReplaceAll(a.title, " ", "_"), func(b *testing.B) {
			var bytes [3]uint64
			var took [3]time.Duration
			for range b.N {
				for i, n := range [...]int{a.n, 2 * a.n, 4 * a.n} {
					runtime.GC()
					memory, time := a.costOf(s, n)
					if bytes[i] == 0 || time < took[i] {
						bytes[i], took[i] = memory, time
					}
				}
			}
			b.ReportMetric(float64(took[2].Microseconds())/1000, "ms/4n")
			b.ReportMetric(float64(took[1])/float64(took[0]), "time-2n/n")
			b.ReportMetric(float64(took[2])/float64(took[1]), "time-4n/2n")
			b.ReportMetric(float64(bytes[2])/float64(bytes[1]), "memory-4n/2n")
		})
	}
}

// ---- What became quicker answers as before ----

// TestNoPortIsLookedForInAFullRange: one Service asks for more than there are.
func TestNoPortIsLookedForInAFullRange(t *testing.T) {
	s := startTest(t)
	ports := `[` + listed(2768+500, `{"name":"p%[1]d","port":%[1]d}`) + `]`
	a := s.want(422, "POST", "/api/v1/namespaces/default/services", `{"metadata":{"name":"s"},"spec":{"type":"NodePort","ports":`+strings.Replace(ports, `"port":0`, `"port":9999`, 1)+`}}`)
	apitest.Expect(t, len(a.get("details.causes").Array()), 1)
	apitest.Expect(t, strings.Contains(a.failure(), "failed to allocate a nodePort: range is full"), true)
	s.want(201, "POST", "/api/v1/namespaces/default/services", `{"metadata":{"name":"s"},"spec":{"type":"NodePort","ports":[{"port":80}]}}`)
}
