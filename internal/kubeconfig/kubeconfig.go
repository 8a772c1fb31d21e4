package kubeconfig

// This file writes and reads kubeconfigs: the one that says how to reach this server (--kubeconfig FILE), and the one that says which
// server to copy from (backup --kubeconfig FILE).
//
// The file that a server writes is its own: everywhere else a flag of that name means a file to read, and whoever gives ~/.kube/config
// here means that. So a file with other content is an error that names it, before anything else happens. The alternative, to merge a
// context into it as cluster tools do, was rejected: it would make the next `kubectl delete` of somebody who only wanted to look go to
// another cluster than the one before, and put an administrator's key into a file that is copied about. KUBECONFIG=a:b reads both.
//
// What is ours says so in an extension of the cluster, which kubectl keeps when it rewrites the file:
//
//	clusters: [{name: apilet, cluster: {server: ..., extensions: [{name: apilet, extension: {writer: apilet}}]}}]
//
// Somebody may have added contexts to such a file, chosen one, or set the namespace of ours: that survives. But how to reach the last
// run's server goes when the next one starts, and with it the file if it holds nothing else, so that a script that waits until the file
// is there does not read the last run's port.

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"apilet/internal/atomicfile"
)

const ourContext = "apilet" // also the name of the cluster, the user and the extension

// A config is a kubeconfig's content. What is not known here stays as it is.
type config map[string]any

// read returns nil for a file that is not there, or empty.
func read(path string) (config, error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err == nil && !info.Mode().IsRegular():
		return nil, errors.New("it is no regular file")
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var k config
	return k, yaml.Unmarshal(text, &k)
}

// CheckOwn returns an error for a file that is not the server's to write.
func CheckOwn(path string) error {
	if path == "" {
		return nil
	}
	if info, err := os.Stat(filepath.Dir(path)); err != nil || !info.IsDir() {
		return fmt.Errorf("--kubeconfig: cannot write %s: its folder is not there: make that first", path)
	}
	k, err := read(path)
	if err != nil || k != nil && !k.ours() {
		return fmt.Errorf("--kubeconfig: %s was not written by apilet and is left as it is: name another file; KUBECONFIG=%s:FILE reads both", path, path)
	}
	return nil
}

// ours tells a file that a server has written, whatever was added to it since: by the mark, or, before there was one, by holding nothing
// but the three entries.
func (k config) ours() bool {
	cluster := k.entry("clusters", "cluster")
	for _, extension := range listOf(cluster["extensions"]) {
		if nameOf(extension) == ourContext {
			return true
		}
	}
	for _, list := range []string{"clusters", "users", "contexts"} {
		if entries := listOf(k[list]); len(entries) != 1 || nameOf(entries[0]) != ourContext {
			return k.cleared()
		}
	}
	return cluster["server"] != nil
}

// cleared tells a file that Clear has left for what was added to it.
func (k config) cleared() bool {
	return slices.ContainsFunc(listOf(k["extensions"]), func(e any) bool { return nameOf(e) == ourContext })
}

// listOf is value as a list; nil when it is none.
func listOf(value any) []any {
	list, _ := value.([]any)
	return list
}

func nameOf(entry any) string {
	fields, _ := entry.(map[string]any)
	name, _ := fields["name"].(string)
	return name
}

// entry returns what our entry of a list holds, nil without one.
func (k config) entry(list, kind string) map[string]any { return k.named(list, kind, ourContext) }

func (k config) named(list, kind, name string) map[string]any {
	for _, item := range listOf(k[list]) {
		if nameOf(item) == name {
			held, _ := item.(map[string]any)[kind].(map[string]any)
			return held
		}
	}
	return nil
}

// without takes our entry out of a list.
func (k config) without(list string) []any {
	return slices.DeleteFunc(slices.Clone(listOf(k[list])), func(item any) bool { return nameOf(item) == ourContext })
}

// set replaces our entry in a list (clusters, users, contexts); held is what it has under kind.
func (k config) set(list, kind string, held map[string]any) {
	k[list] = append(k.without(list), map[string]any{"name": ourContext, kind: held})
}

