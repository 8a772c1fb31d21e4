package main

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

	"apilet/internal/atomicfile"
	"sigs.k8s.io/yaml"
)

const ourContext = "apilet" // also the name of the cluster, the user and the extension

// A kubeconfig is such a file's content. What is not known here stays as it is.
type kubeconfig map[string]any

// readKubeconfig returns nil for a file that is not there, or empty.
func readKubeconfig(path string) (kubeconfig, error) {
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
	var k kubeconfig
	return k, yaml.Unmarshal(text, &k)
}

// ownKubeconfig returns an error for a file that is not the server's to write.
func ownKubeconfig(path string) error {
	if path == "" {
		return nil
	}
	if info, err := os.Stat(filepath.Dir(path)); err != nil || !info.IsDir() {
		return fmt.Errorf("--kubeconfig: cannot write %s: its folder is not there: make that first", path)
	}
	k, err := readKubeconfig(path)
	if err != nil || k != nil && !k.ours() {
		return fmt.Errorf("--kubeconfig: %s was not written by apilet and is left as it is: name another file; KUBECONFIG=%s:FILE reads both", path, path)
	}
	return nil
}

// ours tells a file that a server has written, whatever was added to it since: by the mark, or, before there was one, by holding nothing
// but the three entries.
func (k kubeconfig) ours() bool {
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

// cleared tells a file that clearKubeconfig has left for what was added to it.
func (k kubeconfig) cleared() bool {
	return slices.ContainsFunc(listOf(k["extensions"]), func(e any) bool { return nameOf(e) == ourContext })
}

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
func (k kubeconfig) entry(list, kind string) map[string]any { return k.named(list, kind, ourContext) }

func (k kubeconfig) named(list, kind, name string) map[string]any {
	for _, item := range listOf(k[list]) {
		if nameOf(item) == name {
			held, _ := item.(map[string]any)[kind].(map[string]any)
			return held
		}
	}
	return nil
}

// without takes our entry out of a list.
func (k kubeconfig) without(list string) []any {
	return slices.DeleteFunc(slices.Clone(listOf(k[list])), func(item any) bool { return nameOf(item) == ourContext })
}

func (k kubeconfig) set(list, kind string, held map[string]any) {
	k[list] = append(k.without(list), map[string]any{"name": ourContext, kind: held})
}

func (k kubeconfig) save(path string) error {
	text, err := json.MarshalIndent(k, "", "  ") // which is YAML, and for jq, too
	if err != nil {
		return err
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	return atomicfile.SaveFile(path, append(text, '\n'))
}

// clearKubeconfig takes the last run's server out of our file.
func clearKubeconfig(path string) error {
	if path == "" {
		return nil
	}
	if err := ownKubeconfig(path); err != nil {
		return err
	}
	k, err := readKubeconfig(path)
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

// writeKubeconfig writes how to reach this server, at once and whole.
func (s *server) writeKubeconfig() error {
	cluster, admin, err := s.access()
	if err != nil {
		return fmt.Errorf("--kubeconfig: %w", err)
	}
	if err := ownKubeconfig(s.cfg.kubeconfig); err != nil {
		return err
	}
	k, err := readKubeconfig(s.cfg.kubeconfig)
	if err != nil {
		return fmt.Errorf("--kubeconfig: %w", err)
	}
	if k == nil {
		k = kubeconfig{"apiVersion": "v1", "kind": "Config"}
	}
	cluster["extensions"] = []any{map[string]any{"name": ourContext, "extension": map[string]any{"writer": ourContext}}}
	context := map[string]any{"cluster": ourContext, "user": ourContext}
	if namespace := k.entry("contexts", "context")["namespace"]; namespace != nil {
		context["namespace"] = namespace
	}
	k.set("clusters", "cluster", cluster)
	k.set("users", "user", admin)
	k.set("contexts", "context", context)
	if current, _ := k["current-context"].(string); current == "" {
		k["current-context"] = ourContext
	}
	if err := k.save(s.cfg.kubeconfig); err != nil {
		return fmt.Errorf("--kubeconfig: %w", err)
	}
	return nil
}

// access is what a client needs. On the plain port it says insecure-skip-tls-verify: the JavaScript client refuses plain HTTP otherwise,
// the others ignore it. A server with an authority of its own adds an administrator's certificate; another cannot make one, and leaves
// the user empty.
func (s *server) access() (cluster, admin map[string]any, err error) {
	cluster, admin = map[string]any{"server": s.url}, map[string]any{}
	switch {
	case s.certs != nil:
		cluster["certificate-authority-data"] = s.certs.Authority.CertPEM
		pair, err := s.certs.IssueAdmin()
		if err != nil {
			return nil, nil, err
		}
		admin["client-certificate-data"], admin["client-key-data"] = pair.CertPEM, pair.KeyPEM
		s.adminEnds = pair.Cert.NotAfter
	case s.cfg.tlsCert != "":
		ca, err := os.ReadFile(s.cfg.tlsCert)
		if err != nil {
			return nil, nil, err
		}
		cluster["certificate-authority-data"] = ca
	default:
		cluster["insecure-skip-tls-verify"] = true
	}
	return cluster, admin, nil
}

// ---- Reading one ----

// A namedServer is where a kubeconfig leads to, and as whom.
type namedServer struct {
	url, token string
	tls        *tls.Config
}

// server reads the current context of a file, whose folder relative names start from.
func (k kubeconfig) server(path string) (*namedServer, error) {
	name, _ := k["current-context"].(string)
	chosen := k.named("contexts", "context", name)
	cluster, user := k.named("clusters", "cluster", text(chosen, "cluster")), k.named("users", "user", text(chosen, "user"))
	if cluster == nil || text(cluster, "server") == "" {
		return nil, fmt.Errorf("the current context %q names no server: kubectl config use-context chooses one", name)
	}
	for _, other := range []string{"exec", "auth-provider", "username"} {
		if user[other] != nil {
			return nil, fmt.Errorf("its user has %s, which is not for apilet: kubectl get --raw /debug/backup > DEST", other)
		}
	}
	parts := fileParts{dir: filepath.Dir(path)}
	ca, cert, key := parts.read(cluster, "certificate-authority"), parts.read(user, "client-certificate"), parts.read(user, "client-key")
	s := &namedServer{url: text(cluster, "server"), token: text(user, "token"), tls: &tls.Config{ServerName: text(cluster, "tls-server-name")}}
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
