package main

// What an operator has to know, each brought about on a server: which check of /readyz says so and what it does to the server's readiness, which
// metric, which line in the log begins and ends it. A full disk is in faults_linux_test.go, a lost etcd and a replica that lags in testdata/etcd.

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
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"apilet/internal/apitest"
	"apilet/internal/apitest/kubetest"
	"apilet/internal/store"
	"apilet/internal/store/storetest"
)

// An operated server has a log that says everything.
type operated struct {
	*testServer
	log *apitest.Log
}

func operate(t *testing.T, edit ...func(*config)) *operated {
	log := &apitest.Log{}
	return &operated{startTest(t, append(edit, loud(log))...), log}
}

// says wants a check of /readyz to stand so: "ok", "warns" (which leaves the server ready) or "failed"; why is in the reason, and on its own page.
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

// told wants so many lines that begin and end a trouble.
func (o *operated) told(what string, begun, over int) {
	o.t.Helper()
	var lines [2]int
	for line := range strings.Lines(o.log.String()) {
		if gjson.Get(line, "what").String() != what {
			continue
		}
		if gjson.Get(line, "level").String() == "error" {
			lines[0]++
		} else {
			lines[1]++
		}
	}
	if lines != [2]int{begun, over} {
		o.t.Errorf("%s: begun %d, over %d times, want %d, %d:\n%s", what, lines[0], lines[1], begun, over, o.log.String())
	}
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

	o.conf.Quota = int64(used) * 10 / 9
	o.start()
	if !strings.Contains(o.log.String(), fmt.Sprintf("of the %d bytes that --quota-backend-bytes allows are used", o.conf.Quota)) {
		t.Errorf("the start does not say that the quota is nearly reached:\n%s", o.log.String())
	}
	o.figure("apilet_store_quota_bytes", float64(o.conf.Quota))
	o.says("quota", "ok", "")
	for i := 0; o.send("POST", maps, configMap(fmt.Sprint("more-", i), "pad", strings.Repeat("x", 20_000))).code == 201; i++ {
	}
	o.says("quota", "warns", "--quota-backend-bytes")
	o.told("writing (quota)", 1, 0)
	o.want(200, "DELETE", maps, "")
	o.compactNow(o.st.Revision())
	o.want(201, "POST", maps, configMap("again"))
	o.says("quota", "ok", "")
	o.told("writing (quota)", 1, 1)
	o.halt()

	o.conf.Quota = -1
	o.start()
	o.figure("apilet_store_quota_bytes", -1) // no such series
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
	o := operate(t, onFile(path))
	maps := o.namespace("broken")
	for i := range 30 {
		o.want(201, "POST", maps, configMap(fmt.Sprintf("m%02d", i), "pad", strings.Repeat("x", 900)))
	}
	o.says("damage", "ok", "")
	o.rest()
	storetest.ZeroPages(t, path, `"name":"m10"`)
	o.want(500, "GET", maps+"/m10", "")
	o.says("damage", "failed", "restore a backup")
	o.told("/readyz/damage", 1, 0)
	o.st.File.Found.Forget() // as a scrub does that finds nothing
	o.says("damage", "ok", "")
	o.told("/readyz/damage", 1, 1)
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
	var ahead atomic.Int64
	o := operate(t, func(c *config) {
		c.TLSCert, c.TLSKey = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
		c.clock = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	})
	o.client.Transport = &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} // it is to be asked also when it has expired
	apitest.WaitFor(t, "the log to hear of it, with nobody asking", func() bool { return strings.Contains(o.log.String(), `"what":"/readyz/certificates"`) })
	o.says("certificates", "warns", "the serving certificate ends soon (at "+ends.UTC().Format(time.RFC3339)+"): put a new one")
	o.figure(`apilet_certificate_expiration_timestamp_seconds{certificate="serving"}`, float64(ends.Unix()))
	ahead.Store(int64(2 * time.Hour))
	o.says("certificates", "warns", "the serving certificate has expired")
	o.told("/readyz/certificates", 1, 0)
	next := time.Now().Add(1000 * time.Hour).Truncate(time.Second)
	give(time.Now(), next)
	apitest.WaitFor(t, "the new certificate", func() bool {
		return metricValue(o.testServer, `apilet_certificate_expiration_timestamp_seconds{certificate="serving"}`) == float64(next.Unix())
	})
	o.says("certificates", "ok", "")
	o.told("/readyz/certificates", 1, 1)
}

// A server that makes its certificates tells of all three, and of the authority in its last two weeks, which only a restart renews.
func TestOperatorSeesTheServersOwnCertificates(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var ahead atomic.Int64
	o := operate(t, func(c *config) {
		c.CertDir, c.Kubeconfig = filepath.Join(dir, "certs"), filepath.Join(dir, "kubeconfig")
		c.clock = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	})
	admin, _ := kubetest.KubeconfigClient(t, o.conf.Kubeconfig)
	o.client = admin
	o.says("certificates", "ok", "")
	year := float64(time.Now().Add(364 * 24 * time.Hour).Unix())
	for name, least := range map[string]float64{"serving": year, "admin": year, "authority": 9 * year / 8} {
		if got := metricValue(o.testServer, `apilet_certificate_expiration_timestamp_seconds{certificate="`+name+`"}`); got < least {
			t.Errorf("%s ends at %v", name, got)
		}
	}
	ahead.Store(int64(10*365*24*time.Hour - 10*24*time.Hour))
	if err := o.entrance.endpoint.Valid(); err == nil || !strings.Contains(err.Error(), "the authority certificate ends soon") || !strings.Contains(err.Error(), "restart the server") {
		t.Errorf("ten days before the authority's end: %v", err)
	}
}

func TestOperatorSeesAClockThatIsBehind(t *testing.T) {
	t.Parallel()
	var ahead atomic.Int64
	ahead.Store(-int64(time.Since(time.Unix(0, 0))))
	o := operate(t, func(c *config) { c.clock = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) } })
	o.says("clock", "warns", "the machine's clock is behind")
	o.told("/readyz/clock", 1, 0)
	ahead.Store(0)
	o.says("clock", "ok", "")
	o.told("/readyz/clock", 1, 1)
}

// /dev/full is a file that takes nothing.
func TestOperatorSeesAnAuditLogThatIsNotWritten(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("nothing here is always full")
	}
	o := operate(t, func(c *config) { c.Audit.Path = "/dev/full" })
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
