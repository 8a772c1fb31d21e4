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
	hookGiven                               bool
	DenyDeprecated, ManagedFields, Validate bool
	FlowControl                             bool
	MaxReadonly, MaxMutating                int // AutoSeats means that the number of seats follows the capacity of the machine
	readonlyGiven, mutatingGiven            bool
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
		{Title: "The data", Define: o.defineStorage},
		{Title: "Objects in etcd instead of the file, which then is this server's replica of them", Define: o.Etcd.Define},
		{Title: "The address and its certificate", Define: o.defineAddress},
		{Title: "Who may do what", Define: o.defineAccess},
		{Title: "Who else is asked who somebody is, and whether they may", Define: o.defineOthers},
		{Title: "Service accounts", Define: o.defineAccounts},
		{Title: "Servers behind this one, and proxies in front of it", Define: o.defineAggregation},
		{Title: "Kubelets", Define: o.defineKubelet},
		{Title: "Objects", Define: o.defineObjects},
		{Title: "Requests", Define: o.defineRequests},
		{Title: "The audit log", Define: o.Audit.define},
		{Title: "Logs", Define: o.defineLogs},
	}
}

const defaultData = "apilet.db"

// Data defines the flag for the data file.
func Data(f *flag.FlagSet, path *string) {
	f.StringVar(path, "data", defaultData, "the `file` that holds everything")
}

// EncryptionConfig defines the flag for the configuration of encryption at rest.
func EncryptionConfig(f *flag.FlagSet, path *string) {
	f.StringVar(path, "encryption-provider-config", "", "`file` with an EncryptionConfiguration: which types are encrypted at rest, and with which keys")
}

func (o *Options) defineStorage(f *flag.FlagSet) {
	Data(f, &o.Data)
	f.BoolVar(&o.Ephemeral, "ephemeral", false, "keep nothing: a temporary file, no fsync, removed at exit")
	f.StringVar(&o.Base, "base", "", "with --ephemeral: begin with a private copy of this data `file`, which stays as it is, and which any number of servers may have at once")
	f.Int64Var(&o.Quota, "quota-backend-bytes", 0, "refuse writes other than deletes while the data file has more `bytes` than this; free pages do not count, history that is not compacted does. 0 is 2 GiB, or half of the file system where that is less, and no limit with --ephemeral; -1 is no limit")
	f.DurationVar(&o.CompactionInterval, "compaction-interval", 5*time.Minute, "how often history is compacted; 0 keeps all")
	f.Func("history", "the `duration` for which old versions are kept, with author and time, before they are compacted; 0 keeps all (default: --compaction-interval)", func(text string) error {
		d, err := time.ParseDuration(text)
		if err == nil && d < 0 {
			err = errors.New("is negative")
		}
		o.History = &d
		return err
	})
	EncryptionConfig(f, &o.EncryptionConfig)
	f.BoolVar(&o.EncryptionReload, "encryption-provider-config-automatic-reload", false, "look at the file of --encryption-provider-config each minute, and put it into force when it has changed")
	f.DurationVar(&o.EventTTL, "event-ttl", time.Hour, "Events older than this are deleted; 0 keeps all")
}

