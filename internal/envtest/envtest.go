package envtest

// This file lets apilet replace the two programs that tests with a Kubernetes control plane start.
// controller-runtime's envtest and similar tools look for kube-apiserver and etcd in a folder,
// start both with their own arguments, poll /health and /healthz until they respond, and stop them
// with SIGTERM. If the folder has links with these names to apilet, such tests run unchanged:
//
//	eval "$(apilet envtest-assets bin)"     # the links, kubectl if installed, and export KUBEBUILDER_ASSETS=...
//	go test ./...
//
// If apilet is called as kube-apiserver, it translates the arguments and runs as usual. It deletes
// its data when the process ends. A table lists the flags of kube-apiserver. If apilet supports a
// flag, the flag is passed on. If the flag has a different name in apilet, it is translated. All
// other flags are accepted and logged in a single line, because most of them configure components
// that do not exist in apilet (caches, etcd's certificates). Unknown flags are rejected as in
// kube-apiserver, so that typing errors are detected.
//
// envtest always sets --disable-admission-plugins=ServiceAccount, which means that no
// kube-controller-manager creates service accounts. In this case apilet does not create service
// accounts either, so that tests only see their own objects.
//
// When it is called as etcd, apilet only serves the health check. It does not store any data and
// does not support gRPC. The objects are in the other process.

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"apilet/internal/commandline"
	"apilet/internal/drain"
)

// etcdVersion is the version of etcd in Kubernetes 1.37. It is only used for --version.
const etcdVersion = "3.6.8"

// ErrShowVersion is returned if the arguments contain --version.
var ErrShowVersion = errors.New("version asked for")

// apiserverSwitches lists all boolean flags of kube-apiserver 1.37. If a flag has no value, it is
// true.
var apiserverSwitches = strings.Fields(`
	aggregator-reject-forwarding-redirect allow-privileged anonymous-auth audit-log-batch-throttle-enable audit-log-compress
	audit-log-truncate-enabled audit-webhook-batch-throttle-enable audit-webhook-truncate-enabled contention-profiling
	disable-http2-serving emulation-forward-compatible enable-aggregator-routing enable-bootstrap-token-auth enable-garbage-collector
	enable-logs-handler enable-priority-and-fairness encryption-provider-config-automatic-reload log-json-split-stream
	log-text-split-stream permit-address-sharing permit-port-sharing profiling runtime-config-emulation-forward-compatible
	service-account-extend-token-expiration service-account-lookup shutdown-send-retry-after watch-cache`)

