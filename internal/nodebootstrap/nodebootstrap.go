// Package nodebootstrap implements the command `apilet node-bootstrap`, which prepares a machine to
// run Pods. It writes the certificates, kubeconfigs and configuration files for the kubelet,
// kube-proxy, kube-controller-manager and kube-scheduler into a folder, and creates the
// ClusterRoleBindings for TLS bootstrap. The command must run on the same machine as the server,
// because it signs the certificates with the server's CA key.
//
//	rows := nodebootstrap.Commands(logger) // for the table of package commandline
//
// The kubelet receives a client certificate instead of a bootstrap token. A bootstrap token can be
// used to join under any node name, but the certificate is only valid for one node. When the
// kubelet starts for the first time, it generates a new key and requests another certificate, which
// kube-controller-manager approves and signs.
//
// The command is idempotent. It only issues a certificate if the existing one is missing, does not
// match, or expires within 30 days. It does not overwrite existing bindings or edited configuration
// files. Private keys have mode 0600.
package nodebootstrap

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"k8s.io/apimachinery/pkg/util/validation"

	"apilet/internal/auth/certs"
	"apilet/internal/commandline"
	"apilet/internal/kubeconfig"
)

// agent is the user agent of the command's requests.
const agent = "apilet/node-bootstrap"

// timeout limits all requests of the command together.
const timeout = time.Minute

// command holds the values of the flags.
type command struct {
	kubeconfig, certDir string
	node                string   // "" means the name of this machine
	nodeIPs             []string // none means the address of this machine on the default route
	server              string   // "" means the server of kubeconfig
	clusterCIDR         string
	clusterDNS          string
	clusterDomain       string
	runtimeEndpoint     string
	cgroupDriver        string
	controlPlane        bool
	logger              func(io.Writer) zerolog.Logger
}

// Commands returns the entry for the table of commands.
func Commands(logger func(io.Writer) zerolog.Logger) []commandline.Command {
	c := &command{logger: logger}
	return []commandline.Command{{Name: "node-bootstrap", Args: "DIR", ArgCounts: []int{1},
		Description: "write the certificates, kubeconfigs and configuration files of a node into a folder, on the machine of the server",
		Groups:      []commandline.FlagGroup{{Title: "The server", Define: c.defineServer}, {Title: "The node", Define: c.defineNode}},
		Run:         c.run}}
}

func (c *command) defineServer(f *flag.FlagSet) {
	f.StringVar(&c.kubeconfig, "kubeconfig", "", "the kubeconfig `file` of an administrator, for example the one that the server writes")
	f.StringVar(&c.certDir, "cert-dir", "apilet-certs", "the `folder` given to the server as --cert-dir; its CA signs the certificates")
	f.StringVar(&c.server, "server", "", "the `URL` at which the node reaches the server (default: that of --kubeconfig)")
}

func (c *command) defineNode(f *flag.FlagSet) {
	f.StringVar(&c.node, "node-name", "", "the `name` of the node (default: the name of this machine)")
	f.Func("node-ip", "comma-separated `addresses` of the node, for the kubelet's serving certificate (default: the address of this machine on the default route)", commandline.AppendList(&c.nodeIPs))
	f.StringVar(&c.clusterCIDR, "cluster-cidr", "10.244.0.0/16", "the `CIDR` of all Pods, for kube-proxy")
	f.StringVar(&c.clusterDNS, "cluster-dns", "10.96.0.10", "the `address` of the DNS Service, for the kubelet")
	f.StringVar(&c.clusterDomain, "cluster-domain", "cluster.local", "the DNS `domain` of the cluster, for the kubelet")
	f.StringVar(&c.runtimeEndpoint, "container-runtime-endpoint", "unix:///run/containerd/containerd.sock", "the `socket` of the container runtime, for the kubelet")
	f.StringVar(&c.cgroupDriver, "cgroup-driver", "systemd", "`systemd|cgroupfs`: the cgroup driver of the kubelet, which must be the same as the container runtime's")
	f.BoolVar(&c.controlPlane, "control-plane", true, "also write the files of kube-controller-manager and kube-scheduler; set it to false for a node on another machine")
}

