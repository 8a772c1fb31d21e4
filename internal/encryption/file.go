package encryption

// This file loads the configuration with kube-apiserver's types, defaults, validation and error
// texts.

import (
	"context"
	"crypto/aes"
	stdcipher "crypto/cipher"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"os"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/apis/apiserver"
	apiserverv1 "k8s.io/apiserver/pkg/apis/apiserver/v1"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	storagevalue "k8s.io/apiserver/pkg/storage/value"
	aestransformer "k8s.io/apiserver/pkg/storage/value/encrypt/aes"
	"k8s.io/apiserver/pkg/storage/value/encrypt/secretbox"

	"apilet/internal/bounded"
)

const (
	aescbcPrefix    = "k8s:enc:aescbc:v1:"
	aesgcmPrefix    = "k8s:enc:aesgcm:v1:"
	secretboxPrefix = "k8s:enc:secretbox:v1:"
	kmsPrefix       = "k8s:enc:kms:v2:"
)

// errKMSv1 is the error of kube-apiserver with the default feature gates.
var errKMSv1 = errors.New("KMSv1 is deprecated and will only receive security updates going forward. Use KMSv2 instead.  Set --feature-gates=KMSv1=true to use the deprecated KMSv1 feature.")

// load reads the file and creates its providers. Their plug-ins are polled until ctx ends or close
// is called.
func (p *Providers) load(ctx context.Context) (*configuration, error) {
	config, hash, err := readFile(p.cfg.Path, p.cfg.Reload)
	if err != nil {
		return nil, fmt.Errorf("error while parsing file: %w", err)
	}
	f := &configuration{chains: map[schema.GroupResource]*chain{}, hash: hash}
	ctx, f.close = context.WithCancel(ctx)
	for _, named := range config.Resources {
		if err = p.addChain(ctx, f, &named); err != nil {
			f.close()
			return nil, fmt.Errorf("error while building transformers: %w", err)
		}
	}
	return f, nil
}

// readFile reads and validates the file.
func readFile(path string, reload bool) (*apiserver.EncryptionConfiguration, string, error) {
	text, hash, err := hashOf(path)
	if err != nil {
		return nil, "", fmt.Errorf("error while loading file: %w", err)
	}
	decoded, kind, err := bounded.DecodeConfiguration(text, apiserver.AddToScheme, apiserverv1.AddToScheme)
	if err != nil {
		return nil, "", fmt.Errorf("error decoding encryption provider configuration file %q: %w", path, err)
	}
	config, ok := decoded.(*apiserver.EncryptionConfiguration)
	if !ok {
		return nil, "", fmt.Errorf("got unexpected config type: %v", kind)
	}
	mistakes := validation.ValidateEncryptionConfiguration(config, reload)
	for _, mistake := range mistakes {
		// do not print the keys (kube-apiserver does)
		if _, whole := mistake.BadValue.(apiserver.ProviderConfiguration); whole {
			mistake.BadValue = "REDACTED"
		}
	}
	return config, hash, mistakes.ToAggregate()
}

// hashOf returns the content of the file and its hash.
func hashOf(path string) (text []byte, hash string, err error) {
	if text, err = os.ReadFile(path); err != nil {
		return nil, "", fmt.Errorf("error reading encryption provider configuration file %q: %w", path, err)
	}
	if len(text) == 0 {
		return nil, "", fmt.Errorf("encryption provider configuration file %q is empty", path)
	}
	return text, fmt.Sprintf("sha256:%x", sha256.Sum256(text)), nil
}

// addChain creates the providers of some resources. If a resource is listed twice, it gets the
// providers of both. A resource that an earlier wildcard matches is an error.
func (p *Providers) addChain(ctx context.Context, f *configuration, named *apiserver.ResourceConfiguration) error {
	var links []link
	for _, provider := range named.Providers {
		l, err := p.link(ctx, f, &provider)
		if err != nil {
			return err
		}
		links = append(links, l)
	}
	for _, resource := range named.Resources {
		of := schema.ParseGroupResource(resource)
		for _, before := range [...]schema.GroupResource{{Group: of.Group, Resource: "*"}, anyResource} {
			if f.chains[before] != nil {
				return fmt.Errorf("resource %q is masked by earlier rule %q", fileName(of), fileName(before))
			}
		}
		if f.chains[of] == nil {
			f.chains[of] = &chain{none: errors.New("no matching prefix found"), figures: p.figures}
		}
		f.chains[of].links = append(f.chains[of].links, links...)
	}
	return nil
}

// fileName returns a resource as it is written in the file.
func fileName(of schema.GroupResource) string {
	if of.Group == "" && of.Resource == "*" {
		return "*."
	}
	return of.String()
}

// link creates one provider.
func (p *Providers) link(ctx context.Context, f *configuration, provider *apiserver.ProviderConfiguration) (link, error) {
	switch {
	case provider.AESGCM != nil:
		return p.keyed("AES", aesgcmPrefix, provider.AESGCM.Keys, aesCipher(aestransformer.NewGCMTransformer))
	case provider.AESCBC != nil:
		return p.keyed("AES", aescbcPrefix, provider.AESCBC.Keys, aesCipher(func(block stdcipher.Block) (storagevalue.Transformer, error) {
			return aestransformer.NewCBCTransformer(block), nil
		}))
	case provider.Secretbox != nil:
		return p.keyed("Secretbox", secretboxPrefix, provider.Secretbox.Keys, func(key []byte) (storagevalue.Transformer, error) {
			return secretbox.NewSecretboxTransformer([32]byte(key)), nil
		})
	case provider.Identity != nil:
		return link{by: identity{}}, nil
	case provider.KMS.APIVersion != "v2": // validation ensures that there is a provider
		return link{}, errKMSv1
	}
	made, err := newPlugin(provider.KMS, p.figures, p.cfg.Log)
	if err != nil {
		return link{}, fmt.Errorf("could not configure KMSv2-Plugin's probe %q, error: %w", provider.KMS.Name, err)
	}
	made.start(ctx)
	f.plugins = append(f.plugins, made)
	return link{prefix: kmsPrefix + made.name + ":", by: made}, nil
}

// keyed creates a provider with several keys. Values are prefixed with the name of their key.
func (p *Providers) keyed(what, prefix string, keys []apiserver.Key, with func(key []byte) (storagevalue.Transformer, error)) (link, error) {
	c, least := &chain{none: fmt.Errorf("no matching key was found for the provided %s transformer", what), figures: p.figures}, 0
	if prefix == aescbcPrefix {
		least = 2 * aes.BlockSize
	}
	for _, key := range keys {
		secret, err := base64.StdEncoding.DecodeString(key.Secret)
		if err != nil {
			return link{}, fmt.Errorf("could not obtain secret for named key %s: %w", key.Name, err)
		}
		made, err := with(secret)
		if err != nil {
			return link{}, fmt.Errorf("error while creating cipher for named key %s: %w", key.Name, err)
		}
		c.links = append(c.links, link{prefix: key.Name + ":", by: cipher{made, least}})
	}
	return link{prefix: prefix, by: c}, nil
}

func aesCipher(with func(stdcipher.Block) (storagevalue.Transformer, error)) func(key []byte) (storagevalue.Transformer, error) {
	return func(key []byte) (storagevalue.Transformer, error) {
		block, err := aes.NewCipher(key)
		if err != nil {
			return nil, err
		}
		return with(block)
	}
}
