package apilettest

// This file makes the administrator's HTTP client.

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"net/http"
	"os"
)

// kubeconfig contains the server's URL. If the server uses TLS, it also contains the CA and the
// administrator's certificate.
type kubeconfig struct {
	server           string
	authority        []byte
	certificate, key []byte
}

// readKubeconfig reads a kubeconfig that was written by apilet, in JSON.
func readKubeconfig(path string) (kubeconfig, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return kubeconfig{}, err
	}
	var config struct {
		Clusters []struct {
			Cluster struct {
				Server    string
				Authority []byte `json:"certificate-authority-data"`
			}
		}
		Users []struct {
			User struct {
				Certificate []byte `json:"client-certificate-data"`
				Key         []byte `json:"client-key-data"`
			}
		}
	}
	if err := json.Unmarshal(text, &config); err != nil {
		return kubeconfig{}, err
	}
	if len(config.Clusters) == 0 || config.Clusters[0].Cluster.Server == "" {
		return kubeconfig{}, errors.New("the kubeconfig has no server")
	}
	read := kubeconfig{server: config.Clusters[0].Cluster.Server, authority: config.Clusters[0].Cluster.Authority}
	if len(config.Users) > 0 {
		read.certificate, read.key = config.Users[0].User.Certificate, config.Users[0].User.Key
	}
	return read, nil
}

// client returns an HTTP client with the administrator's credentials.
func (k kubeconfig) client() (*http.Client, error) {
	transport := &http.Transport{}
	if len(k.authority) > 0 {
		pair, err := tls.X509KeyPair(k.certificate, k.key)
		if err != nil {
			return nil, err
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(k.authority)
		transport.TLSClientConfig = &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}}
	}
	return &http.Client{Transport: transport}, nil
}

// Client returns an HTTP client of the current process with the administrator's credentials.
// [Server.URL] is the base of its URLs.
func (s *Server) Client() *http.Client {
	s.t.Helper()
	config, err := readKubeconfig(s.KubeconfigFile)
	if err != nil {
		s.t.Fatal(err)
	}
	client, err := config.client()
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(client.CloseIdleConnections)
	return client
}
