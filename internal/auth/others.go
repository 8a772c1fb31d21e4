package auth

// This file calls external services for authentication and authorization: token issuers (package
// oidc) and webhooks (package callout). The configuration files are reloaded when they change. If a
// file is invalid, the error is logged and the previous configuration stays in effect.

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"apilet/internal/auth/callout"
	"apilet/internal/auth/certs"
	"apilet/internal/auth/oidc"
	"apilet/internal/request"
)

// openExternal reads the files that configure issuers and webhooks.
func (a *Authenticator) openExternal() (err error) {
	options := oidc.Options{Disallowed: a.cfg.OwnIssuers, Algorithms: a.cfg.Algorithms, Now: a.cfg.Now, Log: a.cfg.Log}
	if a.cfg.IssuersFile != "" {
		if a.issuers, err = a.followIssuers(options); err != nil {
			return fmt.Errorf("--authentication-config %s: %w", a.cfg.IssuersFile, err)
		}
	}
	if a.cfg.Issuers != nil {
		if a.flagIssuers, err = oidc.New(a.cfg.Issuers, options); err != nil {
			return fmt.Errorf("--oidc-issuer-url: %w", err)
		}
	}
	if a.cfg.TokenHook.File != "" {
		if a.tokenHook, err = callout.NewTokens(a.cfg.TokenHook); err != nil {
			return fmt.Errorf("--authentication-token-webhook-config-file: %w", err)
		}
	}
	if a.cfg.PlanFile != "" {
		var first *callout.Plan
		a.plans, err = certs.NewDynamic(a.cfg.Log, func(contents [][]byte) (*callout.Plan, error) {
			plan, err := callout.LoadPlan(contents[0], first)
			if err == nil && first == nil {
				first = plan
			}
			return plan, err
		}, a.cfg.PlanFile)
		if err != nil {
			return fmt.Errorf("--authorization-config %s: %w", a.cfg.PlanFile, err)
		}
	}
	return nil
}

// followIssuers loads the configuration of issuers and follows the file. The previous set is closed
// after each reload.
func (a *Authenticator) followIssuers(options oidc.Options) (*certs.Dynamic[oidc.Set], error) {
	var last *oidc.Set
	return certs.NewDynamic(a.cfg.Log, func(contents [][]byte) (*oidc.Set, error) {
		options.Before = last
		set, err := oidc.Load(contents[0], options)
		if err == nil && last == nil && set.Anonymous != nil && a.cfg.AnonymousFlagSet {
			set.Close()
			return nil, errors.New("anonymous: Forbidden: --anonymous-auth flag cannot be set when anonymous field is configured in authentication configuration file")
		}
		if err != nil {
			return nil, err
		}
		if last != nil {
			last.Close()
		}
		last = set
		return set, nil
	}, a.cfg.IssuersFile)
}

// issuerSet returns the current issuers, or nil if there are none.
func (a *Authenticator) issuerSet() *oidc.Set {
	if a.issuers != nil {
		return a.issuers.Current()
	}
	return a.flagIssuers
}

// allowsAnonymous reports whether anonymous requests are allowed for the path.
func (a *Authenticator) allowsAnonymous(path string) bool {
	if set := a.issuerSet(); set != nil {
		return set.AllowsAnonymous(path, a.cfg.Anonymous)
	}
	return a.cfg.Anonymous
}

// externalUser is like tokenUser, for a token that is neither in --token-auth-file nor from a
// service account. It tries bootstrap tokens, then the issuer that the token names, then the
// webhook.
func (a *Authenticator) externalUser(ctx context.Context, token string, audiences []string) (u request.User, meantFor []string, err error) {
	problem := errBadToken
	if a.Bootstrap != nil {
		u, ok, err := a.Bootstrap.User(token)
		if meantFor := a.ownAudiences(audiences); ok && len(meantFor) > 0 {
			return u, meantFor, nil
		}
		if err != nil {
			a.logFailure("a bootstrap token cannot be checked", err)
			problem = fmt.Errorf("[%w, %w]", errBadToken, err)
		}
	}
	if set := a.issuerSet(); set != nil && token != "" {
		u, known, err := set.User(ctx, token)
		meantFor := a.ownAudiences(audiences)
		switch {
		case known && err == nil && len(meantFor) > 0:
			return u, meantFor, nil
		case known && err != nil:
			problem = fmt.Errorf("[%w, %w]", errBadToken, err)
		}
	}
	if a.tokenHook != nil && token != "" {
		u, meantFor, ok, err := a.tokenHook.User(ctx, token, audiences, a.Accounts.Audiences)
		switch {
		case ok:
			return u, meantFor, nil
		case err != nil:
			a.logFailure("the webhook for tokens failed", err)
			problem = fmt.Errorf("[%w, %w]", problem, err)
		}
	}
	return request.User{}, nil, problem
}

