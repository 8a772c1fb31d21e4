// Package callout asks programs beside the server who somebody is and whether they may: kube-apiserver's webhooks for tokens (TokenReview) and for
// authorization (SubjectAccessReview), and the order in which authorizers are asked (AuthorizationConfiguration).
//
//	tokens, err := callout.NewTokens(callout.TokensConfig{File: "webhook.kubeconfig", Version: "v1", TTL: 2 * time.Minute})
//	user, audiences, err := tokens.User(ctx, token, audiences)
//
//	plan, err := callout.LoadPlan(data)                // Node, RBAC and webhooks, in their order
//	verdict, reason, err := plan.Steps[0].Hook.Decide(user, info)
//
// Where a program is stands in a kubeconfig. The other side may be down, slow or talkative: each question ends at its deadline, reads a bounded answer,
// and is asked again only after answers that say so. Answers are kept for as long as the flags say, in bounded memory: what is kept is a hash of the
// question and the answer, never a token.
//
// Files, defaults, words and what is kept are kube-apiserver's (k8s.io/apiserver/plugin/pkg/authenticator/token/webhook, plugin/pkg/authorizer/webhook).
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
	callTimeout = 30 * time.Second
	tries       = 5
	firstWait   = 500 * time.Millisecond
	answerMost  = 1 << 20 // bytes
	cachedMost  = 8192    // answers
	cachedBytes = 8 << 20 // of answers, as they were sent
	MaxText     = 1 << 10 // bytes of a reason or an error that the webhook has written
	agent       = "apilet"
)

// ask posts a review until it is answered, and returns the size of the answer. What will not get better is asked once. Errors quote a bounded
// part of the answer.
func ask(ctx context.Context, client *kubeconfig.Client, review, answer any, kind string) (size int, err error) {
	text, err := post(ctx, client, review)
	if err == nil {
		err = read(text, answer, kind)
	}
	if err != nil {
		return 0, &callError{err}
	}
	return len(text), nil
}

// A callError is an error whose text may quote the webhook.
type callError struct{ error }

func (e *callError) Error() string { return shortened(e.error.Error()) }
func (e *callError) Unwrap() error { return e.error }

// shortened cuts a text to MaxText bytes.
func shortened(text string) string {
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
	wait := firstWait
	for try := 1; ; try++ {
		code, text, err := client.Post(ctx, body, answerMost)
		again := err != nil && utilnet.IsConnectionReset(err) || code == http.StatusTooManyRequests || code == http.StatusInternalServerError || code == http.StatusGatewayTimeout
		if err == nil && (code < 200 || code > http.StatusPartialContent) {
			err = fmt.Errorf("the webhook answered with status %d", code)
		}
		if err == nil {
			return text, nil
		}
		if !again || try == tries || ctx.Err() != nil {
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
		return fmt.Errorf("the webhook's answer is no JSON: %w", err)
	}
	if head.Kind != kind {
		return fmt.Errorf("the webhook answered with a %q, not with a %s", head.Kind, kind)
	}
	return json.Unmarshal(text, answer)
}
