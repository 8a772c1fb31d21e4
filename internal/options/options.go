// Package options defines the flags for serving and validates them. If kube-apiserver has a flag,
// its name, meaning and default are the same.
//
//	var o options.Options
//	for _, group := range o.Groups() { group.Define(set) } // sets the defaults
//	err := set.Parse(args)                                 // returns an error for an invalid value
//	err = o.Finish()                                       // returns an error for an invalid combination
//
// A flag is a field of [Options] and a line in the function of its group. Finish derives the
// settings that depend on several flags, such as the use of TLS, the authorization modes and the
// number of seats. It does not open files or ports, so that an error has no side effects.
package options

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"apilet/internal/admission/plugins"
	"apilet/internal/auth"
	"apilet/internal/auth/callout"
	"apilet/internal/auth/serviceaccount"
	"apilet/internal/commandline"
)

// Options contains the values of the flags. `apilet --help` describes each flag.
type Options struct {
	Data, Listen, Kubeconfig                string
	Etcd                                    Etcd
	EncryptionConfig                        string
	EncryptionReload                        bool // reload the file when it changes
	Ephemeral                               bool
	Base                                    string // the initial data of an ephemeral server
	Advertised, EndpointReconciler          string
	TLSCert, TLSKey, CertDir                string
	Names                                   []string // from --tls-san
	OwnCerts                                bool     // TLS with a certificate that the server creates
	Auth                                    auth.Config
	Accounts                                serviceaccount.Config
	Aggregation                             Aggregation
	Kubelet                                 Kubelet
	Authorization                           []string
	JWKSURI                                 string
	Audit                                   Audit
	OIDC                                    OIDC
	Hook                                    callout.HookFlags // for --authorization-mode=Webhook
	hookSet                                 bool
	DenyDeprecated, ManagedFields, Validate bool
	FlowControl                             bool
	MaxReadonly, MaxMutating                int // AutoSeats means that the number of seats follows the capacity of the machine
	readonlySet, mutatingSet                bool
	RequestTimeout, MinTimeout              time.Duration
	ShutdownDelay                           time.Duration // time between the signal and the end of serving
	CompactionInterval, EventTTL            time.Duration
	History                                 *time.Duration // nil means the value of --compaction-interval
	Controllers, NamespaceDefaults          bool
	Quota                                   int64
	ServiceRange                            string
	EnabledPlugins, DisabledPlugins         []string
	Tolerations                             plugins.TolerationSeconds
	AdmissionConfig                         string
	ContinueKeyFile                         string
	FeatureGates                            []string
	EmulatedVersion                         []string // if empty, the server also serves versions that Kubernetes has removed
	RuntimeConfig                           []string // for scheme.Served
	LogFormat                               string
	Verbosity                               int
}

// AutoSeats replaces a number of seats. The number then follows the capacity of the machine.
const AutoSeats = -1

// ---- The flags ----

// Groups returns the flags for serving. Defining the flags sets the defaults.
func (o *Options) Groups() []commandline.FlagGroup {
	return []commandline.FlagGroup{
		{Title: "Storage", Define: o.defineStorage},
		{Title: "Storage in etcd (the data file is then a replica)", Define: o.Etcd.Define},
		{Title: "Address and certificate", Define: o.defineAddress},
		{Title: "Authentication and authorization", Define: o.defineAccess},
		{Title: "External authentication and authorization", Define: o.defineExternal},
		{Title: "Service accounts", Define: o.defineAccounts},
		{Title: "Aggregated API servers and authenticating proxies", Define: o.defineAggregation},
		{Title: "Kubelets", Define: o.defineKubelet},
		{Title: "Objects", Define: o.defineObjects},
		{Title: "Requests", Define: o.defineRequests},
		{Title: "Audit log", Define: o.Audit.define},
		{Title: "Logging", Define: o.defineLogs},
	}
}

const defaultData = "apilet.db"

// Data defines the flag for the data file.
func Data(f *flag.FlagSet, path *string) {
	f.StringVar(path, "data", defaultData, "`file` that stores all objects")
}

// EncryptionConfig defines the flag for the configuration of encryption at rest.
func EncryptionConfig(f *flag.FlagSet, path *string) {
	f.StringVar(path, "encryption-provider-config", "", "`file` with an EncryptionConfiguration: the types to encrypt at rest, and the keys")
}

