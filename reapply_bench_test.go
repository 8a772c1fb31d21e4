package main

// What the bookkeeping of managedFields costs: go test -run xxx -bench 'ApplyDeployment20|StatusPatches'

import (
	"crypto/rand"
	"fmt"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	appsv1 "k8s.io/api/apps/v1"

	"apilet/internal/apitest"
	"apilet/internal/registry/defaults"
	"apilet/internal/registry/fieldmanager"
	"apilet/internal/scheme"
)

// BenchmarkApplyDeployment20: CPU time of one apply of 20 containers, without what every write costs (reading and storing the object),
// and of the same by the general machine.
func BenchmarkApplyDeployment20(b *testing.B) {
	o := &fieldmanager.Manager{Kind: appsv1.SchemeGroupVersion.WithKind("Deployment"), GoType: reflect.TypeFor[appsv1.Deployment](), Status: true}
	body := strings.NewReplacer(`"uid":"1",`, ``, `"resourceVersion":"7",`, ``, `,"status":{}`, ``).Replace(deploymentJSON(20))
	by := fieldmanager.Applier{Manager: "m"}
	live, _, err := o.Apply(nil, []byte(body), by)
	if err != nil {
		b.Fatal(err)
	}
	defaults.Set(live)
	live = asStored(b, o, live)
	for _, c := range []struct {
		name string
		live scheme.Object
		body string
	}{{"first", nil, body}, {"unchanged", live, body}, {"one-change", live, strings.Replace(body, `"replicas":2`, `"replicas":3`, 1)}} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			stop := apitest.ProcessorTime(b)
			for b.Loop() {
				merged, _, err := o.Apply(c.live, []byte(c.body), by)
				if err != nil {
					b.Fatal(err)
				}
				defaults.Set(merged)
			}
			stop()
		})
		b.Run(c.name+"/general", func(b *testing.B) {
			general, _ := o.Manager("")
			stop := apitest.ProcessorTime(b)
			for b.Loop() {
				wanted, _, err := fieldmanager.DecodeApply([]byte(c.body))
				if err != nil {
					b.Fatal(err)
				}
				merged, err := general.Apply(o.OrNew(c.live), wanted, by.Manager, false)
				if err != nil {
					b.Fatal(err)
				}
				defaults.Set(merged)
			}
			stop()
		})
	}
}

// BenchmarkStatusPatches8Workers: what a controller's workers do to their Deployments, over HTTP on loopback, with and without
// managedFields. The CPU time is that of both ends.
func BenchmarkStatusPatches8Workers(b *testing.B) {
	const path = "/apis/apps/v1/namespaces/default/deployments"
	file := func(c *config) { onFile(filepath.Join(b.TempDir(), rand.Text()))(c) }
	for _, c := range []struct {
		name string
		edit []func(*config)
	}{
		{"ephemeral", nil},
		{"ephemeral/unmanaged", []func(*config){func(c *config) { c.managedFields = false }}},
		{"file", []func(*config){file}},
	} {
		b.Run(c.name, func(b *testing.B) {
			s := startTest(b, c.edit...)
			defer s.halt()
			for i := range 8 {
				body := strings.NewReplacer(`"uid":"1",`, ``, `"resourceVersion":"7",`, ``, `"name":"d"`, fmt.Sprintf(`"name":"d%d"`, i)).Replace(deploymentJSON(3))
				s.want(201, "POST", path, body)
			}
			round := 0
			for range 2 { // the first makes the entries
				round++
				var before, after syscall.Rusage
				syscall.Getrusage(syscall.RUSAGE_SELF, &before)
				rate := hammer(b, s.url, 8, max(8, b.N), func(worker, i int) []byte {
					body := fmt.Sprintf(`{"status":{"observedGeneration":%d,"replicas":%d}}`, 1, round*1_000_000+i)
					return fmt.Appendf(nil, "PATCH %s/d%d/status HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/merge-patch+json\r\nUser-Agent: worker\r\nContent-Length: %d\r\n\r\n%s",
						path, worker, len(body), body)
				})
				syscall.Getrusage(syscall.RUSAGE_SELF, &after)
				used := after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano()
				b.ReportMetric(rate, "patches/s")
				b.ReportMetric(float64(used)/1000/float64(max(8, b.N)), "cpu-us/patch")
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}
