package browser

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "take the pictures of docs/pictures anew")

var tabs = []string{"timeline", "objects", "flow", "watches", "findings", "deprecated", "store"}

const (
	connected = `document.querySelector('#status')?.textContent === 'connected'`
	live      = `document.querySelector('#panel-timeline [role=status]')?.textContent.startsWith('live')`
)

// ui returns the URL of the page with a panel.
func (s *server) ui(panel string) string { return s.URL() + "/debug/ui/#/" + panel }

// opened is a prefix for expressions. It expands all changes of the timeline.
const opened = `document.querySelectorAll('.change-row').forEach(row => { row.open = true; }); `

// shown returns an expression that is true if the panel contains the text.
func shown(panel, text string) string {
	return fmt.Sprintf(`(document.querySelector('#panel-%s')?.innerText.includes(%q) === true)`, panel, text)
}

func TestPage(t *testing.T) {
	b := startBrowser(t)
	for _, test := range []struct {
		name string
		run  func(*testing.T, *browser)
	}{
		{"no panel breaks the policy, complains, or asks anybody else", testQuiet},
		{"a change made meanwhile is in the timeline", testTimeline},
		{"names that are HTML stay text", testHTML},
		{"everything is reached by keyboard", testKeyboard},
		{"nothing is wider than 400 pixels", testNarrow},
		{"dark where the user likes it", testDark},
		{"seats are seen on their card, light and dark", testSeats},
		{"the slider travels in time", testTravel},
		{"owners and dependents are a tree", testTree},
		{"what is long comes in pages", testLong},
		{"a token typed in opens a server with an authenticator", testToken},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, b) })
	}
}

func testQuiet(t *testing.T, b *browser) {
	s := startServer(t)
	s.configMap("a", "k", "v")
	p := b.open(t, s.ui("timeline"), 1200, 800, false)
	p.wait("the document", connected)
	for _, tab := range tabs {
		p.eval(fmt.Sprintf(`document.getElementById('tab-%s').click()`, tab))
		p.wait(tab, fmt.Sprintf(`!document.getElementById('panel-%s').hidden && document.getElementById('panel-%[1]s').innerText.length > 10`, tab))
	}
	p.hears("the requests of the page are seen", func() bool { return len(p.asked) >= 8 })
	p.clean(s.URL())
	// The policy rejects unsafe operations. (These cause console errors, so they come last.)
	if got := p.eval(`(() => { try { document.body.innerHTML = '<b>x</b>'; return 'done'; } catch { return 'refused'; } })()`); got != "refused" {
		t.Errorf("innerHTML: %v", got)
	}
	if got := p.eval(`fetch('http://127.0.0.1:1/').then(() => 'sent', () => 'refused')`); got != "refused" {
		t.Errorf("fetch: %v", got)
	}
	p.hears("violations are seen here, else their absence says nothing", func() bool {
		return strings.Contains(strings.Join(p.problems, " "), "Content Security Policy")
	})
}

func testTimeline(t *testing.T, b *browser) {
	s := startServer(t)
	p := b.open(t, s.ui("timeline"), 1200, 800, false)
	p.wait("the stream", live)
	s.configMap("made-meanwhile", "greeting", "hello")
	p.wait("the new object", shown("timeline", "made-meanwhile"))
	s.write("rude-controller/1.0", "PATCH", "/api/v1/namespaces/default/configmaps/made-meanwhile", `{"data":{"greeting":"go away"}}`)
	p.wait("what has changed", shown("timeline", "hello → go away"))
	p.wait("who did it", shown("timeline", "rude-controller"))
	p.press("j")
	p.press("Enter")
	p.wait("its details", `document.activeElement.closest('details')?.querySelector('.old')?.textContent === 'hello'`)
	s.write("kubectl-delete", "DELETE", "/api/v1/namespaces/default/configmaps/made-meanwhile", "")
	p.wait("the deletion", `document.querySelector('.change-row.removed .what')?.textContent.includes('made-meanwhile')`)
	p.eval(`document.querySelector('#panel-timeline input[name=name]').value = 'other'; document.querySelector('#panel-timeline form').requestSubmit()`)
	p.wait("the filter", `!`+shown("timeline", "made-meanwhile"))
	s.configMap("other", "a", "b")
	p.wait("what passes the filter", `document.querySelectorAll('#panel-timeline .change-row').length === 1 && `+shown("timeline", "other"))
	p.clean(s.URL())
}