func (o *Options) defineStorage(f *flag.FlagSet) {
	Data(f, &o.Data)
	f.BoolVar(&o.Ephemeral, "ephemeral", false, "store the objects in a temporary file, which is not synced and is removed at exit")
	f.StringVar(&o.Base, "base", "", "with --ephemeral: start with a private copy of this data `file`. The file does not change, and any number of servers can use it at once")
	f.Int64Var(&o.Quota, "quota-backend-bytes", 0,
		"maximum size of the data file in `bytes`; above it, only deletes are allowed. Free pages do not count; "+
			"history that is not compacted does. 0 means 2 GiB, or half of the file system if that is less, and no limit "+
			"with --ephemeral; -1 means no limit")
	f.DurationVar(&o.CompactionInterval, "compaction-interval", 5*time.Minute, "interval between compactions of the history; 0 disables compaction")
	f.Func("history", "`duration` to keep old versions, with author and time, before compaction deletes them; 0 keeps all (default: --compaction-interval)", func(text string) error {
		d, err := time.ParseDuration(text)
		if err == nil && d < 0 {
			err = errors.New("must not be negative")
		}
		o.History = &d
		return err
	})
	EncryptionConfig(f, &o.EncryptionConfig)
	f.BoolVar(&o.EncryptionReload, "encryption-provider-config-automatic-reload", false, "check the file of --encryption-provider-config each minute, and reload it if it has changed")
	f.DurationVar(&o.EventTTL, "event-ttl", time.Hour, "time to keep Events; 0 keeps all")
}

func (o *Options) defineAddress(f *flag.FlagSet) {
	f.StringVar(&o.Listen, "listen", "127.0.0.1:8080", "`host:port` to listen on; port 0 selects a free port")
	f.StringVar(&o.Advertised, "advertise-address", "",
		"`IP` address of this server for other machines, for the endpoints of Service default/kubernetes and the "+
			"generated certificate (default: the address of --listen)")
	f.StringVar(&o.EndpointReconciler, "endpoint-reconciler-type", "lease",
		"`lease|none`: lease adds this server (on etcd: all live servers, including kube-apiservers) to the endpoints "+
			"of Service default/kubernetes; none does not change the endpoints")
	f.StringVar(&o.Kubeconfig, "kubeconfig", "", "write a kubeconfig to this `file` when the server is ready")
	f.StringVar(&o.TLSCert, "tls-cert-file", "", "PEM `file` with the serving certificate; enables TLS")
	f.StringVar(&o.TLSKey, "tls-private-key-file", "", "PEM `file` with the key of --tls-cert-file")
	f.StringVar(&o.CertDir, "cert-dir", "", "`folder` for the generated CA and serving certificate; enables TLS (default: DATA-certs)")
	f.Func("tls-san",
		"comma-separated DNS `names` and IP addresses of this server or its load balancer, for the generated "+
			"certificate; may be repeated. The kubeconfig contains the first one. Enables TLS", o.addNames)
	f.Func("cors-allowed-origins",
		"comma-separated `regexes` of web origins whose pages may use this server. Each must match the whole origin "+
			"and contain both ends of the host: '^https://example\\.com(:|$)'", func(text string) error {
			err := commandline.AppendList(&o.Auth.CORSOrigins)(text)
			if errors.Is(err, commandline.ErrEmptyElement) {
				err = auth.CheckOrigin("")
			}
			return err
		})
}

func (o *Options) defineAccess(f *flag.FlagSet) {
	f.StringVar(&o.Auth.ClientCAFile, "client-ca-file", "", "PEM `file` with CAs for client certificates; CN is the user name, O are the groups")
	f.StringVar(&o.Auth.TokenFile, "token-auth-file", "", "CSV `file` of bearer tokens: token,user,uid,\"group1,group2\"")
	f.BoolVar(&o.Auth.BootstrapTokens, "enable-bootstrap-token-auth", false,
		"allow Secrets of type bootstrap.kubernetes.io/token in namespace kube-system to authenticate nodes that have "+
			"no certificate yet, and publish ConfigMap cluster-info in kube-public for them")
	o.Auth.Anonymous = true
	f.BoolFunc("anonymous-auth", "with an authenticator: allow requests without credentials, as user system:anonymous (default true)", func(text string) (err error) {
		o.Auth.AnonymousFlagSet = true
		o.Auth.Anonymous, err = strconv.ParseBool(text)
		return err
	})
	f.Func("authorization-mode",
		"comma-separated `modes`, in order: RBAC, Node (for kubelets), Webhook, AlwaysAllow and AlwaysDeny (default: "+
			"RBAC with an authenticator, otherwise AlwaysAllow)", commandline.AppendList(&o.Authorization))
}

