// Package serviceaccount issues and verifies the tokens of service accounts, and publishes their
// public keys. The tokens are JWTs (RFC 7519) with the claims of Kubernetes, which include
// audiences and the object to which a token is bound.
//
//	tokens, err := serviceaccount.New(st, serviceaccount.Config{...})  // keys of the flags, or one that the data file keeps
//	_, err = tokens.Request(&tokenRequest, "shop", "app")         // POST serviceaccounts/app/token: fills the status in
//	identity, err := tokens.Check(ctx, bearer, tokens.Audiences)  // whose it is: ErrUnknownIssuer when another has issued it
//	document := tokens.KeySet()                                    // /openid/v1/jwks, by which others verify them
//
// The claims are defined in pkg/serviceaccount/claims.go of k8s.io/kubernetes (KEP-1205, bound
// tokens; KEP-1393, discovery of the issuer), and for legacy tokens in
// pkg/serviceaccount/legacy.go. The package reads the service account and the bound object from the
// store.
//
// Invariants: A token is valid only as long as its service account, and the Pod, Secret or Node to
// which it is bound, exist with the UID in the claims. Tokens are not stored. The signing key never
// leaves the server except in a backup.
package serviceaccount
