// Package apilettest starts Kubernetes API servers for tests.
//
//	func TestReconcile(t *testing.T) {
//		s := apilettest.Start(t, apilettest.CRDs("../config/crd/bases"))
//		config, err := clientcmd.RESTConfigFromKubeConfig(s.Kubeconfig())
//		...
//	}
//
// Each server is a separate process of apilet with its own temporary file, so parallel tests are
// isolated from each other. It is ready in tens of milliseconds. The process is killed when the
// test ends, and on Linux also when the test binary is killed. If the test fails, it prints the
// last changes with their authors (apilet log), the writers that fight (apilet log --findings) and
// the server's log. A panic or a data race in a log fails the test.
//
// [Program] finds apilet or builds it. The first build takes minutes.
//
// Start waits until the server accepts requests. The wait fails if the process exits, or shortly
// before the test's deadline (go test -timeout). There is no other timeout.
//
// The package imports only the standard library, so it adds no dependencies to the module of its
// user.
package apilettest

// This file starts apilet.

import (
	"crypto/rand"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// An Option changes how apilet is started.
type Option func(*settings)

type settings struct {
	flags    []string
	data     string
	base     string
	crds     []string
	users    []user
	keepPort bool
}

// A user authenticates by a token.
type user struct {
	name, token string
	groups      []string
}

// Flags adds flags to the command line.
func Flags(flags ...string) Option {
	return func(s *settings) { s.flags = append(s.flags, flags...) }
}

// Data keeps the objects in a file. Without it they end with the process.
func Data(path string) Option { return func(s *settings) { s.data = path } }

// Base starts the server with a private copy of a prepared file, which apilet fork makes.
func Base(path string) Option { return func(s *settings) { s.base = path } }

// CRDs installs the CustomResourceDefinitions of files and folders each time a process starts, and
// waits until they are established. In a folder it reads files with the extensions .yaml, .yml and
// .json. Objects of other types are ignored.
func CRDs(paths ...string) Option {
	return func(s *settings) { s.crds = append(s.crds, paths...) }
}

// User adds a user who authenticates by a token. [Server.KubeconfigFor] returns the user's
// kubeconfig. The user's requests are authorized by RBAC. A server with users serves TLS.
func User(name string, groups ...string) Option {
	return func(s *settings) { s.users = append(s.users, user{name, rand.Text(), groups}) }
}

// KeepPort reuses the same port after a restart. On Linux, other programs cannot get the port in
// the meantime.
func KeepPort() Option { return func(s *settings) { s.keepPort = true } }

// Start starts an apilet on a loopback port and returns when it is ready.
func Start(t testing.TB, options ...Option) *Server {
	t.Helper()
	s := Prepare(t, options...)
	if err := s.Run(); err != nil {
		t.Fatal(err)
	}
	return s
}

// Prepare returns an apilet that has not been started.
func Prepare(t testing.TB, options ...Option) *Server {
	t.Helper()
	var how settings
	for _, option := range options {
		option(&how)
	}
	dir := t.TempDir()
	kubeconfig := filepath.Join(dir, "kubeconfig")
	args, err := how.arguments(t, dir)
	if err != nil {
		t.Fatal(err)
	}
	s := New(t, Program(t), slices.Concat(args, []string{"--kubeconfig", kubeconfig}, how.flags)...)
	s.KubeconfigFile = kubeconfig
	s.users = how.users
	if len(how.crds) > 0 {
		manifests, err := readCRDs(how.crds)
		if err != nil {
			t.Fatal(err)
		}
		s.manifests = manifests
	}
	t.Cleanup(s.reportHistory) // before the process ends
	return s
}

// arguments returns the flags of the settings. It writes their files into a folder.
func (how *settings) arguments(t testing.TB, dir string) ([]string, error) {
	listen := "127.0.0.1:0"
	if how.keepPort {
		listen = fmt.Sprint("127.0.0.1:", FreePort(t))
	}
	args := []string{"--listen", listen}
	if how.data == "" {
		args = append(args, "--ephemeral")
	} else {
		args = append(args, "--data", how.data)
	}
	if how.base != "" {
		args = append(args, "--base", how.base)
	}
	if len(how.users) > 0 {
		path := filepath.Join(dir, "tokens")
		if err := writeTokens(path, how.users); err != nil {
			return nil, err
		}
		args = append(args, "--token-auth-file", path)
	}
	return args, nil
}

// writeTokens writes the file of --token-auth-file.
func writeTokens(path string, users []user) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	w := csv.NewWriter(f)
	for _, u := range users {
		_ = w.Write([]string{u.token, u.name, u.name, strings.Join(u.groups, ",")}) // Error returns it
	}
	w.Flush()
	return errors.Join(w.Error(), f.Close())
}

// ---- Kubeconfigs ----

// Kubeconfig returns the administrator's kubeconfig, which the server has written.
func (s *Server) Kubeconfig() []byte {
	s.t.Helper()
	text, err := os.ReadFile(s.KubeconfigFile)
	if err != nil {
		s.t.Fatal(err)
	}
	return text
}

// KubeconfigFor returns the kubeconfig of a user whom the option [User] has added.
func (s *Server) KubeconfigFor(name string) []byte {
	s.t.Helper()
	at := slices.IndexFunc(s.users, func(u user) bool { return u.name == name })
	if at < 0 {
		s.t.Fatalf("the server was started without the option User(%q)", name)
	}
	var config map[string]any
	if err := json.Unmarshal(s.Kubeconfig(), &config); err != nil {
		s.t.Fatal(err)
	}
	config["users"] = []any{map[string]any{"name": name, "user": map[string]any{"token": s.users[at].token}}}
	for _, entry := range config["contexts"].([]any) {
		entry.(map[string]any)["context"].(map[string]any)["user"] = name
	}
	text, err := json.MarshalIndent(config, "", "  ")
	if err != nil {
		s.t.Fatal(err)
	}
	return text
}