func testHTML(t *testing.T, b *browser) {
	s := startServer(t)
	const evil = `<img src=x onerror=window.hit=1>`
	s.write(evil, "POST", "/apis/rbac.authorization.k8s.io/v1/clusterroles", fmt.Sprintf(`{"metadata":{"name":%q,"annotations":{"a":%q}}}`, evil, evil))
	s.write("<script>window.hit=1</script>", "PATCH", "/apis/rbac.authorization.k8s.io/v1/clusterroles/"+strings.NewReplacer(" ", "%20", "<", "%3C", ">", "%3E").Replace(evil),
		`{"metadata":{"annotations":{"a":"</pre><svg onload=window.hit=1>","example.com/b":"<b>b</b>"}}}`)
	s.configMap("c", "k", evil)
	p := b.open(t, s.ui("timeline"), 1200, 800, false)
	p.wait("the name", shown("timeline", evil))
	p.wait("the value", opened+shown("timeline", "</pre><svg onload=window.hit=1>"))
	p.eval(`fetch('/api/v1/configmaps?watch=1&labelSelector=a')`)
	p.eval(`location.hash = '#/objects/rbac.authorization.k8s.io/clusterroles/-/' + encodeURIComponent('` + evil + `')`)
	p.wait("the object", `document.querySelector('#panel-objects pre')?.textContent.includes('<b>b</b>') === true`)
	p.press("4")
	p.wait("the watches", shown("watches", "configmaps"))
	if got := p.eval(`window.hit || document.querySelectorAll('main img, main script, main svg[onload], main pre b').length`); got != 0.0 {
		t.Errorf("text has become HTML: %v", got)
	}
	p.clean(s.URL())
}

func testKeyboard(t *testing.T, b *browser) {
	s := startServer(t)
	p := b.open(t, s.ui("timeline"), 1200, 800, false)
	p.wait("the document", connected)
	selected := func(tab string) string {
		return fmt.Sprintf(`document.querySelector('[role=tab][aria-selected=true]').id === 'tab-%s' && !document.getElementById('panel-%[1]s').hidden`, tab)
	}
	for i, tab := range tabs {
		p.press(fmt.Sprint(i + 1))
		p.wait("panel "+tab, selected(tab))
	}
	p.press("ArrowRight")
	p.wait("around the corner", selected("timeline")+` && document.activeElement.id === 'tab-timeline'`)
	p.press("ArrowLeft")
	p.wait("and back", selected("store"))
	p.press("2")
	p.press("/")
	p.wait("the filter", `document.activeElement.name === 'kind'`)
	p.press("Escape")
	p.press("?")
	p.wait("the help", `document.getElementById('help-dialog').open`)
	p.press("Escape")
	p.wait("its end", `!document.getElementById('help-dialog').open`)
	p.press("[")
	p.wait("the past", `document.body.classList.contains('past') && document.getElementById('moment-text').textContent.startsWith('Revision')`)
	p.press("Escape")
	p.wait("the present", `!document.body.classList.contains('past')`)
	unnamed := p.eval(`[...document.querySelectorAll('button, input, select')].filter(e => !(e.textContent.trim() || e.ariaLabel || e.labels?.length)).length`)
	if unnamed != 0.0 {
		t.Errorf("%v controls have no name", unnamed)
	}
	p.clean(s.URL())
}

func testNarrow(t *testing.T, b *browser) {
	s := startServer(t)
	long := strings.Repeat("long", 60)
	s.configMap(long, "k", strings.Repeat("value", 400))
	s.write("updater/"+long, "PATCH", "/api/v1/namespaces/default/configmaps/"+long, `{"data":{"k":"`+strings.Repeat("other", 400)+`"}}`)
	p := b.open(t, s.ui("timeline"), 400, 800, false)
	p.wait("the change", opened+"("+shown("timeline", "PATCH")+"||"+shown("timeline", "patch")+")")
	if cut := p.eval(`[...document.querySelectorAll('#tabs button')].filter(e => e.getBoundingClientRect().right > innerWidth).map(e => e.textContent).join(' ')`); cut != "" {
		t.Errorf("the tabs %v are cut off", cut)
	}
	for _, tab := range append(tabs, "objects/-/configmaps/default/"+long) {
		p.eval(fmt.Sprintf(`location.hash = '#/%s'`, tab))
		id, _, _ := strings.Cut(tab, "/")
		p.wait(tab, fmt.Sprintf(`!document.getElementById('panel-%s').hidden`, id))
		p.eval(`new Promise(done => setTimeout(done, 700))`)
		if width := p.eval(`document.documentElement.scrollWidth`).(float64); width > 400 {
			t.Errorf("%s is %v pixels wide: %v", id, width, p.eval(`[...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > 401).slice(0, 5).map(e => e.tagName + '.' + e.className).join(' ')`))
		}
	}
	p.clean(s.URL())
}

