package oidc

// This file maps the claims of a token to a user, with claim names or CEL expressions, and checks
// the validation rules for both.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	authenticationcel "k8s.io/apiserver/pkg/authentication/cel"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/lazy"

	"apilet/internal/request"
)

// userOf returns the user for the claims of a verified token.
func (i *issuer) userOf(ctx context.Context, claims claimSet) (u request.User, err error) {
	shown := shownClaims(claims)
	if u.Name, err = i.username(ctx, claims, shown); err != nil {
		return u, err
	}
	if u.Groups, err = i.groups(ctx, claims, shown); err != nil {
		return u, err
	}
	if u.UID, err = i.uid(ctx, claims, shown); err != nil {
		return u, err
	}
	if u.Extra, err = i.extra(ctx, claims, shown); err != nil {
		return u, err
	}
	if err := i.checkClaims(ctx, claims, shown); err != nil {
		return u, err
	}
	if i.mapper.UserValidationRules != nil {
		results, err := i.mapper.UserValidationRules.EvalUser(ctx, shownUser(&u))
		if err == nil {
			err = allTrue(results)
		}
		if err != nil {
			return u, fmt.Errorf("oidc: error evaluating user info validation rule: %w", err)
		}
	}
	return u, nil
}

func (i *issuer) username(ctx context.Context, claims claimSet, shown *lazy.MapValue) (name string, err error) {
	if i.mapper.Username != nil {
		if name, err = evalString(ctx, i.mapper.Username, shown, "username"); err == nil && name == "" {
			err = errors.New("oidc: empty username via CEL expression is not allowed")
		}
		return name, err
	}
	want := i.config.ClaimMappings.Username
	if err := claims.read(want.Claim, &name); err != nil {
		return "", fmt.Errorf("oidc: parse username claims %q: %w", want.Claim, err)
	}
	if _, exists := claims["email_verified"]; exists && want.Claim == "email" {
		var verified bool
		if err := claims.read("email_verified", &verified); err != nil {
			return "", fmt.Errorf("oidc: parse 'email_verified' claim: %w", err)
		}
		if !verified {
			return "", errors.New("oidc: email not verified")
		}
	}
	if want.Prefix != nil {
		name = *want.Prefix + name
	}
	return name, nil
}

func (i *issuer) groups(ctx context.Context, claims claimSet, shown *lazy.MapValue) ([]string, error) {
	want := i.config.ClaimMappings.Groups
	if _, exists := claims[want.Claim]; exists && want.Claim != "" {
		var groups stringOrList
		if err := claims.read(want.Claim, &groups); err != nil {
			return nil, fmt.Errorf("oidc: parse groups claim %q: %w", want.Claim, err)
		}
		if want.Prefix != nil {
			for n := range groups {
				groups[n] = *want.Prefix + groups[n]
			}
		}
		return groups, nil
	}
	if i.mapper.Groups == nil {
		return nil, nil
	}
	result, err := i.mapper.Groups.EvalClaimMapping(ctx, shown)
	if err != nil {
		return nil, fmt.Errorf("oidc: error evaluating group claim expression: %w", err)
	}
	groups, err := stringList(result.EvalResult)
	if err != nil {
		return nil, fmt.Errorf("oidc: error evaluating group claim expression: %w", err)
	}
	return groups, nil
}

func (i *issuer) uid(ctx context.Context, claims claimSet, shown *lazy.MapValue) (uid string, err error) {
	if want := i.config.ClaimMappings.UID.Claim; want != "" {
		if err := claims.read(want, &uid); err != nil {
			return "", fmt.Errorf("oidc: parse uid claim %q: %w", want, err)
		}
		return uid, nil
	}
	if i.mapper.UID == nil {
		return "", nil
	}
	return evalString(ctx, i.mapper.UID, shown, "uid")
}

func (i *issuer) extra(ctx context.Context, claims claimSet, shown *lazy.MapValue) (map[string][]string, error) {
	extra := map[string][]string{}
	var id string
	if claims.read("jti", &id) == nil && id != "" {
		extra["authentication.kubernetes.io/credential-id"] = []string{"JTI=" + id}
	}
	if i.mapper.Extra == nil {
		return extra, nil
	}
	results, err := i.mapper.Extra.EvalClaimMappings(ctx, shown)
	if err != nil {
		return nil, err
	}
	for _, result := range results {
		mapping, ok := result.ExpressionAccessor.(*authenticationcel.ExtraMappingExpression)
		if !ok {
			return nil, errors.New("oidc: error evaluating extra claim expression: invalid expression")
		}
		values, err := stringList(result.EvalResult)
		if err != nil {
			return nil, fmt.Errorf("oidc: error evaluating extra claim expression: %s: %w", mapping.Expression, err)
		}
		if len(values) > 0 {
			extra[mapping.Key] = values
		}
	}
	return extra, nil
}

