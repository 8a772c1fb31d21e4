package e2e

// This file sends requests with n and with 4n elements. The time and memory of a request must be
// linear in its size and in the size of the stored object. If the size is four times larger, the
// cost may be about four times higher, but not sixteen times.

import (
	"fmt"
	"net/url"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"apilet/internal/apitest"
)

// An attack is a request of variable size. Only send is measured, and it may be called repeatedly.
type attack struct {
	title   string
	n       int
	prepare func(s *testServer, n int)
	send    func(s *testServer, n int)
}

const fixedConfigMap = "/api/v1/namespaces/default/configmaps/cost"

// listed returns n numbered elements of a JSON list.
func listed(n int, format string) string {
	return strings.TrimPrefix(apitest.Numbered(n, ","+format), ",")
}

// posting returns an attack that sends the given body.
func posting(title string, n int, method, path, codes string, body func(n int) string, headers ...string) attack {
	return attack{title: title, n: n, send: func(s *testServer, n int) {
		if a := s.send(method, path, body(n), headers...); !strings.Contains(codes, fmt.Sprint(a.code)) {
			s.t.Errorf("%s: got %d %.300s, want %s", title, a.code, a.body, codes)
		}
	}}
}

// selecting returns an attack that sends n selector terms for an object with 10*n labels.
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

// costOf returns the number of bytes that the server allocates for a request.
func (a *attack) costOf(s *testServer, n int) (bytes float64) {
	if a.prepare != nil {
		a.prepare(s, n)
	}
	before := s.allocated()
	a.send(s, n)
	return s.allocated() - before
}

// TestCostIsLinear measures the bytes that the server allocates. In earlier versions, each of these
// attacks used some seconds or hundreds of megabytes with 4n elements.
func TestCostIsLinear(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	for _, a := range attacks() {
		t.Run(a.title, func(t *testing.T) {
			bytes, bytes4 := a.costOf(s, a.n), a.costOf(s, 4*a.n)
			if bytes4 > 6*bytes && bytes4 > 32<<20 {
				t.Errorf("%d take %.0f KiB; %d take %.0f KiB", a.n, bytes/1024, 4*a.n, bytes4/1024)
			}
			t.Logf("%d take %.0f KiB; %d take %.0f KiB", a.n, bytes/1024, 4*a.n, bytes4/1024)
		})
	}
}

// ---- Steps ----

// TestStepsAreLinear counts the statements of apilet and of Kubernetes' packages that the server
// executes, so it also detects work that allocates no memory. The test only runs in the long form,
// because it takes minutes to build the program that counts:
//
//	APILET_LONG=1 go test -run TestStepsAreLinear -v ./internal/e2e
func TestStepsAreLinear(t *testing.T) {
	if !apitest.Long() {
		t.Skip("builds a program")
	}
	program := buildCounting(t)
	idle := stepsOf(t, program, func(*testServer) {})
	for _, a := range attacks() {
		t.Run(a.title, func(t *testing.T) {
			cost := func(n int) (steps int) {
				before := idle
				if a.prepare != nil {
					before = stepsOf(t, program, func(s *testServer) { a.prepare(s, n) })
				}
				return stepsOf(t, program, func(s *testServer) {
					if a.prepare != nil {
						a.prepare(s, n)
					}
					a.send(s, n)
				}) - before
			}
			steps, steps4 := cost(a.n), cost(4*a.n)
			if steps4 > 6*steps && steps4 > 1_000_000 {
				t.Errorf("%d take %d steps; %d take %d", a.n, steps, 4*a.n, steps4)
			}
			t.Logf("%d take %d steps; %d take %d", a.n, steps, 4*a.n, steps4)
		})
	}
}

// buildCounting builds the program with a counter in each block of statements.
func buildCounting(t *testing.T) (path string) {
	t.Helper()
	list, err := exec.Command("go", "list", "-deps", "apilet").Output()
	if err != nil {
		t.Fatal(err)
	}
	counted := slices.DeleteFunc(strings.Fields(string(list)), func(pkg string) bool {
		first, _, _ := strings.Cut(pkg, "/")
		return !slices.Contains([]string{"apilet", "k8s.io", "sigs.k8s.io", "go.yaml.in"}, first)
	})
	path = filepath.Join(t.TempDir(), "apilet")
	out, err := exec.Command("go", "build", "-cover", "-covermode=count", "-coverpkg="+strings.Join(counted, ","), "-ldflags=-s -w", "-o", path, "apilet").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return path
}

// stepsOf returns the total number of statements that a server executes. It calls serve while the
// server is running.
func stepsOf(t *testing.T, program string, serve func(*testServer)) (steps int) {
	t.Helper()
	counters, profile := t.TempDir(), filepath.Join(t.TempDir(), "profile")
	s := &testServer{t: t, program: program, flags: serverFlags(nil), env: []string{"GOCOVERDIR=" + counters}}
	s.start()
	serve(s)
	s.halt()
	if out, err := exec.Command("go", "tool", "covdata", "textfmt", "-i="+counters, "-o="+profile).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for line := range strings.Lines(string(apitest.ReadFile(t, profile))) { // the format is FILE:FROM,TO STATEMENTS TIMES
		var place string
		var statements, times int
		if n, _ := fmt.Sscan(line, &place, &statements, &times); n == 3 && times > 0 {
			steps += statements * times
		}
	}
	return steps
}

// BenchmarkGrowth prints how much the time and memory of a request grow if its size is doubled.
func BenchmarkGrowth(b *testing.B) {
	s := startTest(b)
	for _, a := range attacks() {
		b.Run(strings.ReplaceAll(a.title, " ", "_"), func(b *testing.B) {
			var bytes [3]float64
			var took [3]time.Duration
			for range b.N {
				for i, n := range [...]int{a.n, 2 * a.n, 4 * a.n} {
					begin := time.Now()
					memory := a.costOf(s, n)
					if elapsed := time.Since(begin); bytes[i] == 0 || elapsed < took[i] {
						bytes[i], took[i] = memory, elapsed
					}
				}
			}
			b.ReportMetric(float64(took[2].Microseconds())/1000, "ms/4n")
			b.ReportMetric(float64(took[1])/float64(took[0]), "time-2n/n")
			b.ReportMetric(float64(took[2])/float64(took[1]), "time-4n/2n")
			b.ReportMetric(bytes[2]/bytes[1], "memory-4n/2n")
		})
	}
}

// ---- Optimized code gives the same results ----

// TestNoPortIsLookedForInAFullRange creates a Service with more ports than the range contains.
func TestNoPortIsLookedForInAFullRange(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	ports := `[` + listed(2768+500, `{"name":"p%[1]d","port":%[1]d}`) + `]`
	a := s.want(422, "POST", "/api/v1/namespaces/default/services", `{"metadata":{"name":"s"},"spec":{"type":"NodePort","ports":`+strings.Replace(ports, `"port":0`, `"port":9999`, 1)+`}}`)
	apitest.Expect(t, len(a.get("details.causes").Array()), 1)
	apitest.Expect(t, strings.Contains(a.failure(), "failed to allocate a nodePort: range is full"), true)
	s.want(201, "POST", "/api/v1/namespaces/default/services", `{"metadata":{"name":"s"},"spec":{"type":"NodePort","ports":[{"port":80}]}}`)
}