// run writes the files, creates the bindings, and checks that the server accepts the kubelet's
// certificate.
func (c *command) run(call commandline.Call) error {
	if c.kubeconfig == "" {
		return errors.New("--kubeconfig is required: the kubeconfig of an administrator")
	}
	admin, err := kubeconfig.Remote{Kubeconfig: c.kubeconfig, Agent: agent}.Client()
	if err != nil {
		return err
	}
	n, err := c.resolve(call.Args[0], admin.URL())
	if err != nil {
		return err
	}
	log := c.logger(call.Errors)
	issuer, err := certs.OpenIssuer(certs.Config{Dir: n.dir, Now: time.Now, Log: log}, c.certDir)
	if err != nil {
		return fmt.Errorf("--cert-dir: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if err := (&writer{node: n, issuer: issuer, out: call.Out, log: log}).writeAll(); err != nil {
		return err
	}
	if err := createBindings(ctx, admin, call.Out); err != nil {
		return err
	}
	return n.verify(ctx, call.Errors)
}

// node holds the flags after defaults have been applied.
type node struct {
	*command
	dir    string // absolute
	name   string
	server string // URL
	// host names and addresses in the kubelet's serving certificate
	hosts []string
}

// resolve validates the flags and applies defaults. url is the server address in the
// administrator's kubeconfig.
func (c *command) resolve(dir, url string) (n *node, err error) {
	n = &node{command: c, server: strings.TrimSuffix(cmp.Or(c.server, url), "/")}
	if n.dir, err = filepath.Abs(dir); err != nil {
		return nil, err
	}
	if err := checkServer(n.server); err != nil {
		return nil, err
	}
	machine, err := os.Hostname()
	if err != nil && c.node == "" {
		return nil, fmt.Errorf("--node-name is missing: %w", err)
	}
	machine = strings.ToLower(machine) // as the kubelet does
	n.name = cmp.Or(c.node, machine)
	if problems := validation.IsDNS1123Subdomain(n.name); len(problems) > 0 {
		return nil, fmt.Errorf("--node-name: %q is not the name of a node: %s", n.name, problems[0])
	}
	ips := c.nodeIPs
	if len(ips) == 0 {
		if n.name != machine {
			return nil, fmt.Errorf("--node-ip is missing: node %s is not this machine, which is called %s", n.name, machine)
		}
		if ips = routedAddresses(); len(ips) == 0 {
			return nil, errors.New("--node-ip is missing: this machine has no route to other networks")
		}
	}
	n.hosts = append([]string{n.name}, ips...)
	return n, c.check(ips)
}

// checkServer returns an error if the URL is not https, because client certificates need TLS.
func checkServer(server string) error {
	u, err := url.Parse(server)
	if err != nil || u.Host == "" || u.Scheme != "https" {
		return fmt.Errorf("the server %q does not use https, which client certificates need: start it with --cert-dir or --tls-san", server)
	}
	return nil
}

func (c *command) check(nodeIPs []string) error {
	for _, ip := range nodeIPs {
		if addr, err := netip.ParseAddr(ip); err != nil || addr.IsUnspecified() || addr.Zone() != "" {
			return fmt.Errorf("--node-ip: %q is not the IP address of a node", ip)
		}
	}
	for _, cidr := range strings.Split(c.clusterCIDR, ",") {
		if _, err := netip.ParsePrefix(cidr); err != nil {
			return fmt.Errorf("--cluster-cidr: %w", err)
		}
	}
	if _, err := netip.ParseAddr(c.clusterDNS); err != nil {
		return fmt.Errorf("--cluster-dns: %w", err)
	}
	if !slices.Contains([]string{"systemd", "cgroupfs"}, c.cgroupDriver) {
		return fmt.Errorf("--cgroup-driver: %q is neither systemd nor cgroupfs", c.cgroupDriver)
	}
	return nil
}

// routedAddresses returns the addresses from which this machine reaches other networks: at most one
// IPv4 and one IPv6 address. The kubelet chooses its address in the same way. Addresses of bridges
// for Pods are not included, so that the result is the same before and after the first Pod.
func routedAddresses() (ips []string) {
	for _, elsewhere := range []string{"192.0.2.1:9", "[2001:db8::1]:9"} {
		conn, err := net.Dial("udp", elsewhere) // sends nothing
		if err != nil {
			continue
		}
		ip := conn.LocalAddr().(*net.UDPAddr).IP
		conn.Close()
		if ip.IsGlobalUnicast() {
			ips = append(ips, ip.String())
		}
	}
	return ips
}
