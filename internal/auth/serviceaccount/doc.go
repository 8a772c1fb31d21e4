// Package serviceaccount issues, checks and publishes the credentials of service accounts: JWTs (RFC 7519) of Kubernetes' form, with
// audiences and the object that they are bound to.
//
//	tokens, err := serviceaccount.New(st, serviceaccount.Config{...})  // keys of the flags, or one that the data file keeps
//	_, err = tokens.Request(&tokenRequest, "shop", "app")         // POST serviceaccounts/app/token: fills the status in
//	identity, err := tokens.Check(ctx, bearer, tokens.Audiences)  // whose it is: ErrNotOurs when another has issued it
//	document := tokens.KeySet()                                    // /openid/v1/jwks, by which others verify them
//
// The claims are those of pkg/serviceaccount/claims.go of k8s.io/kubernetes (KEP-1205, bound tokens; KEP-1393, discovery of the issuer),
// the older kind's those of pkg/serviceaccount/legacy.go. The store is asked for the account and for what a token is bound to.
//
// Invariants: a token counts only as long as its account, and the Pod, Secret or Node that it is bound to, is there with the uid of the
// claims; nothing of a token is stored; a key that signs never leaves the server but in a backup.
package serviceaccount
