package e2e

// These tests cause the problems that an operator must be able to detect. They verify the check of
// /readyz and its effect on readiness, the metric, and the log lines at the start and the end of
// the problem. The test of a full disk is in fulldisk_linux_test.go. The tests in testdata/etcd
// cover a lost etcd and a slow replica.

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"apilet/internal/apitest"
	"apilet/internal/apitest/kubetest"
	"apilet/internal/store"
	"apilet/internal/store/storetest"
)

// An operated is a server under test with additional methods for health checks and metrics.
type operated struct{ *testServer }

func operate(t *testing.T, flags ...string) *operated {
	return &operated{startTest(t, flags...)}
}

// says verifies the state of a check of /readyz. It is "ok", "failed", or "warns" if the server is
// still ready. The reason must contain why.
func (o *operated) says(check, how, why string) {
	o.t.Helper()
	mark := map[string]string{"ok": "[+]" + check + " ok", "warns": "[!]" + check + " warns: ", "failed": "[-]" + check + " failed: "}[how]
	code := map[bool]int{true: 500, false: 200}[how == "failed"]
	if a := o.send("GET", "/readyz?verbose", ""); a.code != code || !strings.Contains(string(a.body), mark) || !strings.Contains(string(a.body), why) {
		o.t.Errorf("/readyz, want %s%s: %d %s", mark, why, a.code, a.body)
	}
	if a := o.send("GET", "/readyz/"+check, ""); (a.code == 200) != (how == "ok") || !strings.Contains(string(a.body), why) {
		o.t.Errorf("/readyz/%s, want %s: %d %s", check, why, a.code, a.body)
	}
	o.figure(fmt.Sprintf(`kubernetes_healthcheck{name="%s",type="readyz"}`, check), map[bool]float64{true: 1, false: 0}[how == "ok"])
}

func (o *operated) figure(series string, want float64) {
	o.t.Helper()
	if got := metricValue(o.testServer, series); got != want {
		o.t.Errorf("%s is %v, want %v", series, got, want)
	}
}

// told checks how often the log reports the start and the end of a problem.
func (o *operated) told(what string, begun, over int) {
	o.t.Helper()
	if b, e := o.troubleLines(what); b != begun || e != over {
		o.t.Errorf("%s: begun %d, over %d times, want %d, %d:\n%s", what, b, e, begun, over, o.log.String())
	}
}

// troubleLines returns how often the log reports the start and the end of a problem.
func (s *testServer) troubleLines(what string) (begun, over int) {
	for line := range strings.Lines(s.log.String()) {
		if gjson.Get(line, "what").String() != what {
			continue
		}
		if gjson.Get(line, "level").String() == "error" {
			begun++
		} else {
			over++
		}
	}
	return begun, over
}

// awaitCompaction waits for the compaction that follows a write that was rejected for lack of
// space.
func (s *testServer) awaitCompaction() {
	s.t.Helper()
	rev := s.wantMetric("apilet_store_revision")
	apitest.WaitFor(s.t, "the compaction", func() bool { return s.wantMetric("apilet_store_compact_revision") >= rev })
}

func TestOperatorSeesAQuotaThatIsExceeded(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a.db")
	o := operate(t, onFile(path))
	maps := o.namespace("shop")
	o.want(201, "POST", maps, configMap("a", "pad", strings.Repeat("x", 100_000)))
	o.says("quota", "ok", "")
	if quota := metricValue(o.testServer, "apilet_store_quota_bytes"); quota <= 0 || quota > 2<<30 {
		t.Errorf("the quota is %v without being asked for", quota)
	}
	used := metricValue(o.testServer, "apilet_store_used_bytes")
	o.halt()

	limit := int64(used) * 10 / 9
	o.flags = append(o.flags, fmt.Sprint("--quota-backend-bytes=", limit), "--compaction-interval=1s")
	o.start()
	if !strings.Contains(o.log.String(), fmt.Sprintf("of the %d bytes that --quota-backend-bytes allows are used", limit)) {
		t.Errorf("the start does not say that the quota is nearly reached:\n%s", o.log.String())
	}
	o.figure("apilet_store_quota_bytes", float64(limit))
	o.says("quota", "ok", "")
	for i, made := 0, true; made; o.awaitCompaction() {
		for made = false; o.send("POST", maps, configMap(fmt.Sprint("more-", i), "pad", strings.Repeat("x", 20_000))).code == 201; i++ {
			made = true
		}
	}
	o.says("quota", "warns", "--quota-backend-bytes")
	const writing = "writing (quota)"
	begun, over := o.troubleLines(writing)
	if begun != over+1 {
		t.Errorf("while writes are refused, the log has begun %d times and ended %d times:\n%s", begun, over, o.log)
	}
	o.want(200, "DELETE", maps, "")
	apitest.WaitFor(t, "room for a create", func() bool { return o.send("POST", maps, configMap("again")).code == 201 })
	o.says("quota", "ok", "")
	o.told(writing, begun, begun)
	o.halt()

	o.flags = append(o.flags, "--quota-backend-bytes=-1")
	o.start()
	o.figure("apilet_store_quota_bytes", -1) // the series does not exist
}