// checkClaims checks the validation rules for claims. It checks required values first and
// expressions second.
func (i *issuer) checkClaims(ctx context.Context, claims claimSet, shown *lazy.MapValue) error {
	for _, rule := range i.config.ClaimValidationRules {
		if rule.Claim == "" {
			continue
		}
		if _, exists := claims[rule.Claim]; !exists {
			return fmt.Errorf("oidc: required claim %s not present in ID token", rule.Claim)
		}
		var value string
		if err := claims.read(rule.Claim, &value); err != nil {
			return fmt.Errorf("oidc: parse claim %s: %w", rule.Claim, err)
		}
		if value != rule.RequiredValue {
			return fmt.Errorf("oidc: required claim %s value does not match. Got = %s, want = %s", rule.Claim, value, rule.RequiredValue)
		}
	}
	if i.mapper.ClaimValidationRules == nil {
		return nil
	}
	results, err := i.mapper.ClaimValidationRules.EvalClaimMappings(ctx, shown)
	if err == nil {
		err = allTrue(results)
	}
	if err != nil {
		return fmt.Errorf("oidc: error evaluating claim validation expression: %w", err)
	}
	return nil
}

// allTrue returns nil if all rules hold, or an error with the message of the first rule that does
// not.
func allTrue(results []authenticationcel.EvaluationResult) error {
	for _, result := range results {
		if result.EvalResult.Type() != cel.BoolType {
			return errors.New("validation expression must return a boolean")
		}
		if result.EvalResult.Value().(bool) {
			continue
		}
		message := ""
		switch rule := result.ExpressionAccessor.(type) {
		case *authenticationcel.ClaimValidationCondition:
			message = rule.Message
		case *authenticationcel.UserValidationCondition:
			message = rule.Message
		}
		return fmt.Errorf("validation expression '%s' failed: %s", result.ExpressionAccessor.GetExpression(), message)
	}
	return nil
}

func evalString(ctx context.Context, mapper authenticationcel.ClaimsMapper, shown *lazy.MapValue, what string) (string, error) {
	result, err := mapper.EvalClaimMapping(ctx, shown)
	if err == nil && result.EvalResult.Type() != cel.StringType {
		err = fmt.Errorf("%s claim expression must return a string", what)
	}
	if err != nil {
		return "", fmt.Errorf("oidc: error evaluating %s claim expression: %w", what, err)
	}
	return result.EvalResult.Value().(string), nil
}

var errNoStrings = errors.New("expression must return a string or a list of strings")

// stringList converts a string or a list of strings to a list. It omits empty strings.
func stringList(value ref.Val) (list []string, err error) {
	add := func(v any) {
		text, ok := v.(string)
		if !ok {
			err = errNoStrings
		} else if text != "" {
			list = append(list, text)
		}
	}
	switch v := value.(type) {
	case types.String:
		add(string(v))
	case types.Null:
	case traits.Lister:
		for it := v.Iterator(); it.HasNext() == types.True; {
			add(it.Next().Value())
		}
	default:
		err = errNoStrings
	}
	if err != nil {
		return nil, err
	}
	return list, nil
}

// shownClaims returns the claims as a CEL map. A claim is decoded when an expression uses it.
func shownClaims(claims claimSet) *lazy.MapValue {
	shown := lazy.NewMapValue(types.NewObjectType("kubernetes.claims"))
	for name, text := range claims {
		shown.Append(name, func(*lazy.MapValue) ref.Val {
			var value any
			if err := json.Unmarshal(text, &value); err != nil {
				return types.NewErr("claim %q failed to unmarshal: %w", name, err)
			}
			return shownValue(value)
		})
	}
	return shown
}

func shownUser(u *request.User) *lazy.MapValue {
	shown := lazy.NewMapValue(types.NewObjectType("kubernetes.UserInfo"))
	for name, value := range map[string]any{"username": u.Name, "uid": u.UID, "groups": u.Groups, "extra": u.Extra} {
		shown.Append(name, func(*lazy.MapValue) ref.Val { return shownValue(value) })
	}
	return shown
}

func shownValue(value any) ref.Val { return escapeNames(types.DefaultTypeAdapter.NativeToValue(value)) }

// escapeNames wraps a value so that expressions can use escaped names of fields, such as
// a.b__dash__c for the field b-c.
func escapeNames(value ref.Val) ref.Val {
	switch v := value.(type) {
	case traits.Mapper:
		return &namedMap{v}
	case traits.Lister:
		return &namedList{v}
	}
	return value
}

type namedMap struct{ traits.Mapper }

// Find implements traits.Mapper.
func (m *namedMap) Find(key ref.Val) (ref.Val, bool) {
	if escaped, ok := key.(types.String); ok {
		if plain, ok := apiservercel.Unescape(string(escaped)); ok && plain != string(escaped) {
			key = types.String(plain)
		}
	}
	value, ok := m.Mapper.Find(key)
	return escapeNames(value), ok
}

type namedList struct{ traits.Lister }

// Get implements traits.Lister.
func (l *namedList) Get(index ref.Val) ref.Val { return escapeNames(l.Lister.Get(index)) }
