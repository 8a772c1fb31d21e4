package nodebootstrap

// This file writes the files of a node:
//
//	ca.crt                                  the authority: clientCAFile of the kubelet, --root-ca-file of kube-controller-manager
//	kubelet.yaml                            KubeletConfiguration
//	kubelet.kubeconfig                      the kubelet's first client certificate, embedded
//	kubelet-serving.crt, .key               the kubelet's serving certificate
//	kube-proxy.yaml                         KubeProxyConfiguration
//	kube-proxy.kubeconfig, .crt, .key       the same for kube-controller-manager and kube-scheduler
//
// kubelet.kubeconfig embeds the certificate. The kubelet then requests a new certificate as soon as
// it starts, and falls back to the embedded one if the new one has expired. The other kubeconfigs
// refer to certificate files, because client-go reloads such files when they change.
//
// All paths are relative, so that the folder can be moved to another machine. They are resolved
// relative to the folder, except for the kubeconfig in kube-proxy.yaml, which is relative to the
// working directory of kube-proxy.

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/rs/zerolog"
	"sigs.k8s.io/yaml"

	"apilet/internal/atomicfile"
	"apilet/internal/auth/certs"
)

// systemdResolved lists the upstream DNS servers on machines that run systemd-resolved. On such
// machines /etc/resolv.conf refers to a stub resolver on the loopback interface, which Pods cannot
// reach.
const systemdResolved = "/run/systemd/resolve/resolv.conf"

// writer creates the files for a node and prints the result for each file.
type writer struct {
	*node
	issuer *certs.Issuer
	out    io.Writer
	log    zerolog.Logger
}

func (w *writer) writeAll() error {
	if err := w.save("ca.crt", w.issuer.Authority()); err != nil {
		return err
	}
	if err := w.writeKubelet(); err != nil {
		return err
	}
	clients := []string{"kube-proxy"}
	if w.controlPlane {
		clients = append(clients, "kube-controller-manager", "kube-scheduler")
	}
	for _, name := range clients {
		if _, err := w.ensure(certs.Request{Name: name, User: "system:" + name}); err != nil {
			return err
		}
		user := map[string]any{"client-certificate": name + ".crt", "client-key": name + ".key"}
		if err := w.saveKubeconfig(name, user); err != nil {
			return err
		}
	}
	return w.saveOnce("kube-proxy.yaml", w.kubeProxyConfiguration())
}

func (w *writer) writeKubelet() error {
	if err := w.discardExposed(); err != nil {
		return err
	}
	identity := certs.Request{Name: "kubelet-client", User: w.user(), Groups: []string{"system:nodes"}}
	client, err := w.ensure(identity)
	if err != nil {
		return err
	}
	user := map[string]any{"client-certificate-data": client.CertPEM, "client-key-data": client.KeyPEM}
	if err := w.saveKubeconfig("kubelet", user); err != nil {
		return err
	}
	identity.Name, identity.Hosts = "kubelet-serving", w.hosts
	if _, err := w.ensure(identity); err != nil {
		return err
	}
	return w.saveOnce("kubelet.yaml", w.kubeletConfiguration())
}

// discardExposed removes the kubelet's client certificate if other users could read the key in its
// kubeconfig.
func (w *writer) discardExposed() error {
	exposed, err := certs.RestrictPermissions(w.log, w.path("kubelet.kubeconfig"))
	if exposed && err == nil {
		err = os.Remove(w.path("kubelet-client.crt"))
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// user returns the user name of the kubelet.
func (n *node) user() string { return "system:node:" + n.name }

func (w *writer) path(name string) string { return filepath.Join(w.dir, name) }

func (w *writer) tell(name, state string) { fmt.Fprintf(w.out, "%s: %s\n", w.path(name), state) }

func (w *writer) ensure(r certs.Request) (*certs.KeyPair, error) {
	pair, issued, err := w.issuer.Ensure(r)
	switch {
	case err != nil:
		return nil, err
	case issued:
		w.tell(r.Name+".crt", "issued for "+r.User)
	default:
		w.tell(r.Name+".crt", "unchanged")
	}
	return pair, nil
}

// save writes a file unless it already has the given content.
func (w *writer) save(name string, content []byte) error {
	if existing, err := os.ReadFile(w.path(name)); err == nil && bytes.Equal(existing, content) {
		w.tell(name, "unchanged")
		return nil
	}
	if err := atomicfile.SaveFile(w.path(name), content); err != nil {
		return err
	}
	w.tell(name, "written")
	return nil
}

// saveOnce writes a configuration file. It does not overwrite an existing file, because users may
// have edited it.
func (w *writer) saveOnce(name string, fields map[string]any) error {
	content, err := yaml.Marshal(fields)
	if err != nil {
		return err
	}
	existing, err := os.ReadFile(w.path(name))
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	case err == nil && !bytes.Equal(existing, content):
		w.tell(name, "exists and differs, not overwritten; remove it to write it again")
		return nil
	}
	return w.save(name, content)
}

// saveKubeconfig writes NAME.kubeconfig.
func (w *writer) saveKubeconfig(name string, user map[string]any) error {
	cluster := map[string]any{"server": w.server, "certificate-authority": "ca.crt"}
	content, err := json.MarshalIndent(map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": name,
		"clusters": []any{map[string]any{"name": "apilet", "cluster": cluster}},
		"users":    []any{map[string]any{"name": name, "user": user}},
		"contexts": []any{map[string]any{"name": name, "context": map[string]any{"cluster": "apilet", "user": name}}},
	}, "", "  ")
	if err != nil {
		return err
	}
	return w.save(name+".kubeconfig", append(content, '\n'))
}

func (w *writer) kubeletConfiguration() map[string]any {
	fields := map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"authentication": map[string]any{
			"anonymous": map[string]any{"enabled": false},
			"webhook":   map[string]any{"enabled": true},
			"x509":      map[string]any{"clientCAFile": "ca.crt"},
		},
		"authorization":            map[string]any{"mode": "Webhook"},
		"tlsCertFile":              "kubelet-serving.crt",
		"tlsPrivateKeyFile":        "kubelet-serving.key",
		"rotateCertificates":       true,
		"containerRuntimeEndpoint": w.runtimeEndpoint,
		"cgroupDriver":             w.cgroupDriver,
		"clusterDNS":               []string{w.clusterDNS},
		"clusterDomain":            w.clusterDomain,
		// allow swap, which is common on small machines (Pods do not use it by default)
		"failSwapOn": false,
	}
	if _, err := os.Stat(systemdResolved); err == nil {
		fields["resolvConf"] = systemdResolved
	}
	return fields
}

func (w *writer) kubeProxyConfiguration() map[string]any {
	return map[string]any{
		"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
		"clientConnection": map[string]any{"kubeconfig": "kube-proxy.kubeconfig"},
		"clusterCIDR":      w.clusterCIDR,
		"hostnameOverride": w.name,
		"mode":             "iptables",
	}
}
