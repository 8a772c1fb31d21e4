// Package callout calls external services for authentication and authorization. It implements the
// webhooks of kube-apiserver for tokens (TokenReview) and for authorization (SubjectAccessReview),
// and the order of authorizers (AuthorizationConfiguration).
//
//	tokens, err := callout.NewTokens(callout.TokensConfig{File: "webhook.kubeconfig", Version: "v1", TTL: 2 * time.Minute})
//	user, audiences, ok, err := tokens.User(ctx, token, audiences, own)
//
//	plan, err := callout.LoadPlan(data, nil)           // Node, RBAC and webhooks, in their order
//	verdict, reason, err := plan.Steps[0].Hook.Decide(user, info)
//
// A kubeconfig file contains the address of a webhook. The webhook may fail or be slow. Each call
// has a deadline and a limit for the size of the response. It is only retried if the error may be
// temporary. Responses are cached for the time set by the flags, and the size of the cache is
// limited. The cache is indexed by the hash of the request and does not contain tokens.
//
// The file formats, the defaults and the caching rules are the same as in kube-apiserver
// (k8s.io/apiserver/plugin/pkg/authenticator/token/webhook, plugin/pkg/authorizer/webhook).
package callout

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"apilet/internal/kubeconfig"
)

const (
	callTimeout    = 30 * time.Second
	maxAttempts    = 5
	firstBackoff   = 500 * time.Millisecond
	maxAnswerBytes = 1 << 20 // bytes
	maxCached      = 8192    // responses
	maxCachedBytes = 8 << 20 // total size of the cached responses
	// MaxText is the maximum length in bytes of a reason or an error from a webhook.
	MaxText = 1 << 10
	agent   = "apilet"
)

// postReview posts a review, decodes the response, and returns the size of the response. It retries
// after temporary errors. The texts of errors are limited to MaxText.
func postReview(ctx context.Context, client *kubeconfig.Client, review, answer any, kind string) (size int, err error) {
	text, err := post(ctx, client, review)
	if err == nil {
		err = read(text, answer, kind)
	}
	if err != nil {
		return 0, &callError{err}
	}
	return len(text), nil
}

// A callError is an error whose text may contain text from the webhook.
type callError struct{ error }

func (e *callError) Error() string { return truncate(e.error.Error()) }
func (e *callError) Unwrap() error { return e.error }

// truncate truncates a text to MaxText bytes.
func truncate(text string) string {
	if len(text) <= MaxText {
		return text
	}
	return strings.ToValidUTF8(text[:MaxText], "") + "…"
}

func post(ctx context.Context, client *kubeconfig.Client, review any) ([]byte, error) {
	body, err := json.Marshal(review)
	if err != nil {
		return nil, err
	}
	wait := firstBackoff
	for try := 1; ; try++ {
		code, text, err := client.Post(ctx, body, maxAnswerBytes)
		again := err != nil && utilnet.IsConnectionReset(err) || code == http.StatusTooManyRequests || code == http.StatusInternalServerError || code == http.StatusGatewayTimeout
		if err == nil && (code < 200 || code > http.StatusPartialContent) {
			err = fmt.Errorf("the webhook responded with status %d", code)
		}
		if err == nil {
			return text, nil
		}
		if !again || try == maxAttempts || ctx.Err() != nil {
			return nil, err
		}
		select {
		case <-time.After(time.Duration(float64(wait) * (1 + 0.2*rand.Float64()))):
		case <-ctx.Done():
			return nil, err
		}
		wait = wait * 3 / 2
	}
}

func read(text []byte, answer any, kind string) error {
	var head metav1.TypeMeta
	if err := json.Unmarshal(text, &head); err != nil {
		return fmt.Errorf("the webhook's response is not JSON: %w", err)
	}
	if head.Kind != kind {
		return fmt.Errorf("the webhook responded with a %q instead of a %s", head.Kind, kind)
	}
	return json.Unmarshal(text, answer)
}