// logFailure logs the error, but at most ten lines a minute, because unauthenticated clients can
// cause such errors with every request.
func (a *Authenticator) logFailure(message string, err error) {
	written, withheld := a.failures.next(time.Now())
	if !written {
		return
	}
	line := a.cfg.Log.Error().Err(err)
	if withheld > 0 {
		line = line.Int("withheld", withheld)
	}
	line.Msg(message)
}

const failuresLogged = 10 // per minute

// failureLimiter counts failures of webhooks and token checks, to limit the log.
type failureLimiter struct {
	mu         sync.Mutex // guards the fields below
	since      time.Time
	logged     int // lines logged since then
	suppressed int // failures not logged since the last line
}

// next reports whether the next failure should be logged, and how many earlier ones were not.
func (f *failureLimiter) next(now time.Time) (written bool, withheld int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now.Sub(f.since) > time.Minute {
		f.since, f.logged = now, 0
	}
	if f.logged >= failuresLogged {
		f.suppressed++
		return false, 0
	}
	f.logged++
	withheld, f.suppressed = f.suppressed, 0
	return true, withheld
}

// plan returns the current authorization plan, or nil if authorization does not use webhooks.
func (a *Authenticator) plan() *callout.Plan {
	if a.plans != nil {
		return a.plans.Current()
	}
	return a.cfg.Plan
}

// usesWebhooks reports whether webhooks decide about requests. The permissions of a user can then
// not be listed.
func (a *Authenticator) usesWebhooks() bool {
	plan := a.plan()
	return plan != nil && plan.Has(callout.TypeWebhook)
}

// decideByPlan evaluates the steps in order until one allows or denies the request. If the request
// is refused, the result contains the reasons of all steps, and the errors of the failed ones.
func (a *Authenticator) decideByPlan(plan *callout.Plan, u request.User, info request.Info) (callout.Verdict, string, error) {
	var reasons []string
	var problems error
	for _, step := range plan.Steps {
		verdict, reason, err := a.decideByStep(step, u, info)
		if err != nil {
			problems = errors.Join(problems, err)
		}
		if reason != "" {
			reasons = append(reasons, step.Name+": "+reason)
		}
		switch verdict {
		case callout.Allow:
			return verdict, reason, nil
		case callout.Deny:
			return verdict, reason, err
		}
	}
	return callout.NoOpinion, strings.Join(reasons, "\n"), problems
}

func (a *Authenticator) decideByStep(step callout.Step, u request.User, info request.Info) (callout.Verdict, string, error) {
	allowed, reason := false, ""
	switch step.Type {
	case callout.TypeWebhook:
		return step.Hook.Decide(u, info)
	case callout.TypeAlwaysAllow:
		return callout.Allow, "", nil
	case callout.TypeAlwaysDeny:
		return callout.NoOpinion, "Everything is forbidden.", nil
	case callout.TypeNode:
		if a.Nodes == nil { // the store is not open yet
			return callout.NoOpinion, "", nil
		}
		allowed, reason = a.Nodes.Decide(u, info)
	default:
		q := accessFor(info, u)
		allowed, reason = a.policy.Load().Allows(&q)
	}
	if allowed {
		return callout.Allow, reason, nil
	}
	return callout.NoOpinion, reason, nil
}

// UsesNodeAuthorizer reports whether the node authorizer is used, which needs the references of the
// nodes' pods.
func (a *Authenticator) UsesNodeAuthorizer() bool {
	if plan := a.plan(); plan != nil {
		return plan.Has(callout.TypeNode)
	}
	return len(a.cfg.Modes) > 0
}
