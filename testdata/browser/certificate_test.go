package browser

// This file simulates an attack on the server by a page of another site. The browser of the visitor
// has a client certificate. The browser does not have the certificate. Instead, a tunnel uses it
// for each connection of the browser and passes the bytes on unchanged. This makes no difference to
// the server.

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// certificateIn reads the client certificate from a server's kubeconfig.
func certificateIn(t *testing.T, path string) tls.Certificate {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var kubeconfig struct {
		Users []struct {
			User struct {
				Certificate []byte `json:"client-certificate-data"`
				Key         []byte `json:"client-key-data"`
			} `json:"user"`
		} `json:"users"`
	}
	if err := json.Unmarshal(text, &kubeconfig); err != nil || len(kubeconfig.Users) != 1 {
		t.Fatal(err, len(kubeconfig.Users))
	}
	pair, err := tls.X509KeyPair(kubeconfig.Users[0].User.Certificate, kubeconfig.Users[0].User.Key)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

// tunnel accepts connections with its own certificate and forwards all bytes to the server, where
// it uses the client certificate.
func tunnel(t *testing.T, to string, client *tls.Config) (url string) {
	t.Helper()
	own := httptest.NewTLSServer(nil)
	t.Cleanup(own.Close)
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: own.TLS.Certificates, NextProtos: []string{"http/1.1"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	pass := func(browser net.Conn) {
		defer browser.Close()
		server, err := tls.Dial("tcp", to, client)
		if err != nil {
			return
		}
		defer server.Close()
		go func() {
			_, _ = io.Copy(server, browser)
			server.Close()
		}()
		_, _ = io.Copy(browser, server)
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go pass(conn)
		}
	}()
	return "https://" + listener.Addr().String()
}

// attacks is a promise. It is fulfilled after all attacks have been sent. SERVER is replaced by the
// server's address.
const attacks = `(async () => {
	const write = name => JSON.stringify({apiVersion: 'v1', kind: 'ConfigMap', metadata: {name}});
	const path = 'SERVER/api/v1/namespaces/default/configmaps';
	const done = new Promise(resolve => setTimeout(resolve, 3000)); // for what tells nobody when it ends
	const all = [
		fetch(path, {method: 'POST', mode: 'no-cors', credentials: 'include', body: new Blob([write('blob')])}),
		fetch(path, {method: 'POST', mode: 'no-cors', credentials: 'include', body: write('text')}),
		fetch(path, {method: 'POST', mode: 'cors', credentials: 'include', headers: {'Content-Type': 'application/json'}, body: write('json')}),
		fetch(path + '/seed', {method: 'DELETE', mode: 'cors', credentials: 'include'}),
		fetch(path + '?watch=1', {mode: 'no-cors', credentials: 'include'}),
		fetch('SERVER/debug/backup', {mode: 'no-cors', credentials: 'include'}),
	];
	navigator.sendBeacon(path, new Blob([write('beacon')]));
	const put = (html) => document.body.insertAdjacentHTML('beforeend', html);
	put('<iframe name=f></iframe><form target=f method=post enctype=text/plain action="' + path + '"><input name=\'{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"form"},"x":"\' value=\'"}\'></form>');
	document.querySelector('form').submit();
	put('<img src="' + path + '"><iframe src="' + path + '"></iframe><object data="SERVER/debug/backup"></object>');
	put('<iframe sandbox="allow-scripts" srcdoc="' + ('<script>fetch(\'' + path + '\', {method: \'POST\', mode: \'no-cors\', credentials: \'include\', body: new Blob([JSON.stringify({apiVersion: \'v1\', kind: \'ConfigMap\', metadata: {name: \'sandbox\'}})])})</script>').replaceAll('"', '&quot;') + '"></iframe>');
	const script = document.createElement('script');
	script.src = path;
	document.body.append(script);
	new WebSocket(path.replace('https', 'wss') + '?watch=1');
	const results = await Promise.allSettled(all);
	await done;
	return results.map(r => r.status === 'fulfilled' ? r.value.type : 'refused').join(' ');
})()`

// handshakes opens WebSocket connections from the page, a worker, and a frame without an origin.
const handshakes = `(() => {
	const open = 'new WebSocket("SERVER/api/v1/namespaces/default/configmaps?watch=1".replace("https", "wss"))';
	eval(open);
	new Worker(URL.createObjectURL(new Blob([open])));
	const frame = document.createElement('iframe');
	frame.sandbox = 'allow-scripts';
	frame.srcdoc = '<script>' + open + '</script>';
	document.body.append(frame);
})()`

// TestPagesOfOthersDoNothingWithACertificate checks that a page with a different origin cannot read
// or write with the certificate of the user. The page of the server itself must succeed to show
// that the test is valid.
func TestPagesOfOthersDoNothingWithACertificate(t *testing.T) {
	b := startBrowser(t)
	s := startServer(t, "--cert-dir", filepath.Join(t.TempDir(), "certs"))
	client := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}, Certificates: []tls.Certificate{certificateIn(t, s.KubeconfigFile)}}
	url := tunnel(t, strings.TrimPrefix(s.URL(), "https://"), client)
	ask := &http.Client{Transport: &http.Transport{TLSClientConfig: client}, Timeout: patience}
	read := func(path string) string {
		answer, err := ask.Get(s.URL() + path)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		text, _ := io.ReadAll(answer.Body)
		return string(text)
	}
	const maps = "/api/v1/namespaces/default/configmaps"
	own := b.open(t, url+"/debug/ui/", 800, 600, false)
	own.wait("the page", `document.readyState === 'complete'`)
	if got := own.eval(fmt.Sprintf(`fetch(%q, {method: 'POST', headers: {'Content-Type': 'application/json'}, body: '{"metadata":{"name":"seed"}}'}).then(a => a.status)`, maps)); got != 201.0 {
		t.Fatalf("the server's own page gets %v", got)
	}
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(w, "<!doctype html><title>another site</title><body>")
	}))
	defer elsewhere.Close()
	refused := func() (n int) {
		for line := range strings.Lines(read("/metrics")) {
			var count int
			if strings.HasPrefix(line, "apiserver_request_total{") && strings.Contains(line, `code="403"`) {
				_, _ = fmt.Sscan(line[strings.LastIndexByte(line, ' ')+1:], &count)
				n += count
			}
		}
		return n
	}
	before := refused()
	p := b.open(t, elsewhere.URL, 800, 600, false)
	p.wait("the other site's page", `document.readyState === 'complete'`)
	results := p.eval(strings.ReplaceAll(attacks, "SERVER", url))
	for end := time.Now().Add(patience); refused() < before+10 && time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
	}
	if n := refused() - before; n < 10 {
		t.Errorf("%d requests were refused; the page says %v", n, results)
	} else {
		t.Logf("%d requests were refused; the page says %v", n, results)
	}
	// Chromium sends no Sec-Fetch-Site with these requests, only an Origin, which programs also
	// send.
	before = refused()
	p.eval(strings.ReplaceAll(handshakes, "SERVER", url))
	for end := time.Now().Add(patience); refused() < before+3 && time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
	}
	if n := refused() - before; n != 3 {
		t.Errorf("%d of 3 WebSocket handshakes were refused", n)
	}
	var list struct {
		Items []struct {
			Metadata struct{ Name string } `json:"metadata"`
		} `json:"items"`
	}
	if err := json.Unmarshal([]byte(read(maps)), &list); err != nil {
		t.Fatal(err)
	}
	names := []string{}
	for _, item := range list.Items {
		names = append(names, item.Metadata.Name)
	}
	if got := strings.Join(names, " "); got != "kube-root-ca.crt seed" {
		t.Errorf("the ConfigMaps are %s", got)
	}
	// A page of another site cannot display the pages of the server, except for /debug/ui/ when the
	// user follows a link.
	p.call("Page.navigate", map[string]any{"url": url + maps}, nil)
	p.wait("an address that the user typed", `document.body.innerText.includes('seed')`)
	p.call("Page.navigate", map[string]any{"url": elsewhere.URL}, nil)
	p.wait("the other site's page", `document.title === 'another site'`)
	p.eval(fmt.Sprintf(`setTimeout(() => { location.href = %q; }, 0)`, url+maps))
	p.wait("a link of another site", `document.body.innerText.includes('page of another site')`)
}