// apiserverSettings lists all flags of kube-apiserver 1.37 that require a value.
var apiserverSettings = strings.Fields(`
	admission-control admission-control-config-file advertise-address allow-metric-labels allow-metric-labels-manifest api-audiences
	audit-log-batch-buffer-size audit-log-batch-max-size audit-log-batch-max-wait audit-log-batch-throttle-burst
	audit-log-batch-throttle-qps audit-log-format audit-log-maxage audit-log-maxbackup audit-log-maxsize audit-log-mode audit-log-path
	audit-log-truncate-max-batch-size audit-log-truncate-max-event-size audit-log-version audit-policy-file
	audit-webhook-batch-buffer-size audit-webhook-batch-max-size audit-webhook-batch-max-wait audit-webhook-batch-throttle-burst
	audit-webhook-batch-throttle-qps audit-webhook-config-file audit-webhook-initial-backoff audit-webhook-mode
	audit-webhook-truncate-max-batch-size audit-webhook-truncate-max-event-size audit-webhook-version authentication-config
	authentication-token-webhook-cache-ttl authentication-token-webhook-config-file authentication-token-webhook-version
	authorization-config authorization-mode authorization-policy-file authorization-webhook-cache-authorized-ttl
	authorization-webhook-cache-unauthorized-ttl authorization-webhook-config-file authorization-webhook-version bind-address cert-dir
	client-ca-file coordinated-leadership-lease-duration coordinated-leadership-renew-deadline coordinated-leadership-retry-period
	cors-allowed-origins debug-socket-path default-not-ready-toleration-seconds default-unreachable-toleration-seconds
	delete-collection-workers disable-admission-plugins disabled-metrics egress-selector-config-file emulated-version
	enable-admission-plugins encryption-provider-config endpoint-reconciler-type etcd-cafile etcd-certfile etcd-compaction-interval
	etcd-count-metric-poll-period etcd-db-metric-poll-interval etcd-healthcheck-timeout etcd-keyfile etcd-prefix
	etcd-readycheck-timeout etcd-servers etcd-servers-overrides event-ttl external-hostname feature-gates goaway-chance
	http2-max-streams-per-connection kubelet-certificate-authority kubelet-client-certificate kubelet-client-key
	kubelet-preferred-address-types kubelet-timeout kubernetes-service-node-port lease-reuse-duration-seconds livez-grace-period
	log-flush-frequency log-json-info-buffer-size log-text-info-buffer-size logging-format max-connection-bytes-per-sec
	max-mutating-requests-inflight max-requests-inflight min-compatibility-version min-request-timeout oidc-ca-file oidc-client-id
	oidc-groups-claim oidc-groups-prefix oidc-issuer-url oidc-required-claim oidc-signing-algs oidc-username-claim oidc-username-prefix
	peer-advertise-ip peer-advertise-port peer-ca-file proxy-client-cert-file proxy-client-key-file request-timeout
	requestheader-allowed-names requestheader-client-ca-file requestheader-extra-headers-prefix requestheader-group-headers
	requestheader-uid-headers requestheader-username-headers runtime-config secure-port service-account-issuer service-account-jwks-uri
	service-account-key-file service-account-max-token-expiration service-account-signing-endpoint service-account-signing-key-file
	service-cluster-ip-range service-node-port-range show-hidden-metrics-for-version shutdown-delay-duration
	shutdown-watch-termination-grace-period storage-backend storage-initialization-timeout storage-media-type
	strict-transport-security-directives tls-cert-file tls-cipher-suites tls-curve-preferences tls-min-version tls-private-key-file
	tls-sni-cert-key token-auth-file tracing-config-file v vmodule watch-cache-sizes`)

// Names of files in the assets folder. If apilet is called as kube-apiserver, it reads these files.
const (
	baseName    = "base.db"          // a link to the prepared data file
	versionName = "emulated-version" // a file with the value of --emulated-version
)

// ProgramName returns the name that was used to call the program.
func ProgramName(path string) string {
	return strings.TrimSuffix(filepath.Base(path), ".exe")
}

// ---- The links ----

// MakeAssets creates the links that envtest looks for in a folder, and prints the line that sets
// KUBEBUILDER_ASSETS. It replaces existing links, for example from an earlier call. An existing
// file is an error, because it may belong to another control plane.
//
// base is a prepared data file with which each server from this folder starts; "" means that the
// servers start empty. version is the version of Kubernetes that the servers emulate, or "".
func MakeAssets(out io.Writer, args []string, base, version string) error {
	if args[0] == "" {
		return errors.New("usage: apilet envtest-assets DIR")
	}
	dir, err := filepath.Abs(args[0])
	if err != nil {
		return err
	}
	own, err := os.Executable()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	suffix := ""
	if strings.HasSuffix(own, ".exe") {
		suffix = ".exe"
	}
	programs := [][2]string{{"kube-apiserver", own}, {"etcd", own}}
	if kubectl, err := exec.LookPath("kubectl"); err == nil && !there(filepath.Join(dir, "kubectl")+suffix) {
		programs = append(programs, [2]string{"kubectl", kubectl})
	}
	for _, program := range programs {
		if err := linkAsset(filepath.Join(dir, program[0]+suffix), program[1]); err != nil {
			return err
		}
	}
	if err := linkBase(filepath.Join(dir, baseName), base); err != nil {
		return err
	}
	if err := keepVersion(filepath.Join(dir, versionName), version); err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "export KUBEBUILDER_ASSETS=%s\n", shellQuoted(dir))
	return err
}

// linkBase creates the link to the prepared file, or removes the link of an earlier call.
func linkBase(link, base string) error {
	if base != "" {
		if _, err := os.Stat(base); err != nil {
			return fmt.Errorf("--base: %w", err)
		}
		return linkAsset(link, base)
	}
	if info, err := os.Lstat(link); err == nil && info.Mode()&os.ModeSymlink != 0 {
		return os.Remove(link)
	}
	return nil
}

