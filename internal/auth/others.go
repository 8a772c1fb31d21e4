package auth

// This file asks others who somebody is, and whether they may: issuers of tokens (package oidc) and webhooks (package callout). Files that say where
// these are may change while the server runs. One that is no good is told in the log, and what was in it before stays in force.

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

// openOthers reads the files that name issuers and webhooks.
func (a *Authenticator) openOthers() (err error) {
	options := oidc.Options{Disallowed: a.cfg.OwnIssuers, Algorithms: a.cfg.Algorithms, Now: a.cfg.Now, Log: a.cfg.Log}
	if a.cfg.IssuersFile != "" {
		if a.issuers, err = a.followIssuers(options); err != nil {
			return fmt.Errorf("--authentication-config %s: %w", a.cfg.IssuersFile, err)
		}
	}
	if a.cfg.Issuers != nil {
		if a.fixed, err = oidc.New(a.cfg.Issuers, options); err != nil {
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
		a.plans, err = certs.Follow(a.cfg.Log, func(contents [][]byte) (*callout.Plan, error) {
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

// followIssuers has the issuers that a file names, and lets go of those that it named before.
func (a *Authenticator) followIssuers(options oidc.Options) (*certs.Followed[oidc.Set], error) {
	var last *oidc.Set
	return certs.Follow(a.cfg.Log, func(contents [][]byte) (*oidc.Set, error) {
		options.Before = last
		set, err := oidc.Load(contents[0], options)
		if err == nil && last == nil && set.Anonymous != nil && a.cfg.AnonymousGiven {
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

// issuerSet are the issuers of now; nil: there are none.
func (a *Authenticator) issuerSet() *oidc.Set {
	if a.issuers != nil {
		return a.issuers.Now()
	}
	return a.fixed
}

// admitsAnybody says whether somebody who shows no credential is let in as system:anonymous.
func (a *Authenticator) admitsAnybody(path string) bool {
	if set := a.issuerSet(); set != nil {
		return set.Admits(path, a.cfg.Anonymous)
	}
	return a.cfg.Anonymous
}

// othersUser is tokenUser for a token that is neither in --token-auth-file nor a service account's. It tries bootstrap tokens, then
// the issuer that the token names, then the webhook.
func (a *Authenticator) othersUser(ctx context.Context, token string, audiences []string) (u request.User, meantFor []string, err error) {
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

// logFailure writes at most ten lines a minute: each request of a stranger may be the cause of one.
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

// failures counts the failures of webhooks.
type failures struct {
	mu       sync.Mutex // guards what follows
	since    time.Time
	logged   int // since then
	withheld int // since the last line
}

// next reports whether the next failure is to be logged, and how many before it were not.
func (f *failures) next(now time.Time) (written bool, withheld int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now.Sub(f.since) > time.Minute {
		f.since, f.logged = now, 0
	}
	if f.logged >= failuresLogged {
		f.withheld++
		return false, 0
	}
	f.logged++
	withheld, f.withheld = f.withheld, 0
	return true, withheld
}

// plan is who is asked whether somebody may; nil where that is no matter of webhooks.
func (a *Authenticator) plan() *callout.Plan {
	if a.plans != nil {
		return a.plans.Now()
	}
	return a.cfg.Plan
}

// asksWebhooks says that what somebody may is not known before they try.
func (a *Authenticator) asksWebhooks() bool {
	plan := a.plan()
	return plan != nil && plan.Has(callout.TypeWebhook)
}

// byPlan asks one after the other until one allows or denies. A refusal has the reasons of all, and what has kept some from answering.
func (a *Authenticator) byPlan(plan *callout.Plan, u request.User, info request.Info) (callout.Verdict, string, error) {
	var reasons []string
	var problems error
	for _, step := range plan.Steps {
		verdict, reason, err := a.byStep(step, u, info)
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

func (a *Authenticator) byStep(step callout.Step, u request.User, info request.Info) (callout.Verdict, string, error) {
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
		q := question(info, u)
		allowed, reason = a.policy.Load().Allows(&q)
	}
	if allowed {
		return callout.Allow, reason, nil
	}
	return callout.NoOpinion, reason, nil
}

// WantsNodes says that what kubelets may is decided by what their pods refer to.
func (a *Authenticator) WantsNodes() bool {
	if plan := a.plan(); plan != nil {
		return plan.Has(callout.TypeNode)
	}
	return len(a.cfg.Modes) > 0
}
