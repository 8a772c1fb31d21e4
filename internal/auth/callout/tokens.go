package callout

// This file authenticates tokens with a webhook.

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"apilet/internal/auth/ttlcache"
	"apilet/internal/kubeconfig"
	"apilet/internal/request"
)

// TokensConfig holds the flags --authentication-token-webhook-...
type TokensConfig struct {
	File    string // path of the kubeconfig; if empty, there is no webhook
	Version string // v1 or v1beta1
	TTL     time.Duration
}

// Tokens authenticates tokens with a webhook. It is safe for concurrent use.
type Tokens struct {
	TokensConfig
	client *kubeconfig.Client
	cache  ttlcache.Cache[authenticationv1.TokenReviewStatus]
}

// NewTokens returns Tokens for the webhook in the kubeconfig file.
func NewTokens(config TokensConfig) (*Tokens, error) {
	if config.Version != "v1" && config.Version != "v1beta1" {
		return nil, fmt.Errorf("unsupported authentication webhook version %q, supported versions are %q, %q", config.Version, "v1", "v1beta1")
	}
	client, err := kubeconfig.NewWebhookClient(config.File, agent)
	if err != nil {
		return nil, err
	}
	return &Tokens{TokensConfig: config, client: client, cache: ttlcache.Cache[authenticationv1.TokenReviewStatus]{MaxEntries: maxCached, MaxBytes: maxCachedBytes}}, nil
}

// User returns the user of a token, and the given audiences for which it is valid. own are the
// audiences of this server, which are used if the webhook returns none. ok is false if the webhook
// does not authenticate the token for one of the audiences.
func (t *Tokens) User(ctx context.Context, token string, audiences, own []string) (u request.User, meantFor []string, ok bool, err error) {
	key := sha256.Sum256([]byte(strings.Join(audiences, "\x00") + "\x00\x00" + token))
	status, cached := t.cache.Get(key, time.Now())
	if !cached {
		review := authenticationv1.TokenReview{TypeMeta: metav1.TypeMeta{Kind: "TokenReview", APIVersion: "authentication.k8s.io/" + t.Version},
			Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: audiences}}
		var answer authenticationv1.TokenReview
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		size, err := postReview(ctx, t.client, &review, &answer, "TokenReview")
		if err != nil {
			return u, nil, false, err
		}
		status = answer.Status
		status.Error = truncate(status.Error)
		if status.Error == "" { // errors are not cached
			now := time.Now()
			t.cache.PutSized(key, status, size, now, now.Add(t.TTL))
		}
	}
	if !status.Authenticated {
		if status.Error != "" {
			err = errors.New(status.Error)
		}
		return u, nil, false, err
	}
	if status.User.Username == "" {
		return u, nil, false, errors.New("the webhook authenticated a user without a name")
	}
	given := status.Audiences
	if len(given) == 0 {
		given = own
	}
	for _, audience := range audiences {
		if slices.Contains(given, audience) {
			meantFor = append(meantFor, audience)
		}
	}
	if len(meantFor) == 0 {
		return u, nil, false, nil
	}
	u = request.User{Name: status.User.Username, UID: status.User.UID, Groups: status.User.Groups}
	for key, values := range status.User.Extra {
		if u.Extra == nil {
			u.Extra = map[string][]string{}
		}
		u.Extra[key] = values
	}
	return u.WithAuthenticatedGroup(), meantFor, true, nil
}