func testDark(t *testing.T, b *browser) {
	s := startServer(t)
	brightness := func(dark bool) float64 {
		p := b.open(t, s.ui("timeline"), 1200, 800, dark)
		p.wait("the document", connected)
		return p.eval(`getComputedStyle(document.body).backgroundColor.match(/\d+/g).map(Number).reduce((a, b) => a + b)`).(float64)
	}
	if light, dark := brightness(false), brightness(true); light < 600 || dark > 150 {
		t.Errorf("light is %v, dark %v, of 765", light, dark)
	}
}

// testSeats checks the contrast between the colors of seats and their card according to WCAG.
func testSeats(t *testing.T, b *browser) {
	s := startServer(t)
	for _, dark := range []bool{false, true} {
		p := b.open(t, s.ui("flow"), 1200, 800, dark)
		p.wait("a level", `document.querySelector('#panel-flow .card') !== null`)
		for _, kind := range []string{"own", "borrowed", "lent"} {
			got := p.eval(fmt.Sprintf(`(() => {
				const luminance = text => text.match(/\d+/g).slice(0, 3).map(v => v / 255).map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4).reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
				const contrast = (a, b) => { const [x, y] = [luminance(a), luminance(b)].sort((m, n) => n - m); return (x + .05) / (y + .05); };
				const card = document.querySelector('#panel-flow .card'), drawn = document.createElementNS('http://www.w3.org/2000/svg', 'rect');
				drawn.setAttribute('class', %q);
				card.querySelector('svg').append(drawn);
				const at = getComputedStyle(drawn), ground = getComputedStyle(card).backgroundColor;
				return [contrast(at.fill, ground), contrast(at.stroke, ground)].map(n => n.toFixed(2)).join(' ');
			})()`, kind)).(string)
			var fill, edge float64
			if _, err := fmt.Sscan(got, &fill, &edge); err != nil || fill < 1.5 || edge < 3 {
				t.Errorf("dark %v: contrasts of %s with the card: fill and edge %s, %v", dark, kind, got, err)
			}
		}
	}
}

func testTravel(t *testing.T, b *browser) {
	s := startServer(t)
	made := s.configMap("gone", "k", "v")
	s.write("kubectl", "DELETE", "/api/v1/namespaces/default/configmaps/gone", "")
	s.configMap("stays", "k", "v")
	p := b.open(t, s.ui("objects/-/configmaps/default/stays"), 1200, 800, false)
	p.wait("what is there", shown("objects", "stays"))
	p.eval(`document.querySelector('#panel-objects select').dispatchEvent(new Event('change'))`)
	p.wait("the list of now", `[...document.querySelectorAll('#panel-objects tbody tr')].some(tr => tr.textContent.includes('stays')) && !`+shown("objects", "gone"))
	p.eval(fmt.Sprintf(`(() => { const s = document.getElementById('slider'); s.value = %s; s.dispatchEvent(new Event('input')); })()`, made))
	p.wait("the list of then", `[...document.querySelectorAll('#panel-objects tbody tr')].some(tr => tr.textContent.includes('gone')) && !`+shown("objects", "stays"))
	p.wait("when that was", `/Revision \d+ · \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} (UTC|[+−]\d\d:\d\d)$/.test(document.getElementById('moment-text').textContent)`)
	p.press("Escape")
	p.wait("now again", `[...document.querySelectorAll('#panel-objects tbody tr')].some(tr => tr.textContent.includes('stays'))`)
	p.clean(s.URL())
}

func testTree(t *testing.T, b *browser) {
	s := startServer(t)
	s.shop()
	p := b.open(t, s.ui("objects/apps/replicasets/default/web-1"), 1200, 900, false)
	p.wait("the tree", `document.querySelectorAll('.tree ul ul ul button').length === 2`)
	path := p.eval(`[...document.querySelectorAll('.tree li > :first-child')].map(e => e.textContent.trim()).join(' > ')`)
	if want := "Deployment web > ReplicaSet web-1 > Pod web-1-a > Pod web-1-b"; path != want {
		t.Errorf("the tree is %v, want %s", path, want)
	}
	p.eval(`document.querySelector('.tree ul ul ul button').click()`)
	p.wait("the pod", `document.querySelector('.detail h2').textContent.includes('web-1-a')`)
	p.clean(s.URL())
}

