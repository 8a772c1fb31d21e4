package kubeconfig

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"apilet/internal/apitest"
)

// A webhook is told how long the asker waits; it leads nobody elsewhere, and its answer has a bound.
func TestWebhooksAreAsked(t *testing.T) {
	t.Parallel()
	var asked string
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = r.Method + " " + r.URL.String()
		switch r.URL.Path {
		case "/away":
			http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
		default:
			fmt.Fprint(w, strings.Repeat("x", 100))
		}
	}))
	t.Cleanup(hook.Close)
	client := func(path string) *Client {
		c, err := NewWebhookClient(apitest.TempFile(t, "kubeconfig", fmt.Sprintf(`{"current-context":"w","contexts":[{"name":"w","context":{"cluster":"c"}}],
			"clusters":[{"name":"c","cluster":{"server":%q}}]}`, hook.URL+path)), "me")
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	if code, answer, err := client("/x?a=b").Post(ctx, []byte("{}"), 100); code != 200 || len(answer) != 100 || err != nil || asked != "POST /x?a=b&timeout=1h0m0s" {
		t.Error(code, len(answer), err, asked)
	}
	if _, _, err := client("/x").Post(ctx, []byte("{}"), 99); err == nil {
		t.Error("an answer that is too long is taken")
	}
	if code, _, err := client("/away").Post(ctx, []byte("{}"), 100); code != 307 || err != nil || !strings.HasPrefix(asked, "POST /away") {
		t.Error(code, err, asked)
	}
	for _, bad := range []string{"", "{}", "x: ["} {
		if _, err := NewWebhookClient(apitest.TempFile(t, "kubeconfig", bad), "me"); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
	if _, err := NewWebhookClient("/does/not/exist", "me"); err == nil || err.Error() != "stat /does/not/exist: file does not exist" {
		t.Error(err)
	}
}