// save writes the file, whole or not at all, where a link at path leads.
func (k config) save(path string) error {
	text, err := json.MarshalIndent(k, "", "  ") // which is YAML, and for jq, too
	if err != nil {
		return err
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	return atomicfile.SaveFile(path, append(text, '\n'))
}

// Write makes the file lead to a server: cluster says where, user as whom. What others have added to it stays.
func Write(path string, cluster, user map[string]any) error {
	if err := CheckOwn(path); err != nil {
		return err
	}
	k, err := read(path)
	if err != nil {
		return fmt.Errorf("--kubeconfig: %w", err)
	}
	if k == nil {
		k = config{"apiVersion": "v1", "kind": "Config"}
	}
	cluster["extensions"] = []any{map[string]any{"name": ourContext, "extension": map[string]any{"writer": ourContext}}}
	context := map[string]any{"cluster": ourContext, "user": ourContext}
	if namespace := k.entry("contexts", "context")["namespace"]; namespace != nil {
		context["namespace"] = namespace
	}
	k.set("clusters", "cluster", cluster)
	k.set("users", "user", user)
	k.set("contexts", "context", context)
	if current, _ := k["current-context"].(string); current == "" {
		k["current-context"] = ourContext
	}
	if err := k.save(path); err != nil {
		return fmt.Errorf("--kubeconfig: %w", err)
	}
	return nil
}

// Clear takes the last run's server out of our file.
func Clear(path string) error {
	if path == "" {
		return nil
	}
	if err := CheckOwn(path); err != nil {
		return err
	}
	k, err := read(path)
	if err != nil {
		return err
	}
	if k == nil || len(k.without("clusters"))+len(k.without("users"))+len(k.without("contexts")) == 0 && k.entry("contexts", "context")["namespace"] == nil {
		if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	k["clusters"], k["users"] = k.without("clusters"), k.without("users")
	k["extensions"] = append(k.without("extensions"), map[string]any{"name": ourContext, "extension": map[string]any{"writer": ourContext}})
	return k.save(path)
}

// ---- Reading one ----

// A destination is where a kubeconfig leads to, and as whom.
type destination struct {
	url, token string      // base address; the token is "" where a certificate speaks
	tls        *tls.Config // authority, client certificate and server name; never nil
}

// destination reads the current context of a file, whose folder relative names start from.
func (k config) destination(path string) (*destination, error) {
	name, _ := k["current-context"].(string)
	chosen := k.named("contexts", "context", name)
	cluster, user := k.named("clusters", "cluster", text(chosen, "cluster")), k.named("users", "user", text(chosen, "user"))
	if cluster == nil || text(cluster, "server") == "" {
		return nil, fmt.Errorf("the current context %q names no server: kubectl config use-context chooses one", name)
	}
	for _, other := range []string{"exec", "auth-provider", "username"} {
		if user[other] != nil {
			return nil, fmt.Errorf("its user has %s, which is not for apilet: kubectl get --raw /debug/backup > DEST makes a backup, kubectl proxy lets --server do the rest", other)
		}
	}
	parts := fileParts{dir: filepath.Dir(path)}
	ca, cert, key := parts.read(cluster, "certificate-authority"), parts.read(user, "client-certificate"), parts.read(user, "client-key")
	s := &destination{url: text(cluster, "server"), token: text(user, "token"), tls: &tls.Config{ServerName: text(cluster, "tls-server-name")}}
	if s.token == "" && text(user, "tokenFile") != "" {
		s.token = strings.TrimSpace(string(parts.file(text(user, "tokenFile"))))
	}
	s.tls.InsecureSkipVerify, _ = cluster["insecure-skip-tls-verify"].(bool)
	if ca != nil {
		s.tls.RootCAs = x509.NewCertPool()
		s.tls.RootCAs.AppendCertsFromPEM(ca)
	}
	if cert != nil && parts.err == nil {
		pair, err := tls.X509KeyPair(cert, key)
		s.tls.Certificates, parts.err = []tls.Certificate{pair}, err
	}
	return s, parts.err
}

func text(fields map[string]any, name string) string {
	value, _ := fields[name].(string)
	return value
}

// fileParts reads what stands in a kubeconfig, or in a file that it names. The first error stays.
type fileParts struct {
	dir string
	err error
}

func (p *fileParts) read(fields map[string]any, name string) []byte {
	if data := text(fields, name+"-data"); data != "" {
		content, err := base64.StdEncoding.DecodeString(data)
		p.err = errors.Join(p.err, err)
		return content
	}
	if file := text(fields, name); file != "" {
		return p.file(file)
	}
	return nil
}

func (p *fileParts) file(name string) []byte {
	if !filepath.IsAbs(name) {
		name = filepath.Join(p.dir, name)
	}
	content, err := os.ReadFile(name)
	p.err = errors.Join(p.err, err)
	return content
}
