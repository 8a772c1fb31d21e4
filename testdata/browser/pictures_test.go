package browser

// This file takes the screenshots that are used in the documents. They show a fight between two
// controllers and a server that is overloaded.

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

func TestPictures(t *testing.T) {
	if !*update {
		t.Skip("taken with -update")
	}
	b := startBrowser(t)
	s := startServer(t)
	s.shop()
	s.configMap("settings", "greeting", "hello")
	s.fight()
	p := b.open(t, s.ui("timeline"), 1200, 760, false)
	p.wait("the stream", live)
	s.write("kubectl-edit", "PATCH", "/api/v1/namespaces/default/configmaps/settings", `{"data":{"greeting":"good day","colour":"green"}}`)
	s.write("kubectl-scale", "PATCH", "/apis/apps/v1/namespaces/default/deployments/web", `{"spec":{"replicas":4}}`)
	p.wait("the changes", shown("timeline", "kubectl-scale"))
	p.eval(`document.querySelectorAll('.change-row')[1].open = true`)
	p.save("page-timeline")

	p = b.open(t, s.ui("timeline"), 400, 760, false)
	p.wait("the stream", live)
	p.wait("changes", `document.querySelectorAll('.change-row').length > 3`)
	p.save("page-narrow")

	p = b.open(t, s.ui("objects/apps/deployments/default/web"), 1200, 760, true)
	p.wait("the tree", `document.querySelectorAll('.tree button').length === 3`)
	p.eval(`(() => { const s = document.getElementById('slider'); s.value = s.max - 6; s.dispatchEvent(new Event('input')); })()`)
	p.wait("the time", `document.getElementById('moment-text').textContent.includes('·')`)
	p.eval(`new Promise(done => setTimeout(done, 1500))`)
	p.wait("the tree of then", `document.querySelectorAll('.tree button').length === 3 && document.querySelectorAll('.detail .change-row').length > 3`)
	p.save("page-objects")

	p = b.open(t, s.ui("findings"), 1200, 420, false)
	p.wait("the fight", `document.querySelector('.finding .value-of') !== null`)
	p.save("page-findings")

	p = b.open(t, s.ui("store"), 1200, 760, true)
	stop := s.load(40)
	p.wait("a plot", `document.querySelector('.plot .p50.line')?.getAttribute('d').split('L').length > 15`)
	stop()
	p.save("page-store")

	pictureOfFlows(t, b)
}

// pictureOfFlows needs users, because on the plain port all clients are administrators, who are
// exempt from flow control.
func pictureOfFlows(t *testing.T, b *browser) {
	tokens := filepath.Join(t.TempDir(), "tokens.csv")
	users := []string{"alice", "bob", "nightly-report", "search-index"}
	text := "root-token,admin,1,system:masters\n"
	for _, user := range users {
		text += fmt.Sprintf("%s-token,%s,2,team\n", user, user)
	}
	if err := os.WriteFile(tokens, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s := startServer(t, "--token-auth-file", tokens, "--max-requests-inflight", "24", "--max-mutating-requests-inflight", "12")
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, MaxIdleConnsPerHost: 300, ForceAttemptHTTP2: false}}
	ask := func(ctx context.Context, token, method, path, body string) {
		r, err := http.NewRequestWithContext(ctx, method, s.URL()+path, strings.NewReader(body))
		if err != nil {
			return
		}
		r.Header.Set("Authorization", "Bearer "+token)
		r.Header.Set("Content-Type", "application/json")
		if answer, err := client.Do(r); err == nil {
			_, _ = io.Copy(io.Discard, answer.Body)
			_ = answer.Body.Close()
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	ask(ctx, "root-token", "POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", `{"metadata":{"name":"team"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},
		"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"Group","name":"team"}]}`)
	for i := range 300 {
		ask(ctx, "root-token", "POST", "/api/v1/namespaces/default/configmaps", fmt.Sprintf(`{"metadata":{"name":"c%d"},"data":{"k":%q}}`, i, strings.Repeat("x", 20_000)))
	}
	var all sync.WaitGroup
	for i, user := range users {
		for range []int{4, 6, 60, 25}[i] {
			all.Go(func() {
				for ctx.Err() == nil {
					ask(ctx, user+"-token", "GET", "/api/v1/namespaces/default/configmaps", "")
				}
			})
		}
	}
	p := b.open(t, s.ui("flow"), 1200, 760, false)
	p.wait("the question", `document.getElementById('token-dialog')?.open`)
	p.eval(`document.getElementById('token').value = 'root-token'; document.querySelector('#token-dialog button.primary').click()`)
	p.wait("whose turn it is", `document.querySelectorAll('.card .next').length > 0 && document.querySelectorAll('.card .queue').length > 3`)
	p.eval(`new Promise(done => setTimeout(done, 12000))`) // until seats are lent
	p.wait("whose turn it is", `document.querySelectorAll('.card .next').length > 0`)
	p.save("page-flow")
	stop()
	all.Wait()
}

// fight makes two programs set the same field repeatedly, like an autoscaler and a pipeline.
func (s *server) fight() {
	for i := range 40 {
		agent, replicas := "hpa-controller/2.1", 5
		if i%2 == 1 {
			agent, replicas = "deploy-pipeline/0.9", 2
		}
		s.write(agent, "PATCH", "/apis/apps/v1/namespaces/default/deployments/web", fmt.Sprintf(`{"spec":{"replicas":%d}}`, replicas))
	}
}

// load writes from several programs concurrently until stop is called.
func (s *server) load(writers int) (stop func()) {
	ctx, cancel := context.WithCancel(s.t.Context())
	var all sync.WaitGroup
	for i := range writers {
		name := fmt.Sprint("load-", i)
		s.configMap(name, "k", "0")
		all.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				r, _ := http.NewRequestWithContext(ctx, "PATCH", s.URL()+"/api/v1/namespaces/default/configmaps/"+name, strings.NewReader(fmt.Sprintf(`{"data":{"k":"%d"}}`, n)))
				r.Header.Set("Content-Type", "application/merge-patch+json")
				if answer, err := http.DefaultClient.Do(r); err == nil {
					_, _ = io.Copy(io.Discard, answer.Body)
					_ = answer.Body.Close()
				}
			}
		})
	}
	return func() { cancel(); all.Wait() }
}

// save stores a screenshot in the documents.
func (p *page) save(name string) {
	p.t.Helper()
	p.eval(`new Promise(done => setTimeout(done, 300))`)
	p.must(os.WriteFile(filepath.Join("..", "..", "docs", "pictures", name+".webp"), p.picture(), 0o644))
}
