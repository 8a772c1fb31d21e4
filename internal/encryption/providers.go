package encryption

// This file is what the rest of the program calls: documents on their way to the disk and back, by the resource that their keys name.

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/rs/zerolog"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"apilet/internal/scheme"
)

// Config is what the flags say.
type Config struct {
	Path   string         // of the file; "": nothing is encrypted, and what is cannot be read
	Reload bool           // Run reads it again when it has changed
	Log    zerolog.Logger // hears of that, and of plug-ins that do not answer

	Changed func() // is called when Run has put another file into force; may be nil
}

// Providers are what the file says, as it is in force.
type Providers struct {
	cfg     Config
	figures *figures
	force   atomic.Pointer[force]
	folders map[string]string // in etcd, of the built-in types, by what their keys in the store begin with
}

// A force is one state of the file.
type force struct {
	chains  map[schema.GroupResource]*chain // by resource, or *.group, or *.*
	hash    string                          // of the file
	plugins []*plugin
	close   context.CancelFunc // ends the work for its plug-ins
}

var (
	anyResource = schema.GroupResource{Group: "*", Resource: "*"}
	nothing     = identity{}
)

// Open reads the file and puts it into force. ctx ends the work for its plug-ins.
func Open(ctx context.Context, cfg Config) (*Providers, error) {
	p := &Providers{cfg: cfg, figures: newFigures(), folders: map[string]string{}}
	for _, row := range scheme.Builtins {
		if !row.Virtual {
			p.folders[row.Base] = row.EtcdFolder()
		}
	}
	p.force.Store(&force{close: func() {}})
	if cfg.Path == "" {
		return p, nil
	}
	f, err := p.load(ctx)
	if err != nil {
		return nil, fmt.Errorf("--encryption-provider-config: %w", err)
	}
	p.force.Store(f)
	p.figures.loaded(f.hash)
	return p, nil
}

// On says that something may be encrypted.
func (p *Providers) On() bool { return p != nil && p.cfg.Path != "" }

// Hash tells one state of the file from another; "" without one.
func (p *Providers) Hash() string {
	if p == nil {
		return ""
	}
	return p.force.Load().hash
}

// chainOf is what is in force for a key of the store; nil: it is not named.
func (f *force) chainOf(key string) (*chain, string) {
	group, rest, _ := strings.Cut(strings.TrimPrefix(key, "/"), "/")
	resource, _, _ := strings.Cut(rest, "/")
	if len(f.chains) == 0 || group == "" && resource == "rangeallocations" { // which no client reads or writes
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

// Does says that documents under a key are encrypted when they are written.
func (p *Providers) Does(key string) bool {
	c, _ := p.force.Load().chainOf(key)
	return c != nil && c.encrypts()
}

// Seal encrypts a document; nil: it lies as it is.
func (p *Providers) Seal(key string, json []byte) ([]byte, error) {
	return p.sealAs(value{}, key, json)
}

func (p *Providers) sealAs(v value, key string, json []byte) ([]byte, error) {
	c, resource := p.force.Load().chainOf(key)
	if c == nil || !c.encrypts() {
		return nil, nil
	}
	v.key, v.resource = p.etcdKey(key), resource
	return c.seal(v, json)
}

// Open decrypts what Seal has made of a document, under whatever file. stale: it would make something else of it now.
func (p *Providers) Open(key string, sealed []byte) (json []byte, stale bool, err error) {
	return p.open(key, p.etcdKey(key), sealed)
}

// etcdKey is the key that an object has in etcd, below the prefix that kube-apiserver has by default.
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
	c, resource := p.force.Load().chainOf(key)
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

// ToEtcd encrypts a value for etcd, as kube-apiserver does.
func (p *Providers) ToEtcd(key, etcdKey string, plain []byte) ([]byte, error) {
	c, resource := p.force.Load().chainOf(key)
	if c == nil {
		return plain, nil
	}
	return c.seal(value{key: etcdKey, resource: resource}, plain)
}

// FromEtcd decrypts a value of etcd. stale: ToEtcd would make something else of it now.
func (p *Providers) FromEtcd(key, etcdKey string, stored []byte) (plain []byte, stale bool, err error) {
	return p.open(key, etcdKey, stored)
}
