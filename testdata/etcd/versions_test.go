package etcd

// This file tests two versions of the server on the same etcd, as during an upgrade. APILET_BEFORE
// names the earlier program; without it the test is skipped.

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"apilet/apilettest"
)

// TestVersionsShareAnEtcd checks that both versions can read and watch the objects of the other
// version and accept its tokens. The test replaces one server after the other while a client is
// running. They keep their replica files.
func TestVersionsShareAnEtcd(t *testing.T) {
	t.Parallel()
	before := os.Getenv("APILET_BEFORE")
	if before == "" {
		t.Skip("APILET_BEFORE names no older apilet")
	}
	c := startCluster(t, 1)
	servers := []*server{c.aServer(), c.aServer(), c.aServer()}
	for _, s := range servers {
		s.Path = before
		s.run()
	}
	client := servers[0].informer()
	token := func(s *server) string {
		text := s.do(201, "POST", "/api/v1/namespaces/default/serviceaccounts/default/token", `{"spec":{}}`)
		_, text, _ = strings.Cut(text, `"token":"`)
		text, _, _ = strings.Cut(strings.ReplaceAll(text, " ", ""), `"`)
		return text
	}
	for round, s := range servers {
		s.ends(t, 0, syscall.SIGTERM)
		s.Path = apilettest.Program(t)
		s.Launch()
		s.ready()
		for i, writes := range servers {
			last := writes.work(fmt.Sprintf("r%d-%d", round, i), 5)
			for j, reads := range servers {
				reads.do(200, "GET", maps+"/"+last, "")
				client.resume(reads, last)
				client.wantSame(reads, fmt.Sprintf("round %d, from %d at %d", round, i, j), 0)
				review := reads.do(201, "POST", "/apis/authentication.k8s.io/v1/tokenreviews", fmt.Sprintf(`{"spec":{"token":%q}}`, token(writes)))
				if !strings.Contains(strings.ReplaceAll(review, " ", ""), `"authenticated":true`) {
					t.Errorf("a token of %d at %d: %s", i, j, review)
				}
			}
		}
	}
	back := servers[0] // and the downgrade
	back.ends(t, 0, syscall.SIGTERM)
	back.Path = before
	back.Launch()
	apilettest.Until(t, "the older version starts on its replica's file, or says why not", func() error {
		select {
		case <-back.Process().Done:
			return nil
		default:
		}
		return back.answers("/readyz")
	})
	t.Logf("the older version again: %s", back.Log()[strings.LastIndex(back.Log(), "stopping"):])
}
