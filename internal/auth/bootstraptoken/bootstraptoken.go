// Package bootstraptoken authenticates bootstrap tokens (--enable-bootstrap-token-auth). A kubelet
// uses such a token to request its first client certificate. The token 07401b.f395accd246ae52d is
// this Secret:
//
//	metadata: {namespace: kube-system, name: bootstrap-token-07401b}
//	type: bootstrap.kubernetes.io/token
//	stringData:
//	  token-id: 07401b
//	  token-secret: f395accd246ae52d
//	  usage-bootstrap-authentication: "true"
//	  expiration: 2026-12-24T18:00:00Z                                    # optional
//	  auth-extra-groups: system:bootstrappers:kubeadm:default-node-token  # optional
//
// The user name is system:bootstrap:07401b. The groups are system:bootstrappers and the value of
// auth-extra-groups.
//
// The rules are those of Kubernetes' package plugin/pkg/auth/authenticator/token/bootstrap, which
// cannot be imported because it depends on client-go's informers. Every request reads the Secret
// from the store, so a token that expires or whose Secret is deleted is rejected immediately.
// kube-apiserver caches successful authentications for ten seconds.
package bootstraptoken

import (
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	"k8s.io/cluster-bootstrap/util/secrets"
	"k8s.io/cluster-bootstrap/util/tokens"

	"apilet/internal/request"
	"apilet/internal/store"
)

const secretPrefix = "//secrets/" + metav1.NamespaceSystem + "/" + bootstrapapi.BootstrapTokenSecretPrefix

// Tokens authenticates bootstrap tokens. It is safe for concurrent use.
type Tokens struct {
	Store *store.Store
	Log   zerolog.Logger // used to log the reason for each rejected token
}

// User returns the user of a token. ok is false if the token is not a bootstrap token or is not
// valid. It returns an error if the Secret cannot be read.
func (t *Tokens) User(token string) (u request.User, ok bool, err error) {
	id, secretPart, err := tokens.ParseToken(token)
	if err != nil {
		return request.User{}, false, nil
	}
	secret, err := t.secret(id)
	if secret == nil {
		return request.User{}, false, err
	}
	groups, err := t.check(secret, id, secretPart)
	if err != nil {
		t.Log.Info().Str("secret", secret.Namespace+"/"+secret.Name).Msg("the bootstrap token's Secret " + err.Error())
		return request.User{}, false, nil
	}
	return request.User{Name: bootstrapapi.BootstrapUserPrefix + id, Groups: append(groups, request.GroupAuthenticated)}, true, nil
}

// secret returns the Secret of a token's ID, or nil if it does not exist.
func (t *Tokens) secret(id string) (*corev1.Secret, error) {
	rec, err := t.Store.Get(secretPrefix + id)
	if errors.Is(err, store.ErrNotFound) {
		t.Log.Info().Str("secret", metav1.NamespaceSystem+"/"+bootstrapapi.BootstrapTokenSecretPrefix+id).Msg("a bootstrap token has no Secret")
		return nil, nil
	}
	secret := &corev1.Secret{}
	if err == nil {
		err = json.Unmarshal(rec.JSON, secret)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the Secret of bootstrap token %s: %w", id, err)
	}
	return secret, nil
}

// check returns the groups of the token's user, or an error that completes the sentence "the
// bootstrap token's Secret ...". To prevent timing attacks, it compares the secret part in constant
// time before all other checks of the data.
func (t *Tokens) check(secret *corev1.Secret, id, secretPart string) ([]string, error) {
	value := func(key string) string { return secrets.GetData(secret, key) }
	invalid := func(key string) error { return fmt.Errorf("has an invalid value for key %s", key) }
	switch {
	case secret.DeletionTimestamp != nil:
		return nil, errors.New("is deleted and awaiting removal")
	case secret.Type != bootstrapapi.SecretTypeBootstrapToken:
		return nil, fmt.Errorf("has an invalid type, expected %s", bootstrapapi.SecretTypeBootstrapToken)
	case subtle.ConstantTimeCompare([]byte(value(bootstrapapi.BootstrapTokenSecretKey)), []byte(secretPart)) != 1:
		return nil, invalid(bootstrapapi.BootstrapTokenSecretKey)
	case value(bootstrapapi.BootstrapTokenIDKey) != id:
		return nil, invalid(bootstrapapi.BootstrapTokenIDKey)
	case secrets.HasExpired(secret, t.Store.Now()):
		return nil, errors.New("has expired")
	case value(bootstrapapi.BootstrapTokenUsageAuthentication) != "true":
		return nil, fmt.Errorf("is not marked %s=true", bootstrapapi.BootstrapTokenUsageAuthentication)
	}
	groups, err := secrets.GetGroups(secret)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", invalid(bootstrapapi.BootstrapTokenExtraGroupsKey), err)
	}
	return groups, nil
}