func (o *Options) defineAccounts(f *flag.FlagSet) {
	f.StringVar(&o.Accounts.SigningKeyFile, "service-account-signing-key-file", "", "PEM `file` with the private key that signs service account tokens (default: a key in the data file)")
	f.Func("service-account-key-file",
		"PEM `file` with keys that verify service account tokens; may be repeated. Without "+
			"--service-account-signing-key-file, a private key among them signs", commandline.AppendValue(&o.Accounts.KeyFiles))
	f.Func("service-account-issuer",
		"`URL` of the issuer of service account tokens; may be repeated. New tokens contain the first one, all are "+
			"accepted (default "+serviceaccount.DefaultIssuer+")", commandline.AppendValue(&o.Accounts.Issuers))
	f.Func("api-audiences", "comma-separated `names` of this server in service account tokens (default: the issuers)", commandline.AppendList(&o.Accounts.Audiences))
	f.StringVar(&o.JWKSURI, "service-account-jwks-uri", "", "`URL` of the public keys in the discovery document (default: this server's)")
}

func (o *Options) defineObjects(f *flag.FlagSet) {
	f.BoolVar(&o.Controllers, "controllers", true,
		"run the built-in controllers: garbage collection, deletion of namespaces, default objects of namespaces, "+
			"token Secrets, type checks of policies; set it to false to run kube-controller-manager")
	f.BoolVar(&o.NamespaceDefaults, "namespace-defaults", true, "create ServiceAccount default and, with TLS, ConfigMap kube-root-ca.crt in each namespace; kube-apiserver alone does not")
	f.StringVar(&o.ServiceRange, "service-cluster-ip-range", "10.96.0.0/16", "`CIDR[,CIDR]` for the cluster IPs of Services: one range, or one for IPv4 and one for IPv6; the first is the default family")
	f.BoolVar(&o.Validate, "validate", true, "validate built-in objects; with false, only their metadata")
	f.Func("enable-admission-plugins", "comma-separated `names` of admission plug-ins to enable in addition to the default ones", commandline.AppendList(&o.EnabledPlugins))
	f.Func("disable-admission-plugins", "comma-separated `names` of admission plug-ins to disable", commandline.AppendList(&o.DisabledPlugins))
	f.Int64Var(&o.Tolerations.NotReady, "default-not-ready-toleration-seconds", 300, "`seconds` for which Pods without a toleration of their own tolerate a node that is not ready")
	f.Int64Var(&o.Tolerations.Unreachable, "default-unreachable-toleration-seconds", 300, "`seconds` for which Pods without a toleration of their own tolerate an unreachable node")
	f.StringVar(&o.AdmissionConfig, "admission-control-config-file", "", "`file` with an AdmissionConfiguration for PodSecurity, PodNodeSelector, PodTolerationRestriction and EventRateLimit")
	f.BoolVar(&o.ManagedFields, "managed-fields", true, "record the manager of each field in metadata.managedFields; server-side apply requires it")
	f.Func("runtime-config",
		"comma-separated `versions` to enable or disable, GROUP/VERSION=true|false or "+
			"GROUP/VERSION/RESOURCE=true|false; api/beta, api/alpha and api/all stand for all versions that are off by "+
			"default", commandline.AppendList(&o.RuntimeConfig))
	f.Func("emulated-version",
		"emulate an earlier `version` of Kubernetes, [kube=]1.34 to 1.37: serve the types that it has, with the "+
			"defaults of its feature gates", commandline.AppendList(&o.EmulatedVersion))
	f.BoolVar(&o.DenyDeprecated, "deny-deprecated", false, "refuse requests for deprecated API versions, instead of returning a warning")
}

