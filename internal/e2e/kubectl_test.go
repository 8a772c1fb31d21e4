package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"apilet/internal/apitest"
)

// Every version of kubectl reports a missing kind instead of an error about schemas.
func TestKubectlSaysThatAKindIsMissing(t *testing.T) {
	t.Parallel()
	s, dir := startTest(t), t.TempDir()
	for _, kubectl := range apitest.Kubectls(t) {
		for apiVersion, kind := range map[string]string{"nope.example.com/v1": "Widget", "apps/v1": "Deploymnt"} {
			cmd := exec.Command(kubectl, "--server", s.url, "--cache-dir", filepath.Join(dir, filepath.Base(kubectl)), "apply", "-f", "-")
			cmd.Env = append(os.Environ(), "KUBECONFIG=/dev/null", "HOME="+dir)
			cmd.Stdin = strings.NewReader("apiVersion: " + apiVersion + "\nkind: " + kind + "\nmetadata: {name: a}\n")
			want := `no matches for kind "` + kind + `" in version "` + apiVersion + `"` + "\nensure CRDs are installed first"
			if out, err := cmd.CombinedOutput(); err == nil || !bytes.Contains(out, []byte(want)) {
				t.Errorf("%s: %v %s", filepath.Base(kubectl), err, out)
			}
		}
	}
}

// kubectl shows both addresses of a Service.
func TestKubectlShowsBothAddresses(t *testing.T) {
	t.Parallel()
	s, dir := startTest(t, "--service-cluster-ip-range=10.96.0.0/16,fd00:10::/108"), t.TempDir()
	s.want(201, "POST", "/api/v1/namespaces/default/services", `{"metadata":{"name":"web"},"spec":{"clusterIP":"10.96.7.1","clusterIPs":["10.96.7.1","fd00:10::7"],
		"ipFamilyPolicy":"PreferDualStack","selector":{"a":"b"},"ports":[{"port":80}]}}`)
	kubectls := apitest.Kubectls(t)
	for args, want := range map[string][]string{
		"get service web -o wide": {"CLUSTER-IP", "ClusterIP   10.96.7.1    <none>"}, "get servicecidrs": {"kubernetes   10.96.0.0/16,fd00:10::/108"}, "get ipaddresses": {"fd00:10::7", "services/default/web"},
		"describe service web": {"IP Family Policy:         PreferDualStack", "IP Families:              IPv4,IPv6", "IPs:                      10.96.7.1,fd00:10::7"},
	} {
		cmd := exec.Command(kubectls[len(kubectls)-1], append([]string{"--server", s.url, "--cache-dir", dir}, strings.Fields(args)...)...)
		cmd.Env = append(os.Environ(), "KUBECONFIG=/dev/null", "HOME="+dir)
		out, err := cmd.CombinedOutput()
		for _, part := range want {
			if err != nil || !bytes.Contains(out, []byte(part)) {
				t.Errorf("%s: %v: no %q in\n%s", args, err, part, out)
			}
		}
	}
}
