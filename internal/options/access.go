package options

// This file defines the flags for external authentication and authorization: OIDC issuers and
// webhooks.

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"k8s.io/apiserver/pkg/apis/apiserver"

	"apilet/internal/auth/callout"
	"apilet/internal/commandline"
)

// OIDC contains the --oidc-... flags, which describe one token issuer.
type OIDC struct {
	Issuer, Client, CAFile    string
	UserClaim, UserPrefix     string
	GroupsClaim, GroupsPrefix string
	Algorithms                []string
	Required                  []string // each has the form claim=value
	isSet                     bool
}

func (o *OIDC) define(f *flag.FlagSet) {
	text := func(into *string, name, value, what string) {
		*into = value
		f.Func(name, what, func(text string) error {
			o.isSet, *into = true, text
			return nil
		})
	}
	text(&o.Issuer, "oidc-issuer-url", "", "`URL` of an OpenID Connect issuer of tokens; https only")
	text(&o.Client, "oidc-client-id", "", "`audience` that each token must contain")
	text(&o.CAFile, "oidc-ca-file", "", "PEM `file` with CAs to verify the issuer's server (default: the system's)")
	text(&o.UserClaim, "oidc-username-claim", "sub", "`claim` with the user name (default sub)")
	text(&o.UserPrefix, "oidc-username-prefix", "", "prefix (`text`) of user names (default: the issuer and #, except for the claim email); - means no prefix")
	text(&o.GroupsClaim, "oidc-groups-claim", "", "`claim` with the groups, a string or a list")
	text(&o.GroupsPrefix, "oidc-groups-prefix", "", "prefix (`text`) of groups")
	f.Func("oidc-signing-algs", "comma-separated `names` of the allowed signature algorithms (default RS256)", func(list string) error {
		o.isSet = true
		return commandline.AppendList(&o.Algorithms)(list)
	})
	f.Func("oidc-required-claim", "`claim=value` that each token must contain; may be repeated", func(pair string) error {
		o.isSet = true
		if !strings.Contains(pair, "=") {
			return errors.New("must have the form claim=value")
		}
		o.Required = append(o.Required, pair)
		return nil
	})
}

// configuration returns the flags as an AuthenticationConfiguration.
func (o *OIDC) configuration() (*apiserver.AuthenticationConfiguration, error) {
	one := apiserver.JWTAuthenticator{Issuer: apiserver.Issuer{URL: o.Issuer, Audiences: []string{o.Client}}}
	prefix := o.UserPrefix
	switch {
	case prefix == "-":
		prefix = ""
	case prefix == "" && o.UserClaim != "email":
		prefix = o.Issuer + "#"
	}
	one.ClaimMappings.Username = apiserver.PrefixedClaimOrExpression{Claim: o.UserClaim, Prefix: &prefix}
	if o.GroupsClaim != "" {
		one.ClaimMappings.Groups = apiserver.PrefixedClaimOrExpression{Claim: o.GroupsClaim, Prefix: &o.GroupsPrefix}
	}
	if o.CAFile != "" {
		authorities, err := os.ReadFile(o.CAFile)
		if err != nil {
			return nil, fmt.Errorf("--oidc-ca-file: %w", err)
		}
		one.Issuer.CertificateAuthority = string(authorities)
	}
	for _, pair := range o.Required {
		claim, value, _ := strings.Cut(pair, "=")
		one.ClaimValidationRules = append(one.ClaimValidationRules, apiserver.ClaimValidationRule{Claim: claim, RequiredValue: value})
	}
	return &apiserver.AuthenticationConfiguration{JWT: []apiserver.JWTAuthenticator{one}}, nil
}

func (o *Options) defineExternal(f *flag.FlagSet) {
	f.StringVar(&o.Auth.IssuersFile, "authentication-config", "", "`file` with an AuthenticationConfiguration: token issuers, claim mappings and anonymous access; reloaded when it changes")
	o.OIDC.define(f)
	f.StringVar(&o.Auth.TokenHook.File, "authentication-token-webhook-config-file", "", "kubeconfig `file` of the webhook that verifies tokens (TokenReview)")
	f.StringVar(&o.Auth.TokenHook.Version, "authentication-token-webhook-version", "v1beta1", "`version` of TokenReview for the webhook: v1 or v1beta1")
	f.DurationVar(&o.Auth.TokenHook.TTL, "authentication-token-webhook-cache-ttl", 2*time.Minute, "time to cache the webhook's responses")
	f.StringVar(&o.Auth.PlanFile, "authorization-config", "", "`file` with an AuthorizationConfiguration, the ordered list of authorizers, instead of --authorization-mode; reloaded when it changes")
	hook := func(name string) func(string) error {
		return func(text string) (err error) {
			o.hookSet = true
			switch name {
			case "config-file":
				o.Hook.File = text
			case "version":
				o.Hook.Version = text
			case "cache-authorized-ttl":
				o.Hook.AllowedTTL, err = time.ParseDuration(text)
			default:
				o.Hook.UnallowedTTL, err = time.ParseDuration(text)
			}
			return err
		}
	}
	o.Hook = callout.HookFlags{Version: "v1beta1", AllowedTTL: 5 * time.Minute, UnallowedTTL: 30 * time.Second}
	f.Func("authorization-webhook-config-file", "kubeconfig `file` of the webhook for --authorization-mode=Webhook (SubjectAccessReview)", hook("config-file"))
	f.Func("authorization-webhook-version", "`version` of SubjectAccessReview for the webhook: v1 or v1beta1 (default v1beta1)", hook("version"))
	f.Func("authorization-webhook-cache-authorized-ttl", "`duration` to cache allowed requests (default 5m)", hook("cache-authorized-ttl"))
	f.Func("authorization-webhook-cache-unauthorized-ttl", "`duration` to cache denied requests (default 30s)", hook("cache-unauthorized-ttl"))
}

// finishExternal validates the combination of these flags. The error messages are those of
// kube-apiserver.
func (o *Options) finishExternal() (err error) {
	o.Auth.OwnIssuers = o.Accounts.Issuers
	switch {
	case o.OIDC.isSet && o.Auth.IssuersFile != "":
		return errors.New("authentication-config file and oidc-* flags are mutually exclusive")
	case o.OIDC.isSet && (o.OIDC.Issuer == "" || o.OIDC.Client == ""):
		return errors.New("oidc-issuer-url and oidc-client-id must be specified together when any oidc-* flags are set")
	case o.Auth.PlanFile != "" && (len(o.Authorization) > 0 || o.hookSet):
		return errors.New("--authorization-config can not be specified when --authorization-mode or --authorization-webhook-* flags are defined")
	case o.Hook.File != "" && !slices.Contains(o.Authorization, callout.TypeWebhook):
		return errors.New("cannot specify --authorization-webhook-config-file without mode Webhook")
	}
	if o.OIDC.isSet {
		o.Auth.Algorithms = o.OIDC.Algorithms
		if len(o.Auth.Algorithms) == 0 {
			o.Auth.Algorithms = []string{"RS256"}
		}
		if o.Auth.Issuers, err = o.OIDC.configuration(); err != nil {
			return err
		}
	}
	if o.Auth.PlanFile != "" {
		o.Auth.AlwaysAllow = false
	}
	return nil
}

// hasExternal reports whether an external authenticator is configured.
func (o *Options) hasExternal() bool {
	return cmp.Or(o.Auth.IssuersFile, o.OIDC.Issuer, o.Auth.TokenHook.File) != ""
}