// testLong creates a large number of objects, dependents and changes.
func testLong(t *testing.T, b *browser) {
	s := startServer(t)
	owner := s.create("kubectl", "/api/v1/namespaces/default/configmaps", `{"metadata":{"name":"owner"}}`)
	for i := range 700 {
		s.write("kubectl", "POST", "/api/v1/namespaces/default/configmaps", fmt.Sprintf(
			`{"metadata":{"name":"c%03d","labels":{"third":"%d"},"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"owner","uid":%q}]}}`, i, i%3, owner))
	}
	p := b.open(t, s.ui("timeline"), 1200, 800, false)
	count := func(selector string) string { return fmt.Sprintf(`document.querySelectorAll('%s').length`, selector) }
	click := func(panel, text string) {
		p.eval(fmt.Sprintf(`[...document.querySelectorAll('#panel-%s button')].find(b => b.textContent === %q && !b.hidden).click()`, panel, text))
	}
	p.wait("the last changes", count("#panel-timeline .change-row")+` === 300 && `+shown("timeline", "c699"))
	click("timeline", "Earlier")
	p.wait("those before them", count("#panel-timeline .change-row")+` === 600`)
	click("timeline", "Earlier")
	p.wait("the first", shown("timeline", "c000")+` && `+shown("timeline", "c699"))
	p.eval(`location.hash = '#/objects/-/configmaps/default/owner'`)
	p.wait("the first objects, and how many more there are", count("#panel-objects tbody tr")+` === 500 && `+shown("objects", "201 more"))
	p.wait("a part of the tree", count("#panel-objects .tree ul ul li")+` === 300 && `+shown("objects", "401 more"))
	click("objects", "401 more")
	p.wait("more of it", count("#panel-objects .tree ul ul li")+` === 400 && `+shown("objects", "301 more"))
	click("objects", "More")
	p.wait("all objects", count("#panel-objects tbody tr")+` === 701`)
	p.eval(`(() => { const l = document.querySelector('#panel-objects input[name=labelSelector]'); l.value = 'third=1'; l.dispatchEvent(new Event('change')); })()`)
	p.wait("those with a label", count("#panel-objects tbody tr")+` === 233`)
	p.clean(s.URL())
}

func testToken(t *testing.T, b *browser) {
	tokens := filepath.Join(t.TempDir(), "tokens.csv")
	if err := os.WriteFile(tokens, []byte("right-token,admin,1,system:masters\nwrong-token,somebody,2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := startServer(t, "--token-auth-file", tokens)
	p := b.open(t, s.ui("timeline"), 1200, 800, false)
	p.wait("the question", `document.getElementById('token-dialog')?.open`)
	show := func(token string) {
		p.eval(fmt.Sprintf(`document.getElementById('token').value = %q; document.querySelector('#token-dialog button.primary').click()`, token))
	}
	show("wrong-token")
	p.wait("the refusal", `document.getElementById('problem').textContent.includes('User "somebody" cannot get path')`)
	p.eval(`document.getElementById('token-button').click()`)
	show("right-token")
	p.wait("the document", connected)
	p.wait("the stream", live)
	if kept := p.eval(`localStorage.length + document.cookie.length`); kept != 0.0 {
		t.Error("the token is kept beyond the tab")
	}
}

// shop creates a Deployment and the objects that are normally created by controllers.
func (s *server) shop() {
	s.t.Helper()
	template := `"template":{"metadata":{"labels":{"app":"web"}},"spec":{"containers":[{"name":"web","image":"nginx:1.27"}]}}`
	apps, pods := "/apis/apps/v1/namespaces/default/", "/api/v1/namespaces/default/pods"
	uid := s.create("kubectl-create", apps+"deployments", `{"metadata":{"name":"web"},"spec":{"replicas":2,"selector":{"matchLabels":{"app":"web"}},`+template+`}}`)
	owner := func(version, kind, name, uid string) string {
		return fmt.Sprintf(`"ownerReferences":[{"apiVersion":%q,"kind":%q,"name":%q,"uid":%q,"controller":true}]`, version, kind, name, uid)
	}
	uid = s.create("deployment-controller", apps+"replicasets", `{"metadata":{"name":"web-1",`+owner("apps/v1", "Deployment", "web", uid)+`},"spec":{"replicas":2,"selector":{"matchLabels":{"app":"web"}},`+template+`}}`)
	for _, name := range []string{"web-1-a", "web-1-b"} {
		s.create("replicaset-controller", pods, `{"metadata":{"name":"`+name+`","labels":{"app":"web"},`+owner("apps/v1", "ReplicaSet", "web-1", uid)+`},"spec":{"containers":[{"name":"web","image":"nginx:1.27"}]}}`)
	}
}