func (o *Options) defineRequests(f *flag.FlagSet) {
	o.MaxReadonly, o.MaxMutating = 400, 200
	f.Func("max-requests-inflight",
		"maximum number of concurrent read requests. API Priority and Fairness has as many `seats` as this flag and "+
			"--max-mutating-requests-inflight together. auto, for both, follows the capacity of the machine (default 400)", inflight(&o.MaxReadonly, &o.readonlySet))
	f.Func("max-mutating-requests-inflight", "maximum `number` of concurrent write requests, or auto (default 200)", inflight(&o.MaxMutating, &o.mutatingSet))
	f.BoolVar(&o.FlowControl, "enable-priority-and-fairness", true, "use API Priority and Fairness with the sum of both inflight limits; with false, each limit applies separately")
	f.DurationVar(&o.RequestTimeout, "request-timeout", time.Minute, "maximum duration of a request other than a watch")
	f.DurationVar(&o.MinTimeout, "min-request-timeout", 30*time.Minute, "minimum duration of a watch; the maximum is twice as long (kube-apiserver: a number of seconds)")
	f.DurationVar(&o.ShutdownDelay, "shutdown-delay-duration", 0,
		"time to continue serving after SIGTERM, while /readyz fails and clients are asked to reconnect, so that load "+
			"balancers select other servers")
	f.StringVar(&o.ContinueKeyFile, "continue-key-file", "", "`file` with base64 keys for continue tokens, one per line; the first signs, all verify")
	f.Func("feature-gates",
		"comma-separated `list` of feature gates, GATE=true|false, with kube-apiserver's defaults; AllAlpha and "+
			"AllBeta set all gates of a stage", commandline.AppendList(&o.FeatureGates))
}

func (o *Options) defineLogs(f *flag.FlagSet) {
	f.StringVar(&o.LogFormat, "log-format", "console", "`console|json`: format of log lines")
	f.IntVar(&o.Verbosity, "v", 0, "log `level`; 3 logs every request")
}

// Etcd contains the flags for the etcd cluster that stores the objects. They are those of
// kube-apiserver.
type Etcd struct {
	Servers                           []string // URLs; if empty, the objects are stored in a file
	CAFile, CertFile, KeyFile, Prefix string   // as in kube-apiserver's --etcd-... flags
}

// Define adds the flags to a set.
func (e *Etcd) Define(f *flag.FlagSet) {
	f.Func("etcd-servers",
		"comma-separated `URLs` of an etcd cluster that stores the objects under kube-apiserver's keys. Several "+
			"servers can share it, including kube-apiserver", commandline.AppendList(&e.Servers))
	f.StringVar(&e.CAFile, "etcd-cafile", "", "PEM `file` with CA certificates to verify etcd")
	f.StringVar(&e.CertFile, "etcd-certfile", "", "PEM `file` with the client certificate for etcd")
	f.StringVar(&e.KeyFile, "etcd-keyfile", "", "PEM `file` with the key of --etcd-certfile")
	f.StringVar(&e.Prefix, "etcd-prefix", "/registry", "common prefix (`path`) of all keys in etcd")
}

// addNames parses a value of --tls-san.
func (o *Options) addNames(list string) error {
	names, err := commandline.SplitList(list)
	if err != nil || len(names) == 0 {
		return cmp.Or(err, commandline.ErrEmptyElement)
	}
	for _, name := range names {
		if addr, err := netip.ParseAddr(name); err == nil {
			if addr.IsUnspecified() || addr.IsMulticast() || addr.Zone() != "" {
				return fmt.Errorf("%q is not an IP address of a server", name)
			}
			o.Names = append(o.Names, addr.Unmap().String())
			continue
		}
		name := strings.ToLower(name)
		_, err := strconv.Atoi(name[strings.LastIndex(name, ".")+1:]) // the last part of a mistyped IP address
		if err == nil || len(validation.IsDNS1123Subdomain(name)) > 0 && len(validation.IsWildcardDNS1123Subdomain(name)) > 0 {
			return fmt.Errorf("%q is neither a DNS name nor an IP address", name)
		}
		o.Names = append(o.Names, name)
	}
	return nil
}

