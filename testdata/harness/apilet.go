package harness

// This file starts apilet.

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// An Option changes how apilet is started.
type Option func(*settings)

type settings struct {
	flags    []string
	data     string
	keepPort bool
}

// Flags adds flags to the command line.
func Flags(flags ...string) Option {
	return func(s *settings) { s.flags = append(s.flags, flags...) }
}

// Data keeps the objects in a file. Without it they end with the process.
func Data(path string) Option { return func(s *settings) { s.data = path } }

// KeepPort gives all processes of the server the same port. No other program gets it while the server is down.
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
	listen := "127.0.0.1:0"
	if how.keepPort {
		port, err := reservePort()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(port.close)
		listen = fmt.Sprint("127.0.0.1:", port.number)
	}
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	args := []string{"--listen", listen, "--kubeconfig", kubeconfig}
	if how.data == "" {
		args = append(args, "--ephemeral")
	} else {
		args = append(args, "--data", how.data)
	}
	s := New(t, Apilet(t), slices.Concat(args, how.flags)...)
	s.KubeconfigFile = kubeconfig
	return s
}

// urlIn returns the server's URL in a kubeconfig. apilet writes the file when it accepts requests.
func urlIn(kubeconfig string) (string, error) {
	text, err := os.ReadFile(kubeconfig)
	if err != nil {
		return "", err
	}
	var config struct {
		Clusters []struct{ Cluster struct{ Server string } }
	}
	if err := json.Unmarshal(text, &config); err != nil {
		return "", err
	}
	if len(config.Clusters) == 0 || config.Clusters[0].Cluster.Server == "" {
		return "", errors.New("the kubeconfig has no server")
	}
	return config.Clusters[0].Cluster.Server, nil
}