// MinorVersion removes the patch version, which setup-envtest accepts: 1.36.0 and 1.36.x are 1.36.
func MinorVersion(version string) string {
	parts := strings.SplitN(version, ".", 3)
	return strings.Join(parts[:min(2, len(parts))], ".")
}

// keepVersion writes the version to a file, or removes the file of an earlier call.
func keepVersion(path, version string) error {
	if version != "" {
		return os.WriteFile(path, []byte(version+"\n"), 0o644)
	}
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// FlagsBeside returns the flags for the prepared file and the version in the folder of a program.
// program is the path under which the program was called. args are the flags that the program was
// called with. They have precedence.
func FlagsBeside(program string, args []string) (flags []string) {
	if filepath.Base(program) == program { // found in the PATH, so the folder was not chosen explicitly
		return nil
	}
	dir := filepath.Dir(program)
	if path := filepath.Join(dir, baseName); there(path) {
		flags = append(flags, "--base="+path)
	}
	given := slices.ContainsFunc(args, func(arg string) bool { return strings.HasPrefix(arg, "--emulated-version=") })
	if version, err := os.ReadFile(filepath.Join(dir, versionName)); err == nil && !given {
		flags = append(flags, "--emulated-version="+strings.TrimSpace(string(version)))
	}
	return flags
}

func linkAsset(link, program string) error {
	program, err := filepath.Abs(program)
	if err != nil {
		return err
	}
	if info, err := os.Lstat(link); err == nil && info.Mode()&os.ModeSymlink != 0 {
		if err := os.Remove(link); err != nil {
			return err
		}
	}
	if err := os.Symlink(program, link); err != nil {
		return fmt.Errorf("%w: remove the existing files, or choose another folder", err)
	}
	return nil
}

// shellQuoted quotes a word for a shell.
func shellQuoted(word string) string {
	if !strings.ContainsFunc(word, func(r rune) bool { return !strings.ContainsRune("/._-+,:@%", r) && !isLetterOrDigit(r) }) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

func isLetterOrDigit(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
}

// ---- kube-apiserver ----

// translation converts kube-apiserver's arguments to apilet's.
type translation struct {
	own    *flag.FlagSet // apilet's flags
	given  map[string]string
	args   []string
	unused []string // flags without effect
}

// TranslateAPIServer converts kube-apiserver's arguments to apilet's. own contains the flags of
// apilet. Flags without effect are written to notes. It returns flag.ErrHelp for --help, and
// ErrShowVersion for --version.
func TranslateAPIServer(args []string, own *flag.FlagSet, notes io.Writer) ([]string, error) {
	t := &translation{own: own, given: map[string]string{}, args: []string{"--ephemeral"}}
	for len(args) > 0 {
		name, value, rest, err := nextFlag(args)
		if err != nil {
			return nil, err
		}
		args = rest
		if err := t.add(name, value); err != nil {
			return nil, err
		}
	}
	t.listen()
	t.certificate()
	if len(t.unused) > 0 {
		slices.Sort(t.unused)
		fmt.Fprintf(notes, "apilet in the place of kube-apiserver: without effect here: --%s\n", strings.Join(slices.Compact(t.unused), " --"))
	}
	return t.args, nil
}

// nextFlag parses the first flag of a command line: --name=value, --name value, or --name for a
// switch.
func nextFlag(args []string) (name, value string, rest []string, err error) {
	text, rest := args[0], args[1:]
	switch text {
	case "-h", "--help":
		return "", "", nil, flag.ErrHelp
	case "--version", "--version=true":
		return "", "", nil, ErrShowVersion
	}
	if short, ok := strings.CutPrefix(text, "-v"); ok && (short == "" || short[0] == '=') {
		text = "--v" + short
	}
	text, long := strings.CutPrefix(text, "--")
	if !long || text == "" {
		return "", "", nil, fmt.Errorf("unexpected argument %q", args[0])
	}
	name, value, given := strings.Cut(text, "=")
	name = strings.ReplaceAll(name, "_", "-")
	switch {
	case slices.Contains(apiserverSwitches, name):
		if !given {
			value = "true"
		}
	case !slices.Contains(apiserverSettings, name):
		return "", "", nil, fmt.Errorf("unknown flag: --%s", name)
	case !given && len(rest) == 0:
		return "", "", nil, fmt.Errorf("flag needs an argument: --%s", name)
	case !given:
		value, rest = rest[0], rest[1:]
	}
	return name, value, rest, nil
}

// add translates one flag.
func (t *translation) add(name, value string) error {
	switch name {
	case "bind-address", "secure-port", "cert-dir":
		t.given[name] = value // combined when all flags are known
	case "tls-cert-file":
		t.given[name] = value
		t.pass(name, value)
	case "min-request-timeout":
		t.pass(name, value+"s")
	case "logging-format":
		t.pass("log-format", strings.Replace(value, "text", "console", 1))
	case "authorization-mode":
		mode, err := authorizationMode(value)
		t.pass(name, mode)
		return err
	case "disable-admission-plugins":
		t.pass(name, value)
		if slices.Contains(strings.Split(value, ","), "ServiceAccount") {
			t.args = append(t.args, "--namespace-defaults=false")
		}
	case "etcd-servers", "etcd-prefix", "etcd-cafile", "etcd-certfile", "etcd-keyfile":
		t.unused = append(t.unused, name) // in a test, etcd is also replaced by apilet
	default:
		t.pass(name, value)
	}
	return nil
}

// pass adds a flag if it is supported by apilet.
func (t *translation) pass(name, value string) {
	if t.own.Lookup(name) == nil {
		t.unused = append(t.unused, name)
		return
	}
	t.args = append(t.args, "--"+name+"="+value)
}

// listen combines address and port. The defaults are those of kube-apiserver.
func (t *translation) listen() {
	host, port := t.given["bind-address"], t.given["secure-port"]
	if host == "" {
		host = "0.0.0.0"
	}
	if port == "" {
		port = "6443"
	}
	t.args = append(t.args, "--listen="+net.JoinHostPort(host, port))
}

// certificate selects the serving certificate like kube-apiserver: from --cert-dir, unless a
// certificate was given. If the folder has no certificate, or also has a CA, it is used as apilet's
// own --cert-dir.
func (t *translation) certificate() {
	if t.given["tls-cert-file"] != "" {
		return
	}
	dir := t.given["cert-dir"]
	if dir == "" {
		dir = "/var/run/kubernetes"
	}
	cert, key := filepath.Join(dir, "apiserver.crt"), filepath.Join(dir, "apiserver.key")
	if there(cert) && !there(filepath.Join(dir, "ca.crt")) {
		t.args = append(t.args, "--tls-cert-file="+cert, "--tls-private-key-file="+key)
		return
	}
	t.args = append(t.args, "--cert-dir="+dir)
}

// there reports whether path exists.
func there(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// authorizationMode returns the modes in a list that apilet supports. AlwaysAllow anywhere in the
// list permits everything that earlier modes do not, so it replaces the list.
func authorizationMode(list string) (string, error) {
	modes := strings.Split(list, ",")
	if slices.Contains(modes, "AlwaysAllow") {
		return "AlwaysAllow", nil
	}
	known := slices.DeleteFunc(modes, func(mode string) bool { return mode != "RBAC" && mode != "Node" })
	if len(known) == 0 {
		return "", fmt.Errorf("--authorization-mode=%s: apilet has RBAC, Node and AlwaysAllow", list)
	}
	return strings.Join(known, ","), nil
}

// PrintAPIServerHelp prints the help text. envtest reads it to check for the flag --insecure-port.
func PrintAPIServerHelp(out io.Writer, own *flag.FlagSet) {
	fmt.Fprint(out, "apilet in the place of kube-apiserver. It keeps its objects in a temporary file and asks no etcd.\n\nFlags with effect:\n")
	names := append(slices.Clone(apiserverSwitches), apiserverSettings...)
	slices.Sort(names)
	var others []string
	for _, name := range names {
		switch {
		case own.Lookup(name) != nil || name == "bind-address" || name == "secure-port" || name == "cert-dir" || name == "logging-format":
			fmt.Fprintf(out, "      --%s\n", name)
		default:
			others = append(others, name)
		}
	}
	fmt.Fprint(out, "\nAccepted, without effect:\n")
	for _, name := range others {
		fmt.Fprintf(out, "      --%s\n", name)
	}
}

// ---- etcd ----

// ServeAsEtcd serves /health at etcd's client URLs until ctx ends. It ignores all other arguments.
func ServeAsEtcd(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if slices.Contains(args, "--version") || slices.Contains(args, "-version") {
		_, err := fmt.Fprintf(stdout, "etcd Version: %s\nGit SHA: apilet\nGo Version: %s\nGo OS/Arch: %s/%s\n", etcdVersion, runtime.Version(),
			runtime.GOOS, runtime.GOARCH)
		return err
	}
	if slices.Contains(args, "--help") || slices.Contains(args, "-h") {
		_, err := fmt.Fprintln(stderr, "apilet in the place of etcd: healthy at --listen-client-urls, and nothing else; other flags have no effect")
		return err
	}
	server := &http.Server{Handler: http.HandlerFunc(answerAsEtcd)}
	failed := make(chan error, 1) // only the first failure is reported
	defer server.Close()
	for address := range strings.SplitSeq(clientURLs(args), ",") {
		at, err := url.Parse(address)
		if err != nil || at.Scheme != "http" || at.Host == "" {
			return fmt.Errorf("--listen-client-urls: %q is not an http:// URL", address)
		}
		listener, err := net.Listen("tcp", at.Host)
		if err != nil {
			return err
		}
		go func() { // ends with server.Close
			select {
			case failed <- server.Serve(listener):
			default:
			}
		}()
	}
	fmt.Fprintln(stderr, "apilet in the place of etcd: healthy, and stores nothing; the objects are in the process called kube-apiserver")
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return err
	}
}

// clientURLs returns the value of --listen-client-urls. Like etcd, it also accepts the flag with a
// single dash.
func clientURLs(args []string) string {
	for i, text := range args {
		name, value, given := strings.Cut(strings.TrimLeft(text, "-"), "=")
		switch {
		case name != "listen-client-urls":
		case given:
			return value
		case i+1 < len(args):
			return args[i+1]
		}
	}
	return "http://localhost:2379"
}

func answerAsEtcd(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/health" {
		http.Error(w, "no etcd here: apilet keeps its objects in the process called kube-apiserver", http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, `{"health":"true","reason":""}`)
}

// RunAsEtcd runs the program in place of etcd and returns its exit code.
func RunAsEtcd(args []string, stdout, stderr io.Writer) int {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	context.AfterFunc(ctx, cancel) // a second signal ends the process
	defer drain.IgnoreHangups()()
	if err := ServeAsEtcd(ctx, args, stdout, stderr); err != nil {
		fmt.Fprintln(stderr, "etcd:", err)
		return 1
	}
	return 0
}

// RunAsAPIServer runs the program in place of kube-apiserver and returns its exit code. own contains
// the flags of apilet. run serves with them.
func RunAsAPIServer(called string, args []string, own *flag.FlagSet, version string,
	run func(args []string, stdout, stderr io.Writer) int, stdout, stderr io.Writer) int {
	args, err := TranslateAPIServer(args, own, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		PrintAPIServerHelp(stdout, own)
		return 0
	case errors.Is(err, ErrShowVersion):
		fmt.Fprintln(stdout, "Kubernetes", version)
		return 0
	case err != nil:
		fmt.Fprintln(stderr, "kube-apiserver:", err)
		return 1
	}
	return run(append(args, FlagsBeside(called, args)...), stdout, stderr)
}

// Command returns the command envtest-assets. Its flags write into base and versions. check returns
// an error if the server cannot emulate the version.
func Command(base *string, versions *[]string, check func() error) commandline.Command {
	return commandline.Command{Name: "envtest-assets", Args: "DIR", ArgCounts: []int{1},
		Description: "create a folder with envtest's binaries, and print the shell command that selects it",
		Groups: []commandline.FlagGroup{{Title: "Flags", Define: func(f *flag.FlagSet) {
			f.StringVar(base, "base", "", "a data `file` that each server copies at its start; `apilet fork` creates one")
			f.Func("version", "the `version` of Kubernetes that each server emulates, 1.34 to 1.37; a patch version is ignored", func(text string) error {
				*versions = []string{MinorVersion(text)}
				return nil
			})
		}}},
		Run: func(call commandline.Call) error {
			if err := check(); err != nil {
				return err
			}
			return MakeAssets(call.Out, call.Args, *base, strings.Join(*versions, ","))
		}}
}