// inflight returns the function of a flag that limits requests. Its value is a number or auto.
func inflight(limit *int, given *bool) func(string) error {
	return func(text string) error {
		*given = true
		if text == "auto" {
			*limit = AutoSeats
			return nil
		}
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			return errors.New("must be a number or auto")
		}
		*limit = n
		return nil
	}
}

// ---- Combinations of flags ----

// Finish validates the combination of the flags and derives further settings.
func (o *Options) Finish() error {
	if err := cmp.Or(o.finishNumbers(), o.finishAggregation(), o.finishKubelet(), o.finishTLS()); err != nil {
		return err
	}
	if o.Ephemeral && o.Data != "" && o.Data != defaultData {
		return fmt.Errorf("--ephemeral does not use --data %s: set only one of these flags", o.Data)
	}
	if o.EncryptionReload && o.EncryptionConfig == "" {
		return errors.New("--encryption-provider-config-automatic-reload must be set with --encryption-provider-config")
	}
	if o.Base != "" && (!o.Ephemeral || len(o.Etcd.Servers) > 0) {
		return errors.New("--base requires --ephemeral and cannot be set with --etcd-servers")
	}
	if o.LogFormat != "" && o.LogFormat != "console" && o.LogFormat != "json" {
		return fmt.Errorf("--log-format: %q is neither console nor json", o.LogFormat)
	}
	if len(o.Accounts.Issuers) == 0 {
		o.Accounts.Issuers = []string{serviceaccount.DefaultIssuer}
	}
	if err := o.finishModes(o.Authorization); err != nil {
		return fmt.Errorf("--authorization-mode: %w", err)
	}
	if err := o.finishExternal(); err != nil {
		return err
	}
	if addr, err := netip.ParseAddr(o.Advertised); o.Advertised != "" && (err != nil || addr.IsUnspecified() || addr.IsMulticast() || addr.Zone() != "") {
		return fmt.Errorf("--advertise-address: %q is not an IP address of a server", o.Advertised)
	}
	if o.EndpointReconciler != "" && o.EndpointReconciler != "lease" && o.EndpointReconciler != "none" {
		return fmt.Errorf("--endpoint-reconciler-type: %q is neither lease nor none", o.EndpointReconciler)
	}
	if err := cmp.Or(o.finishSeats(), o.finishServices(), o.Audit.finish()); err != nil {
		return err
	}
	if _, err := plugins.Select(plugins.Table(plugins.Config{}), o.EnabledPlugins, o.DisabledPlugins); err != nil {
		return err
	}
	if o.HistoryRetention() > 0 && o.CompactionInterval <= 0 {
		return errors.New("--history requires a --compaction-interval above 0")
	}
	return o.Auth.CheckListen(o.Listen)
}

// finishNumbers returns an error for durations that make no sense, such as a negative one or a
// request timeout of zero.
func (o *Options) finishNumbers() error {
	switch {
	case o.CompactionInterval < 0:
		return fmt.Errorf("--compaction-interval: %s is negative (0 disables compaction)", o.CompactionInterval)
	case o.EventTTL < 0:
		return fmt.Errorf("--event-ttl: %s is negative (0 keeps all)", o.EventTTL)
	case o.RequestTimeout <= 0:
		return fmt.Errorf("--request-timeout: %s must be above 0", o.RequestTimeout)
	case o.ShutdownDelay < 0:
		return fmt.Errorf("--shutdown-delay-duration: %s is negative", o.ShutdownDelay)
	case o.MinTimeout < 0:
		return fmt.Errorf("--min-request-timeout: %s is negative", o.MinTimeout)
	}
	return nil
}

// HistoryRetention returns the duration for which old versions are kept, or 0 if all are kept.
func (o *Options) HistoryRetention() time.Duration {
	if o.History == nil {
		return o.CompactionInterval
	}
	return *o.History
}