func (o *Options) defineAddress(f *flag.FlagSet) {
	f.StringVar(&o.Listen, "listen", "127.0.0.1:8080", "`host:port` to serve on; port 0 picks a free one")
	f.StringVar(&o.Advertised, "advertise-address", "", "the `IP` at which others reach this server, for the endpoints of Service default/kubernetes and the server's own certificate (default: that of --listen)")
	f.StringVar(&o.EndpointReconciler, "endpoint-reconciler-type", "lease", "`lease|none`: lease lists this server (on etcd: every live server, kube-apiservers too) in the endpoints of Service default/kubernetes; none leaves them alone")
	f.StringVar(&o.Kubeconfig, "kubeconfig", "", "write a kubeconfig to this `file` once listening")
	f.StringVar(&o.TLSCert, "tls-cert-file", "", "PEM `file` with the serving certificate; makes the server speak TLS")
	f.StringVar(&o.TLSKey, "tls-private-key-file", "", "PEM `file` with the key of --tls-cert-file")
	f.StringVar(&o.CertDir, "cert-dir", "", "`folder` for the generated CA and serving certificate; setting it enables TLS (default: DATA-certs)")
	f.Func("tls-san", "comma-separated DNS `names` and IPs of this server, including a load balancer's, for the generated certificate; may be repeated. The first is the server in the kubeconfig; setting this enables TLS", o.addNames)
	f.Func("cors-allowed-origins", "comma-separated `regexes` of web origins whose pages may use this server. Each has to match the origin as a whole and to name both ends of the host: '^https://example\\.com(:|$)'", func(text string) error {
		err := commandline.Listed(&o.Auth.CORSOrigins)(text)
		if errors.Is(err, commandline.ErrEmptyElement) {
			err = auth.CheckOrigin("")
		}
		return err
	})
}

func (o *Options) defineAccess(f *flag.FlagSet) {
	f.StringVar(&o.Auth.ClientCAFile, "client-ca-file", "", "PEM `file` of CAs for client certificates: CN is the user, O the groups")
	f.StringVar(&o.Auth.TokenFile, "token-auth-file", "", "CSV `file` of bearer tokens: token,user,uid,\"group1,group2\"")
	f.BoolVar(&o.Auth.BootstrapTokens, "enable-bootstrap-token-auth", false, "allow Secrets of type bootstrap.kubernetes.io/token in namespace kube-system to authenticate nodes that have no certificate yet, and publish ConfigMap cluster-info in kube-public for them")
	o.Auth.Anonymous = true
	f.BoolFunc("anonymous-auth", "with an authenticator: requests without credentials are system:anonymous instead of refused (default true)", func(text string) (err error) {
		o.Auth.AnonymousGiven = true
		o.Auth.Anonymous, err = strconv.ParseBool(text)
		return err
	})
	f.Func("authorization-mode", "comma-separated `modes`: RBAC, Node (kubelets get at what their pods refer to), Webhook, AlwaysAllow and AlwaysDeny; by default RBAC with an authenticator and AlwaysAllow without", commandline.Listed(&o.Authorization))
}

func (o *Options) defineAccounts(f *flag.FlagSet) {
	f.StringVar(&o.Accounts.SigningKeyFile, "service-account-signing-key-file", "", "PEM `file` with the private key that signs service account tokens; by default the data file keeps one")
	f.Func("service-account-key-file", "PEM `file` of keys that verify service account tokens, may be repeated; without --service-account-signing-key-file, a private one signs", commandline.Repeated(&o.Accounts.KeyFiles))
	f.Func("service-account-issuer", "the `URL` that service account tokens name, may be repeated: the first issues, all are accepted (default "+serviceaccount.DefaultIssuer+")", commandline.Repeated(&o.Accounts.Issuers))
	f.Func("api-audiences", "comma-separated `names` of this server in service account tokens (default: the issuers)", commandline.Listed(&o.Accounts.Audiences))
	f.StringVar(&o.JWKSURI, "service-account-jwks-uri", "", "`URL` of the public keys in the discovery document, if not this server's own")
}

