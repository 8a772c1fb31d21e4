package browser

// This file controls Chromium: the DevTools protocol consists of JSON messages, which
// --remote-debugging-pipe transfers over the descriptors 3 and 4. Each message ends with a zero
// byte. Each page has its own session and browser context to prevent it from sharing storage with
// other pages.

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

const patience = 90 * time.Second // for operations that take a second on an idle machine

// A browser is one Chromium process.
type browser struct {
	to   io.Writer
	gone chan struct{} // closed after its last message

	mu      sync.Mutex // guards the fields below, and writing
	next    int
	answers map[int]chan message
	pages   map[string]*page // by session
}

type message struct {
	ID        int             `json:"id,omitempty"`
	Method    string          `json:"method,omitempty"`
	Params    json.RawMessage `json:"params,omitempty"`
	Session   string          `json:"sessionId,omitempty"`
	Result    json.RawMessage `json:"result,omitempty"`
	Exception *struct {
		Message string `json:"message"`
	} `json:"error,omitempty"`
}

// startBrowser skips the test if Chromium is not installed.
func startBrowser(t *testing.T) *browser {
	t.Helper()
	binary := os.Getenv("CHROMIUM")
	if binary == "" {
		var err error
		if binary, err = exec.LookPath("chromium"); err != nil {
			t.Skip("no chromium on this machine")
		}
	}
	fromUs, toThem, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	fromThem, toUs, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	dir := profile(t)
	proc := exec.Command(binary, "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--no-default-browser-check", "--ignore-certificate-errors",
		"--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1", "--user-data-dir="+dir, "about:blank")
	proc.Env = append(os.Environ(), "HOME="+dir, "TMPDIR="+placeForSockets())
	proc.ExtraFiles = []*os.File{fromUs, toUs}
	if err := proc.Start(); err != nil {
		t.Fatal(err)
	}
	_, _ = fromUs.Close(), toUs.Close() // the browser has its own copies
	b := &browser{to: toThem, gone: make(chan struct{}), answers: map[int]chan message{}, pages: map[string]*page{}}
	go b.listen(fromThem)
	t.Cleanup(func() {
		_ = b.call("", "Browser.close", nil, nil)
		_ = proc.Wait()
		_, _ = toThem.Close(), fromThem.Close()
	})
	return b
}

// profile creates a directory for the browser. The browser's helpers may write to it after the
// browser has ended, so that deleting it may need several attempts.
func profile(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "apilet-browser-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for end := time.Now().Add(patience); os.RemoveAll(dir) != nil && time.Now().Before(end); {
			time.Sleep(50 * time.Millisecond)
		}
	})
	return dir
}

// placeForSockets returns a directory for temporary files whose path is short enough for sockets,
// which are limited to 107 bytes.
func placeForSockets() string {
	if dir := os.TempDir(); len(dir) < 60 {
		return dir
	}
	return "/tmp"
}

func (b *browser) listen(from io.Reader) {
	defer close(b.gone)
	for in := bufio.NewReaderSize(from, 1<<20); ; {
		raw, err := in.ReadBytes(0)
		if err != nil {
			return
		}
		var m message
		if json.Unmarshal(raw[:len(raw)-1], &m) != nil {
			continue
		}
		b.mu.Lock()
		answer, p := b.answers[m.ID], b.pages[m.Session]
		delete(b.answers, m.ID)
		b.mu.Unlock()
		switch {
		case answer != nil:
			answer <- m // the channel has room for one message
		case p != nil:
			p.told(m)
		}
	}
}

// call sends a command and waits for the result.
func (b *browser) call(session, method string, params, result any) error {
	raw, err := json.Marshal(params)
	if err != nil {
		return err
	}
	answer := make(chan message, 1)
	b.mu.Lock()
	b.next++
	m := message{ID: b.next, Method: method, Params: raw, Session: session}
	if params == nil {
		m.Params = nil
	}
	b.answers[m.ID] = answer
	raw, _ = json.Marshal(m)
	_, err = b.to.Write(append(raw, 0))
	b.mu.Unlock()
	if err != nil {
		return err
	}
	select {
	case got := <-answer:
		if got.Exception != nil {
			return fmt.Errorf("%s: %s", method, got.Exception.Message)
		}
		if result == nil {
			return nil
		}
		return json.Unmarshal(got.Result, result)
	case <-b.gone:
		return fmt.Errorf("%s: the browser has ended", method)
	case <-time.After(patience):
		return fmt.Errorf("%s: no answer", method)
	}
}

// A page is one tab.
type page struct {
	t       *testing.T
	b       *browser
	session string

	mu sync.Mutex // guards the fields below
	// errors that are reported by scripts, the console, or the security policy
	problems []string
	asked    []string // URLs of all requests
}

