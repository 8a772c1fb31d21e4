package encryption

// This file is the API for the rest of the program. It transforms documents by the resource in
// their keys.

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/rs/zerolog"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"apilet/internal/scheme"
)

// Config is the configuration from the flags.
type Config struct {
	// If Path is "", nothing is encrypted and encrypted values cannot be read.
	Path string
	// Run reloads the file when it has changed
	Reload bool
	// logs reloads and errors of plug-ins
	Log zerolog.Logger

	OnReload func() // If not nil, OnReload is called after Run has loaded a new file.
}

// Providers transforms values by the current configuration.
type Providers struct {
	cfg     Config
	figures *figures
	current atomic.Pointer[configuration]
	// the folder in etcd of each built-in type, by the prefix of its keys in the store
	folders map[string]string
}

// configuration is an immutable state of the configuration.
type configuration struct {
	// by resource, or *.group, or *.*
	chains map[schema.GroupResource]*chain
	// of the file
	hash    string
	plugins []*plugin
	close   context.CancelFunc // ends the polling of its plug-ins
}

var (
	anyResource = schema.GroupResource{Group: "*", Resource: "*"}
	nothing     = identity{}
)

// Open loads the file. The polling of plug-ins ends with ctx.
func Open(ctx context.Context, cfg Config) (*Providers, error) {
	p := &Providers{cfg: cfg, figures: newFigures(), folders: map[string]string{}}
	for _, row := range scheme.Builtins {
		if !row.Virtual {
			p.folders[row.Base] = row.EtcdFolder()
		}
	}
	p.current.Store(&configuration{close: func() {}})
	if cfg.Path == "" {
		return p, nil
	}
	f, err := p.load(ctx)
	if err != nil {
		return nil, fmt.Errorf("--encryption-provider-config: %w", err)
	}
	p.current.Store(f)
	p.figures.loaded(f.hash)
	return p, nil
}

// Enabled reports whether a configuration file is used.
func (p *Providers) Enabled() bool { return p != nil && p.cfg.Path != "" }

// Hash returns the hash of the current file, or "".
func (p *Providers) Hash() string {
	if p == nil {
		return ""
	}
	return p.current.Load().hash
}

// chainOf returns the chain for a key of the store, or nil if its resource is not configured. It
// also returns the name of the resource.
func (f *configuration) chainOf(key string) (*chain, string) {
	group, rest, _ := strings.Cut(strings.TrimPrefix(key, "/"), "/")
	resource, _, _ := strings.Cut(rest, "/")
	// internal, not accessible to clients
	if len(f.chains) == 0 || group == "" && resource == "rangeallocations" {
		return nil, resource
	}
	of := schema.GroupResource{Group: group, Resource: resource}
	for _, at := range [...]schema.GroupResource{of, {Group: group, Resource: "*"}, anyResource} {
		if c := f.chains[at]; c != nil {
			return c, of.String()
		}
	}
	return nil, of.String()
}

// ---- In a data file

// Encrypts reports whether new documents under a key are encrypted.
func (p *Providers) Encrypts(key string) bool {
	c, _ := p.current.Load().chainOf(key)
	return c != nil && c.encrypts()
}

// Seal encrypts a document. key is the key of the object in the store, whose resource selects the
// provider. Seal returns nil if documents of the resource are stored unencrypted.
func (p *Providers) Seal(key string, json []byte) ([]byte, error) {
	return p.sealAs(value{}, key, json)
}

func (p *Providers) sealAs(v value, key string, json []byte) ([]byte, error) {
	c, resource := p.current.Load().chainOf(key)
	if c == nil || !c.encrypts() {
		return nil, nil
	}
	v.key, v.resource = p.etcdKey(key), resource
	return c.seal(v, json)
}

// Open decrypts a document that Seal has encrypted, possibly with another configuration. stale
// reports whether Seal would now encrypt it differently.
func (p *Providers) Open(key string, sealed []byte) (json []byte, stale bool, err error) {
	return p.open(key, p.etcdKey(key), sealed)
}

// etcdKey returns the key of an object in etcd, under kube-apiserver's default prefix.
func (p *Providers) etcdKey(key string) string {
	base, namespace, name, _ := scheme.SplitKey(key)
	folder := p.folders[base]
	if folder == "" {
		folder = strings.Trim(base, "/")
	}
	if namespace != "" {
		folder += "/" + namespace
	}
	return "/registry/" + folder + "/" + name
}

func (p *Providers) open(key, etcdKey string, sealed []byte) (plain []byte, stale bool, err error) {
	c, resource := p.current.Load().chainOf(key)
	v := value{key: etcdKey, resource: resource}
	if c == nil {
		plain, stale, err = nothing.open(v, sealed)
	} else {
		plain, stale, err = c.open(v, sealed)
	}
	if err != nil {
		return nil, false, fmt.Errorf("unable to transform key %q: %w", etcdKey, err)
	}
	return plain, stale, nil
}

// ---- In etcd

// SealForEtcd encrypts a value that will be stored in etcd.
func (p *Providers) SealForEtcd(key, etcdKey string, plain []byte) ([]byte, error) {
	c, resource := p.current.Load().chainOf(key)
	if c == nil {
		return plain, nil
	}
	return c.seal(value{key: etcdKey, resource: resource}, plain)
}

// OpenFromEtcd decrypts a value from etcd. stale reports whether SealForEtcd would now encrypt it
// differently.
func (p *Providers) OpenFromEtcd(key, etcdKey string, stored []byte) (plain []byte, stale bool, err error) {
	return p.open(key, etcdKey, stored)
}