func TestOperatorSeesALostDataFile(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("a file in use cannot be removed")
	}
	path := filepath.Join(t.TempDir(), "a.db")
	o := operate(t, onFile(path))
	o.says("store", "ok", "")
	o.figure("apilet_store_writable", 1)
	os.Rename(path, path+".away")
	o.says("store", "failed", "put it back")
	o.figure("apilet_store_writable", 0)
	os.Rename(path+".away", path)
	o.says("store", "ok", "")
}

func TestOperatorSeesDamage(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("a file in use cannot be written")
	}
	path := filepath.Join(t.TempDir(), "a.db")
	// A write of a controller could come between the reading and the writing of a page.
	o := operate(t, onFile(path), "--controllers=false")
	maps := o.namespace("broken")
	for i := range 30 {
		o.want(201, "POST", maps, configMap(fmt.Sprintf("m%02d", i), "pad", strings.Repeat("x", 900)))
	}
	o.says("damage", "ok", "")
	storetest.ZeroPages(t, path, `"name":"m10"`)
	o.want(500, "GET", maps+"/m10", "")
	o.says("damage", "failed", "restore a backup")
	o.told("/readyz/damage", 1, 0)
}

func TestOperatorSeesCertificatesThatEnd(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ca, _ := apitest.NewCA(t)
	give := func(begins, ends time.Time) {
		cert, key := ca.IssuePair(t, &x509.Certificate{Subject: pkix.Name{CommonName: "apilet"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotBefore: begins, NotAfter: ends})
		for from, to := range map[string]string{key: "tls.key", cert: "tls.crt"} {
			text, err := os.ReadFile(from)
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, to), text, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	ends := time.Now().Add(time.Hour).Truncate(time.Second)
	give(time.Now().Add(-24*time.Hour), ends)
	o := operate(t, "--tls-cert-file="+filepath.Join(dir, "tls.crt"), "--tls-private-key-file="+filepath.Join(dir, "tls.key"), "--authorization-mode=AlwaysAllow")
	// Requests must also succeed after the certificate has expired.
	o.client.Transport = &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	apitest.WaitFor(t, "the log to hear of it, with nobody asking", func() bool { return strings.Contains(o.log.String(), `"what":"/readyz/certificates"`) })
	o.says("certificates", "warns", "the serving certificate ends soon (at "+ends.UTC().Format(time.RFC3339)+"): put a new one")
	o.figure(`apilet_certificate_expiration_timestamp_seconds{certificate="serving"}`, float64(ends.Unix()))
	ended := time.Now().Add(-time.Hour).Truncate(time.Second)
	give(time.Now().Add(-24*time.Hour), ended)
	o.awaitCertificate(ended)
	o.says("certificates", "warns", "the serving certificate has expired")
	o.told("/readyz/certificates", 1, 0)
	next := time.Now().Add(1000 * time.Hour).Truncate(time.Second)
	give(time.Now(), next)
	o.awaitCertificate(next)
	o.says("certificates", "ok", "")
	o.told("/readyz/certificates", 1, 1)
}

// awaitCertificate waits until the server has read the serving certificate with this end of
// validity.
func (o *operated) awaitCertificate(ends time.Time) {
	o.t.Helper()
	apitest.WaitFor(o.t, "the new certificate", func() bool {
		return metricValue(o.testServer, `apilet_certificate_expiration_timestamp_seconds{certificate="serving"}`) == float64(ends.Unix())
	})
}

// If the server creates its own certificates, it must report the expiration of all three.
func TestOperatorSeesTheServersOwnCertificates(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	o := operate(t, "--cert-dir="+filepath.Join(dir, "certs"), "--kubeconfig="+filepath.Join(dir, "kubeconfig"))
	admin, _ := kubetest.KubeconfigClient(t, filepath.Join(dir, "kubeconfig"))
	o.client = admin
	o.says("certificates", "ok", "")
	year := float64(time.Now().Add(364 * 24 * time.Hour).Unix())
	for name, least := range map[string]float64{"serving": year, "admin": year, "authority": 9 * year / 8} {
		if got := metricValue(o.testServer, `apilet_certificate_expiration_timestamp_seconds{certificate="`+name+`"}`); got < least {
			t.Errorf("%s ends at %v", name, got)
		}
	}
}

// Writes to /dev/full always fail.
func TestOperatorSeesAnAuditLogThatIsNotWritten(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("nothing here is always full")
	}
	o := operate(t, "--audit-log-path=/dev/full")
	o.want(200, "GET", "/version", "")
	o.says("audit", "warns", "no space left on device")
	o.figure("apilet_audit_failing", 1)
	if n := strings.Count(o.log.String(), `"cannot write the audit log; `); n != 1 {
		t.Errorf("told %d times:\n%s", n, o.log.String())
	}
}

func TestOperatorSeesTheFormatAndWhoLeads(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a.db")
	storetest.Open(t, path).Close()
	o := operate(t, onFile(path))
	o.figure("apilet_store_format", store.Format)
	apitest.WaitFor(t, "the server to lead", func() bool { return metricValue(o.testServer, "apilet_leader") == 1 })
}
