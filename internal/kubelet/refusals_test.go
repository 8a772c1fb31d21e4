package kubelet

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestProxiesReachNoOtherAddress: a Pod or Node whose status names an address of this machine, or
// of its link, is no way to reach it.
func TestProxiesReachNoOtherAddress(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	at := func(plural, name, address string) {
		if plural == "pods" {
			f.podAt(name, address)
			return
		}
		f.store("nodes", "", &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}}})
	}
	for _, plural := range []string{"pods", "nodes"} {
		for i, address := range []string{"127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1", "169.254.169.254", "fe80::1", "0.0.0.0", "224.0.0.1", "255.255.255.255"} {
			name := fmt.Sprint("bad", i)
			at(plural, name, address)
			for _, id := range []string{name, name + ":80", "https:" + name + ":443"} {
				if to, err := f.c.ofProxy(t.Context(), plural, "n", id, "/"); err == nil || !strings.Contains(err.Error(), "address not allowed") {
					t.Errorf("%s %s at %s: %v, %v", plural, id, address, to, err)
				}
			}
		}
		at(plural, "good", "10.0.0.1")
	}
	at("pods", "nowhere", "")
	at("pods", "named", "localhost")
	at("pods", "six", "fd00::1")
	f.store("nodes", "", &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "nowhere"}})
	for _, c := range []struct{ plural, id, want string }{
		{"pods", "good", "http://10.0.0.1:8080/a/"},
		{"pods", "good:81", "http://10.0.0.1:81/a/"},
		{"pods", "https:good:443", "https://10.0.0.1:443/a/"},
		{"pods", "six:81", "http://[fd00::1]:81/a/"},
		{"pods", "nowhere", "address not allowed"},
		{"pods", "named", "address not allowed"},
		{"pods", "gone", "not found"},
		{"pods", "ftp:good:21", "invalid pod request"},
		{"pods", "a:b:c:d", "invalid pod request"},
		{"nodes", "good", "https://10.0.0.1:10250/a/"},
		{"nodes", "good:10250", "https://10.0.0.1:10250/a/"},
		{"nodes", "good:9100", "http://10.0.0.1:9100/a/"},
		{"nodes", "https:good:9100", "https://10.0.0.1:9100/a/"},
		{"nodes", "nowhere", "no preferred addresses found"},
		{"nodes", "gone", "not found"},
	} {
		to, err := f.c.ofProxy(t.Context(), c.plural, "n", c.id, "/a/")
		got := fmt.Sprint(err)
		if err == nil {
			got = to.url.String()
			if ours := to.plain == f.c.Clients.verified; ours != strings.Contains(got, ":10250") {
				t.Errorf("%s %s: with this server's certificate %v", c.plural, c.id, ours)
			}
		}
		if !strings.Contains(got, c.want) {
			t.Errorf("%s %s: %s, want %s", c.plural, c.id, got, c.want)
		}
	}
}

// TestContainersAreNamed where there is more than one, and only those of the Pod.
func TestContainersAreNamed(t *testing.T) {
	t.Parallel()
	several := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{InitContainers: []corev1.Container{{Name: "i"}}, Containers: []corev1.Container{{Name: "a"}, {Name: "b"}},
		EphemeralContainers: []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "e"}}}}}
	one := several.DeepCopy()
	one.Spec.Containers = one.Spec.Containers[:1]
	for _, c := range []struct {
		named     string
		pod       *corev1.Pod
		want, err string
	}{
		{"b", several, "b", ""}, {"i", several, "i", ""}, {"e", several, "e", ""}, {"", one, "a", ""}, {"i", one, "i", ""},
		{"", several, "", "choose one of: [i a b e]"}, {"b", one, "", "container b is not valid for pod p"}, {"../x", several, "", "is not valid for pod p"},
	} {
		if got, err := container(c.named, c.pod); got != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%q: %q, %v; want %q, %q", c.named, got, err, c.want, c.err)
		}
	}
}

// brokenBody is that of an answer that breaks off.
type brokenBody struct{ io.Reader }

func (brokenBody) Read([]byte) (int, error) { return 0, errors.New("broken off") }
func (brokenBody) Close() error             { return nil }

// TestRefusalsOfKubelets: what a kubelet answers to a request for a log is never taken for the log,
// and its text is bounded.
func TestRefusalsOfKubelets(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		code int
		text string
		want int32 // 0: it is the log
	}{
		{200, "a log", 0}, {206, "a part", 0}, {101, "", 500}, {207, "", 207}, {301, "", 301}, {400, "no such container", 400}, {404, "", 404}, {500, "out of memory", 500}, {503, "", 503}, {999, "", 502},
		{500, strings.Repeat("x", 2*maxRefusal), 500}, {400, strings.Repeat("x", 2*maxRefusal), 400}, {403, strings.Repeat("x", 2*maxRefusal), 403},
	} {
		body := &reading{Reader: strings.NewReader(c.text)}
		err := refusal(&http.Response{StatusCode: c.code, Body: body}, "p")
		var status apierrors.APIStatus
		code := int32(0)
		if errors.As(err, &status) {
			code = status.Status().Code
		}
		if code != c.want || (err == nil) != (c.want == 0) || err != nil && len(err.Error()) > maxRefusal+1000 {
			t.Errorf("%d: %.200v, want %d", c.code, err, c.want)
		}
		if c.code == 101 && body.read > 0 {
			t.Error("the connection of a 101 was read")
		}
	}
	if err := refusal(&http.Response{StatusCode: 404, Body: brokenBody{}}, "p"); !apierrors.IsInternalError(err) {
		t.Errorf("an answer that broke off: %v", err)
	}
}

// A reading counts what is read of it.
type reading struct {
	io.Reader
	read int
}

func (r *reading) Read(p []byte) (int, error) { r.read++; return r.Reader.Read(p) }
func (r *reading) Close() error               { return nil }

// TestUpgradesAreSwitchesOrRefusals: another success is no answer to a request that upgrades its
// connection.
func TestUpgradesAreSwitchesOrRefusals(t *testing.T) {
	t.Parallel()
	c := &Connector{}
	for code, ok := range map[int]bool{101: true, 200: false, 204: false, 302: false, 400: true, 403: true, 500: true} {
		answer := &http.Response{StatusCode: code, Header: http.Header{}, Body: http.NoBody}
		if err := c.hop(&location{}, nil).Modify(http.Header{}, answer); (err == nil) != ok {
			t.Errorf("%d: %v", code, err)
		}
	}
}
