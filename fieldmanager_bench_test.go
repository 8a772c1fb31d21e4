package main

// What the bookkeeping of managedFields costs: go test -run xxx -bench 'StatusPatches'

import (
	"crypto/rand"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"apilet/internal/apitest"
	"apilet/internal/apitest/kubetest"
)

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
		{"ephemeral/unmanaged", []func(*config){func(c *config) { c.ManagedFields = false }}},
		{"file", []func(*config){file}},
	} {
		b.Run(c.name, func(b *testing.B) {
			s := startTest(b, c.edit...)
			defer s.halt()
			for i := range 8 {
				body := strings.NewReplacer(`"uid":"1",`, ``, `"resourceVersion":"7",`, ``, `"name":"d"`, fmt.Sprintf(`"name":"d%d"`, i)).Replace(kubetest.DeploymentJSON(3))
				s.want(201, "POST", path, body)
			}
			round := 0
			for range 2 { // the first makes the entries
				round++
				before := apitest.Processor()
				rate := hammer(b, s.url, 8, max(8, b.N), func(worker, i int) []byte {
					body := fmt.Sprintf(`{"status":{"observedGeneration":%d,"replicas":%d}}`, 1, round*1_000_000+i)
					return fmt.Appendf(nil, "PATCH %s/d%d/status HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/merge-patch+json\r\nUser-Agent: worker\r\nContent-Length: %d\r\n\r\n%s",
						path, worker, len(body), body)
				})
				used := apitest.Processor() - before
				b.ReportMetric(rate, "patches/s")
				b.ReportMetric(float64(used.Nanoseconds())/1000/float64(max(8, b.N)), "cpu-us/patch")
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}
