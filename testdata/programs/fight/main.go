// Fight runs two controllers that set the same field to different values, like a
// HorizontalPodAutoscaler and a client that applies a manifest with `replicas`. Each reads the
// object and sets .spec.replicas if the value differs from its own:
//
//	go run ./testdata/programs/fight -server http://127.0.0.1:8080 -namespace default -name web
//
// docs/history.md finds the two controllers.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync"
	"time"
)

var (
	server    = flag.String("server", "http://127.0.0.1:8080", "`URL` of a server on a plain loopback port")
	namespace = flag.String("namespace", "default", "the Deployment's `namespace`")
	name      = flag.String("name", "web", "the Deployment's `name`")
	pause     = flag.Duration("pause", 250*time.Millisecond, "how long each waits before it looks again")
	length    = flag.Duration("for", 10*time.Minute, "how long it goes on")
)

// A controller represents one of the two controllers.
type controller struct {
	agent    string
	replicas int
}

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, *length)
	defer cancel()
	var both sync.WaitGroup
	for _, c := range []controller{{"capacity-planner/v2.3", 3}, {"night-saver/v0.9", 1}} {
		both.Go(func() { c.run(ctx) })
	}
	both.Wait()
}

func (c controller) run(ctx context.Context) {
	for ctx.Err() == nil {
		if err := c.reconcile(ctx); err != nil && ctx.Err() == nil {
			fmt.Fprintln(os.Stderr, c.agent+":", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(*pause):
		}
	}
}

func (c controller) reconcile(ctx context.Context) error {
	var is struct{ Spec struct{ Replicas int } }
	if err := c.ask(ctx, http.MethodGet, "", &is); err != nil || is.Spec.Replicas == c.replicas {
		return err
	}
	return c.ask(ctx, http.MethodPatch, fmt.Sprintf(`{"spec":{"replicas":%d}}`, c.replicas), nil)
}

func (c controller) ask(ctx context.Context, method, body string, answer any) error {
	r, err := http.NewRequestWithContext(ctx, method, *server+"/apis/apps/v1/namespaces/"+*namespace+"/deployments/"+*name, strings.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("User-Agent", c.agent)
	r.Header.Set("Content-Type", "application/merge-patch+json")
	w, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer w.Body.Close()
	text, err := io.ReadAll(w.Body)
	switch {
	case err != nil:
		return err
	case w.StatusCode != http.StatusOK:
		return fmt.Errorf("%s: %s", w.Status, text)
	case answer == nil:
		return nil
	}
	return json.Unmarshal(text, answer)
}