// finishTLS decides whether to use TLS, and with which certificate. TLS is required by an
// authenticator, by an address that other machines can reach, and by --cert-dir and --tls-san. If
// the server creates its own certificate, it also has its own CA, which can issue client
// certificates.
func (o *Options) finishTLS() error {
	if (o.TLSCert == "") != (o.TLSKey == "") {
		return errors.New("--tls-cert-file and --tls-private-key-file must be set together")
	}
	authenticator := o.Auth.TokenFile != "" || o.Auth.ClientCAFile != "" || o.Auth.RequestHeader.ClientCAFile != "" || o.Auth.BootstrapTokens || o.hasExternal()
	o.OwnCerts = o.TLSCert == "" && (authenticator || o.CertDir != "" || len(o.Names) > 0 || !auth.IsLocalOnly(o.Listen))
	o.Auth.Insecure = !authenticator && !o.OwnCerts
	if o.CertDir == "" && !o.Ephemeral {
		o.CertDir = strings.TrimSuffix(o.Data, filepath.Ext(o.Data)) + "-certs"
	}
	return nil
}

// finishModes chooses the authorizers. If AlwaysAllow is among the modes, RBAC and Node have no
// effect.
func (o *Options) finishModes(modes []string) error {
	if len(modes) == 0 {
		o.Auth.AlwaysAllow = o.Auth.Insecure
		return nil
	}
	o.Auth.AlwaysAllow, o.Auth.Modes = slices.Contains(modes, "AlwaysAllow"), nil
	known := []string{auth.ModeNode, auth.ModeRBAC, callout.TypeWebhook, callout.TypeAlwaysAllow, callout.TypeAlwaysDeny}
	for i, mode := range modes {
		switch {
		case !slices.Contains(known, mode):
			return fmt.Errorf("%q is none of Node, RBAC, Webhook, AlwaysAllow and AlwaysDeny", mode)
		case mode == callout.TypeWebhook && o.Hook.File == "":
			return errors.New("authorization-mode Webhook's authorization config file not passed")
		case slices.Contains(modes[:i], mode):
			return fmt.Errorf("%s is specified more than once", mode)
		}
	}
	if slices.Contains(modes, callout.TypeWebhook) || slices.Contains(modes, callout.TypeAlwaysDeny) { // these modes may deny a request before another mode allows it
		o.Auth.AlwaysAllow = false
		plan, err := callout.NewPlan(modes, o.Hook)
		o.Auth.Plan = plan
		return err
	}
	if !o.Auth.AlwaysAllow && slices.Contains(modes, auth.ModeNode) {
		o.Auth.Modes = modes
	}
	return nil
}

// Seats returns the number of seats of flow control.
func (o *Options) Seats() int {
	if o.MaxReadonly == AutoSeats {
		return AutoSeats
	}
	return o.MaxReadonly + o.MaxMutating
}

// finishSeats applies "auto" to both limits, because flow control divides their sum by priority
// level and does not distinguish reads and writes.
func (o *Options) finishSeats() error {
	switch {
	case o.MaxReadonly != AutoSeats && o.MaxMutating != AutoSeats:
		return nil
	case o.mutatingSet && o.MaxMutating != AutoSeats || o.readonlySet && o.MaxReadonly != AutoSeats:
		return errors.New("--max-requests-inflight=auto applies to both limits: --max-mutating-requests-inflight must be auto or not set")
	case !o.FlowControl:
		return errors.New("--max-requests-inflight=auto requires --enable-priority-and-fairness")
	}
	o.MaxReadonly, o.MaxMutating = AutoSeats, AutoSeats
	return nil
}

// SecretFiles returns the files with secrets that the server reads.
func (o *Options) SecretFiles() []string {
	return append([]string{o.Auth.TokenFile, o.TLSKey, o.EncryptionConfig, o.ContinueKeyFile, o.Aggregation.ProxyKey,
		o.Accounts.SigningKeyFile, o.Audit.Webhook, o.Auth.TokenHook.File, o.Hook.File}, o.Accounts.KeyFiles...)
}

// WrittenSecrets returns the files with secrets that the server writes, except for the data file.
func (o *Options) WrittenSecrets() []string {
	files := []string{o.Kubeconfig, o.Audit.Path}
	if o.OwnCerts && o.CertDir != "" {
		for _, name := range []string{"ca.key", "apiserver.key", "front-proxy-ca.key", "front-proxy-client.key"} {
			files = append(files, filepath.Join(o.CertDir, name))
		}
	}
	return files
}