func (o *Options) defineObjects(f *flag.FlagSet) {
	f.BoolVar(&o.Controllers, "controllers", true, "run the built-in controllers: garbage collection, deletion of namespaces and their default objects, token Secrets, type checks of policies; false leaves them to a kube-controller-manager")
	f.BoolVar(&o.NamespaceDefaults, "namespace-defaults", true, "give namespaces their ServiceAccount default and, with TLS, ConfigMap kube-root-ca.crt; false leaves them empty, as kube-apiserver alone does")
	f.StringVar(&o.ServiceRange, "service-cluster-ip-range", "10.96.0.0/16", "`CIDR[,CIDR]` from which Services get their cluster IPs: one range, or one of IPv4 and one of IPv6; the first is for Services that name no family")
	f.BoolVar(&o.Validate, "validate", true, "validate built-in objects by the rules of their types; false trusts the writers, but for metadata")
	f.Func("enable-admission-plugins", "comma-separated `names` of admission plug-ins to switch on besides those that are on by default", commandline.Listed(&o.EnabledPlugins))
	f.Func("disable-admission-plugins", "comma-separated `names` of admission plug-ins to switch off", commandline.Listed(&o.DisabledPlugins))
	f.Int64Var(&o.Tolerations.NotReady, "default-not-ready-toleration-seconds", 300, "`seconds` for which pods tolerate a node that is not ready, unless they say otherwise")
	f.Int64Var(&o.Tolerations.Unreachable, "default-unreachable-toleration-seconds", 300, "`seconds` for which pods tolerate a node that is unreachable, unless they say otherwise")
	f.StringVar(&o.AdmissionConfig, "admission-control-config-file", "", "`file` with an AdmissionConfiguration: of PodSecurity, PodNodeSelector, PodTolerationRestriction and EventRateLimit")
	f.BoolVar(&o.ManagedFields, "managed-fields", true, "record in metadata.managedFields who set which field; server-side apply needs it")
	f.Func("runtime-config", "comma-separated `versions` to switch on or off: GROUP/VERSION=true|false, of one type GROUP/VERSION/RESOURCE, of all that are off by default api/beta, api/alpha, api/all", commandline.Listed(&o.RuntimeConfig))
	f.Func("emulated-version", "emulate an earlier `version` of Kubernetes, [kube=]1.34 to 1.37: serve the types that it has, with the defaults of its feature gates", commandline.Listed(&o.EmulatedVersion))
	f.BoolVar(&o.DenyDeprecated, "deny-deprecated", false, "refuse the use of deprecated API versions instead of warning about it")
}

func (o *Options) defineRequests(f *flag.FlagSet) {
	o.MaxReadonly, o.MaxMutating = 400, 200
	f.Func("max-requests-inflight", "concurrent requests that only read; with --max-mutating-requests-inflight these are all `seats` of flow control. auto, for both: as many as the machine carries (default 400)", inflight(&o.MaxReadonly, &o.readonlyGiven))
	f.Func("max-mutating-requests-inflight", "concurrent requests that write: a `number` or auto (default 200)", inflight(&o.MaxMutating, &o.mutatingGiven))
	f.BoolVar(&o.FlowControl, "enable-priority-and-fairness", true, "Priority and Fairness (APF) over the sum of both inflight limits; false enforces each limit alone")
	f.DurationVar(&o.RequestTimeout, "request-timeout", time.Minute, "time for a request other than a watch")
	f.DurationVar(&o.MinTimeout, "min-request-timeout", 30*time.Minute, "a watch lasts this long at least, twice as long at most (kube-apiserver: in seconds)")
	f.DurationVar(&o.ShutdownDelay, "shutdown-delay-duration", 0, "how long to go on serving after SIGTERM, with /readyz failing and clients asked to connect anew, so that load balancers send nobody here any more")
	f.StringVar(&o.ContinueKeyFile, "continue-key-file", "", "`file` of base64 keys for continue tokens, one a line: the first signs, all verify")
	f.Func("feature-gates", "comma-separated `list` of Kubernetes' feature gates, GATE=true|false, with kube-apiserver's defaults; AllAlpha and AllBeta set all gates of a stage", commandline.Listed(&o.FeatureGates))
}

func (o *Options) defineLogs(f *flag.FlagSet) {
	f.StringVar(&o.LogFormat, "log-format", "console", "`console|json`")
	f.IntVar(&o.Verbosity, "v", 0, "the `level` of the log: 3 logs every request")
}

// Etcd contains the flags for the etcd cluster that stores the objects. They are those of
// kube-apiserver.
type Etcd struct {
	Servers                           []string // URLs; if empty, the objects are stored in a file
	CAFile, CertFile, KeyFile, Prefix string   // as in kube-apiserver's --etcd-... flags
}