// open opens a URL in a window of the given size, in a new browser context.
func (b *browser) open(t *testing.T, url string, width, height int, dark bool) *page {
	t.Helper()
	var context struct {
		ID string `json:"browserContextId"`
	}
	var target struct {
		ID string `json:"targetId"`
	}
	var session struct {
		ID string `json:"sessionId"`
	}
	p := &page{t: t, b: b}
	p.must(b.call("", "Target.createBrowserContext", nil, &context))
	p.must(b.call("", "Target.createTarget", map[string]any{"url": "about:blank", "browserContextId": context.ID}, &target))
	p.must(b.call("", "Target.attachToTarget", map[string]any{"targetId": target.ID, "flatten": true}, &session))
	p.session = session.ID
	b.mu.Lock()
	b.pages[p.session] = p
	b.mu.Unlock()
	t.Cleanup(func() {
		_ = b.call("", "Target.disposeBrowserContext", map[string]any{"browserContextId": context.ID}, nil)
	})
	for _, domain := range []string{"Runtime", "Log", "Network", "Page"} {
		p.call(domain+".enable", nil, nil)
	}
	scheme := map[bool]string{false: "light", true: "dark"}[dark]
	p.call("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}, {"name": "prefers-reduced-motion", "value": "reduce"}}}, nil)
	p.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}, nil)
	p.call("Page.navigate", map[string]any{"url": url}, nil)
	return p
}

func (p *page) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *page) call(method string, params, result any) {
	p.t.Helper()
	p.must(p.b.call(p.session, method, params, result))
}

// told records errors of the page.
func (p *page) told(m message) {
	var event struct {
		Entry            struct{ Level, Text, URL string }
		Type             string
		Args             []struct{ Value any }
		ExceptionDetails struct {
			Text      string
			Exception struct{ Description string }
		}
		Request struct{ URL string }
	}
	_ = json.Unmarshal(m.Params, &event) // missing fields are empty
	p.mu.Lock()
	defer p.mu.Unlock()
	switch m.Method {
	case "Log.entryAdded":
		if event.Entry.Level == "error" || event.Entry.Level == "warning" {
			p.problems = append(p.problems, event.Entry.Text+" "+event.Entry.URL)
		}
	case "Runtime.consoleAPICalled":
		if event.Type == "error" || event.Type == "warning" || event.Type == "assert" {
			p.problems = append(p.problems, fmt.Sprint(event.Args))
		}
	case "Runtime.exceptionThrown":
		p.problems = append(p.problems, event.ExceptionDetails.Text+" "+event.ExceptionDetails.Exception.Description)
	case "Network.requestWillBeSent":
		p.asked = append(p.asked, event.Request.URL)
	}
}

// eval evaluates a JavaScript expression and returns its value. The expression may be a promise.
func (p *page) eval(expression string) any {
	p.t.Helper()
	var got struct {
		Result           struct{ Value any }
		ExceptionDetails *struct{ Exception struct{ Description string } }
	}
	p.call("Runtime.evaluate", map[string]any{"expression": expression, "awaitPromise": true, "returnByValue": true, "userGesture": true}, &got)
	if got.ExceptionDetails != nil {
		p.t.Fatalf("%s: %s", expression, got.ExceptionDetails.Exception.Description)
	}
	return got.Result.Value
}

// wait waits until an expression is true.
func (p *page) wait(what, expression string) {
	p.t.Helper()
	for end := time.Now().Add(patience); p.eval(expression) != true; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.t.Fatalf("%s: not within %v; the page says %q; its problems: %q", what, patience, p.text(), p.problems)
		}
	}
}

// hears waits until so returns true. It is used for messages that may arrive after the response of
// a command. so is called with p.mu locked.
func (p *page) hears(what string, so func() bool) {
	p.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		p.mu.Lock()
		done, late := so(), time.Now().After(end)
		if late && !done {
			p.t.Errorf("%s: not within %v; problems %q, requests %q", what, patience, p.problems, p.asked)
		}
		p.mu.Unlock()
		if done || late {
			return
		}
	}
}

// text returns the visible text.
func (p *page) text() any {
	var got struct{ Result struct{ Value any } }
	_ = p.b.call(p.session, "Runtime.evaluate", map[string]any{"expression": "document.body.innerText.slice(0, 3000)", "returnByValue": true}, &got)
	return got.Result.Value
}

// press sends a key like a keyboard.
func (p *page) press(key string) {
	p.t.Helper()
	params := map[string]any{"type": "keyDown", "key": key}
	codes := map[string]int{"Enter": 13, "Escape": 27, "Tab": 9, "ArrowRight": 39, "ArrowLeft": 37}
	if code, named := codes[key]; named {
		params["windowsVirtualKeyCode"], params["code"] = code, key
		if key == "Enter" {
			params["text"] = "\r"
		}
	} else {
		params["text"] = key
	}
	p.call("Input.dispatchKeyEvent", params, nil)
	p.call("Input.dispatchKeyEvent", map[string]any{"type": "keyUp", "key": key}, nil)
}

// picture returns a screenshot of the window as webp.
func (p *page) picture() []byte {
	p.t.Helper()
	var got struct{ Data string }
	p.call("Page.captureScreenshot", map[string]any{"format": "webp", "quality": 70}, &got)
	image, err := base64.StdEncoding.DecodeString(got.Data)
	p.must(err)
	return image
}

// clean fails the test if the page had errors or sent requests to other hosts.
func (p *page) clean(origin string) {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, problem := range p.problems {
		p.t.Error("the page complains: ", problem)
	}
	for _, url := range p.asked {
		if !strings.HasPrefix(url, origin+"/") && !strings.HasPrefix(url, "data:") {
			p.t.Error("the page asks somebody else: ", url)
		}
	}
}
