package kubeconfig

// This file writes and reads kubeconfigs: the one with the address of this server (--kubeconfig
// FILE), and the one that selects the server to copy from (backup --kubeconfig FILE).
//
// The server only writes its own file. In other programs a flag of that name is a file to read, and
// a user who passes ~/.kube/config here expects the same. Therefore, if the file has other content,
// the server returns an error before doing anything else. Other cluster tools merge a context into
// the file. This was rejected, because it would send the user's next `kubectl delete` to a
// different cluster, and would store an administrator's key in a file that is often copied.
// KUBECONFIG=a:b reads both files.
//
// Files written by apilet are marked by an extension of the cluster, which is preserved by kubectl:
//
//	clusters: [{name: apilet, cluster: {server: ..., extensions: [{name: apilet, extension: {writer: apilet}}]}}]
//
// If a user adds or selects contexts, or sets the namespace of apilet's context, the changes are
// preserved. When a server starts, it removes the address of the previous run, and the file if it
// contains nothing else. A script that waits for the file therefore does not read the port of the
// previous run.

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

// also the name of the cluster, the user and the extension
const ourContext = "apilet"

// config is the content of a kubeconfig. Unknown fields are kept.
type config map[string]any

// read returns nil if the file does not exist or is empty.
func read(path string) (config, error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err == nil && !info.Mode().IsRegular():
		return nil, errors.New("it is not a regular file")
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var k config
	return k, yaml.Unmarshal(text, &k)
}

// CheckOwnership returns an error if the file was not written by apilet.
func CheckOwnership(path string) error {
	if path == "" {
		return nil
	}
	if info, err := os.Stat(filepath.Dir(path)); err != nil || !info.IsDir() {
		return fmt.Errorf("--kubeconfig: cannot write %s: its folder does not exist", path)
	}
	k, err := read(path)
	if err != nil || k != nil && !k.isOwn() {
		return fmt.Errorf("--kubeconfig: %s was not written by apilet and is not changed: choose another file; KUBECONFIG=%s:FILE reads both", path, path)
	}
	return nil
}

// isOwn reports whether a server has written the file, even if users have added to it since. Files
// written by earlier versions are not marked, but contain only the three entries.
func (k config) isOwn() bool {
	cluster := k.entry("clusters", "cluster")
	for _, extension := range listOf(cluster["extensions"]) {
		if nameOf(extension) == ourContext {
			return true
		}
	}
	for _, list := range []string{"clusters", "users", "contexts"} {
		if entries := listOf(k[list]); len(entries) != 1 || nameOf(entries[0]) != ourContext {
			return k.isCleared()
		}
	}
	return cluster["server"] != nil
}

// isCleared reports whether Clear has kept the file because users had added to it.
func (k config) isCleared() bool {
	return slices.ContainsFunc(listOf(k["extensions"]), func(e any) bool { return nameOf(e) == ourContext })
}

// listOf returns value as a list, or nil if it is not a list.
func listOf(value any) []any {
	list, _ := value.([]any)
	return list
}

func nameOf(entry any) string {
	fields, _ := entry.(map[string]any)
	name, _ := fields["name"].(string)
	return name
}

// entry returns the content of apilet's entry in a list, or nil if it does not exist.
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

// without returns a list without apilet's entry.
func (k config) without(list string) []any {
	return slices.DeleteFunc(slices.Clone(listOf(k[list])), func(item any) bool { return nameOf(item) == ourContext })
}

// set replaces apilet's entry in a list (clusters, users, contexts). held is the content under the
// key kind.
func (k config) set(list, kind string, held map[string]any) {
	k[list] = append(k.without(list), map[string]any{"name": ourContext, kind: held})
}

// save replaces the file atomically. If path is a link, it replaces the target.
func (k config) save(path string) error {
	text, err := json.MarshalIndent(k, "", "  ") // JSON is valid YAML, and jq can read it
	if err != nil {
		return err
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	return atomicfile.SaveFile(path, append(text, '\n'))
}

// Write writes the address of a server and its user to the file. Additions of users are kept.
func Write(path string, cluster, user map[string]any) error {
	if err := CheckOwnership(path); err != nil {
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

// Clear removes the server of the previous run from the file.
func Clear(path string) error {
	if path == "" {
		return nil
	}
	if err := CheckOwnership(path); err != nil {
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

// ---- Reading ----

// destination is the server and the user of a context.
type destination struct {
	url, token string // base URL; the token is "" if a certificate is used
	// CA, client certificate and server name; never nil
	tls *tls.Config
}

// destination returns the current context of a file. Relative file names are relative to the folder
// of path.
func (k config) destination(path string) (*destination, error) {
	name, _ := k["current-context"].(string)
	chosen := k.named("contexts", "context", name)
	cluster, user := k.named("clusters", "cluster", text(chosen, "cluster")), k.named("users", "user", text(chosen, "user"))
	if cluster == nil || text(cluster, "server") == "" {
		return nil, fmt.Errorf("the current context %q has no server: choose another one with kubectl config use-context", name)
	}
	for _, other := range []string{"exec", "auth-provider", "username"} {
		if user[other] != nil {
			return nil, fmt.Errorf("its user has %s, which apilet does not support: use kubectl get --raw /debug/backup > DEST for a backup, otherwise kubectl proxy with --server", other)
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

// fileParts reads data that is embedded in a kubeconfig, or in a file that the kubeconfig names. It
// collects the errors.
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