// Define adds the flags to a set.
func (e *Etcd) Define(f *flag.FlagSet) {
	f.Func("etcd-servers", "comma-separated `URLs` of an etcd cluster that holds the objects, under kube-apiserver's keys; several servers may share it, kube-apiserver among them", commandline.Listed(&e.Servers))
	f.StringVar(&e.CAFile, "etcd-cafile", "", "PEM `file` of CA certificates to verify etcd")
	f.StringVar(&e.CertFile, "etcd-certfile", "", "PEM `file` with the client certificate for etcd")
	f.StringVar(&e.KeyFile, "etcd-keyfile", "", "PEM `file` with the key of --etcd-certfile")
	f.StringVar(&e.Prefix, "etcd-prefix", "/registry", "the `path` with which all keys in etcd begin")
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
			return errors.New("neither a number nor auto")
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
		return fmt.Errorf("--ephemeral keeps nothing: --data %s would be neither read nor written, so leave one of the two out", o.Data)
	}
	if o.EncryptionReload && o.EncryptionConfig == "" {
		return errors.New("--encryption-provider-config-automatic-reload must be set with --encryption-provider-config")
	}
	if o.Base != "" && (!o.Ephemeral || len(o.Etcd.Servers) > 0) {
		return errors.New("--base is what an ephemeral server begins with: it goes with --ephemeral, and without --etcd-servers")
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
	if err := o.finishOthers(); err != nil {
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
	if o.Kept() > 0 && o.CompactionInterval <= 0 {
		return errors.New("--history needs a --compaction-interval above 0: nothing is compacted without")
	}
	return o.Auth.CheckListen(o.Listen)
}

// finishNumbers returns an error for durations that make no sense, such as a negative one or a
// request timeout of zero.
func (o *Options) finishNumbers() error {
	switch {
	case o.CompactionInterval < 0:
		return fmt.Errorf("--compaction-interval: %s is negative (0 keeps all)", o.CompactionInterval)
	case o.EventTTL < 0:
		return fmt.Errorf("--event-ttl: %s is negative (0 keeps all)", o.EventTTL)
	case o.RequestTimeout <= 0:
		return fmt.Errorf("--request-timeout: %s is not above 0", o.RequestTimeout)
	case o.ShutdownDelay < 0:
		return fmt.Errorf("--shutdown-delay-duration: %s is negative", o.ShutdownDelay)
	case o.MinTimeout < 0:
		return fmt.Errorf("--min-request-timeout: %s is negative", o.MinTimeout)
	}
	return nil
}

// Kept returns the duration for which old versions are kept, or 0 if all are kept.
func (o *Options) Kept() time.Duration {
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
		return errors.New("--tls-cert-file and --tls-private-key-file belong together")
	}
	authenticator := o.Auth.TokenFile != "" || o.Auth.ClientCAFile != "" || o.Auth.RequestHeader.ClientCAFile != "" || o.Auth.BootstrapTokens || o.asksOthers()
	o.OwnCerts = o.TLSCert == "" && (authenticator || o.CertDir != "" || len(o.Names) > 0 || !auth.StaysHere(o.Listen))
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
			return fmt.Errorf("%s is there more than once", mode)
		}
	}
	if slices.Contains(modes, callout.TypeWebhook) || slices.Contains(modes, callout.TypeAlwaysDeny) { // these modes may deny a request before another mode allows it
		o.Auth.AlwaysAllow = false
		plan, err := callout.PlanOf(modes, o.Hook)
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
	case o.mutatingGiven && o.MaxMutating != AutoSeats || o.readonlyGiven && o.MaxReadonly != AutoSeats:
		return errors.New("--max-requests-inflight=auto finds the sum of both limits: --max-mutating-requests-inflight is auto, too, or not given")
	case !o.FlowControl:
		return errors.New("--max-requests-inflight=auto needs --enable-priority-and-fairness")
	}
	o.MaxReadonly, o.MaxMutating = AutoSeats, AutoSeats
	return nil
}
