package main

// This file has the flags in the groups in which help shows them. Names, meanings and defaults are kube-apiserver's where it has the
// flag; commands.go says which command has which group.

import (
	"errors"
	"flag"
	"io"
	"strings"
	"time"

	"apilet/internal/auth/serviceaccount"
	"apilet/internal/gc"
)

// serveFlags are those of the command that serves.
var serveFlags = []flagGroup{
	{"The data", defineStorage},
	{"The address and its certificate", defineAddress},
	{"Who may do what", defineAccess},
	{"Service accounts", defineAccounts},
	{"Objects", defineObjects},
	{"Requests", defineRequests},
	{"Logs", defineLogs},
}

// newConfig returns the flags for serving with their defaults.
func newConfig(stderr io.Writer) (*config, *flag.FlagSet) {
	c := &config{namespaceGrace: gc.NamespaceGrace}
	f := findCommand("").flagSet(c)
	f.SetOutput(stderr)
	return c, f
}

// defineData is for those that need to know the file alone.
func defineData(c *config, f *flag.FlagSet) {
	f.StringVar(&c.data, "data", "apilet.db", "the `file` that holds everything")
}

func defineStorage(c *config, f *flag.FlagSet) {
	defineData(c, f)
	f.BoolVar(&c.ephemeral, "ephemeral", false, "keep nothing: a temporary file, no fsync, removed at exit")
	f.Int64Var(&c.quota, "quota-backend-bytes", 0, "above this many `bytes` in the data file writes other than deletes are refused; its free pages do not count, history that is not compacted yet does; 0 is no limit")
	f.DurationVar(&c.compactionInterval, "compaction-interval", 5*time.Minute, "history older than this is compacted; 0 keeps all")
	f.DurationVar(&c.eventTTL, "event-ttl", time.Hour, "Events older than this are deleted")
}

func defineAddress(c *config, f *flag.FlagSet) {
	f.StringVar(&c.listen, "listen", "127.0.0.1:8080", "`host:port` to serve on; port 0 picks a free one")
	f.StringVar(&c.kubeconfig, "kubeconfig", "", "write a kubeconfig to this `file` once listening")
	f.StringVar(&c.tlsCert, "tls-cert-file", "", "PEM `file` with the serving certificate; makes the server speak TLS")
	f.StringVar(&c.tlsKey, "tls-private-key-file", "", "PEM `file` with the key of --tls-cert-file")
	f.StringVar(&c.certDir, "cert-dir", "", "`folder` for the authority and certificate that are made where TLS needs them; giving it switches TLS on (default: DATA-certs)")
	f.StringVar(&c.corsOrigins, "cors-allowed-origins", "", "comma-separated `regexes` of web origins that may use this server")
}

func defineAccess(c *config, f *flag.FlagSet) {
	f.StringVar(&c.auth.ClientCAFile, "client-ca-file", "", "PEM `file` of authorities; a client certificate of theirs is its user (CN) and groups (O)")
	f.StringVar(&c.auth.TokenFile, "token-auth-file", "", "CSV `file` of bearer tokens: token,user,uid,\"group1,group2\"")
	f.BoolVar(&c.auth.Anonymous, "anonymous-auth", true, "with an authenticator: requests without credentials are system:anonymous instead of refused")
	f.StringVar(&c.authorization, "authorization-mode", "", "RBAC or AlwaysAllow; by default RBAC with an authenticator and AlwaysAllow without")
}

func defineAccounts(c *config, f *flag.FlagSet) {
	f.StringVar(&c.accounts.SigningKeyFile, "service-account-signing-key-file", "", "PEM `file` with the private key that signs service account tokens; by default the data file keeps one")
	f.Func("service-account-key-file", "PEM `file` of keys that verify service account tokens, may be repeated; without the flag before, a private one among them signs", appendTo(&c.accounts.KeyFiles))
	f.Func("service-account-issuer", "the `URL` that service account tokens name, may be repeated: the first issues, all are accepted (default "+serviceaccount.DefaultIssuer+")", appendTo(&c.accounts.Issuers))
	f.Func("api-audiences", "comma-separated `names` of this server in service account tokens (default: the issuers)", appendList(&c.accounts.Audiences))
	f.StringVar(&c.jwksURI, "service-account-jwks-uri", "", "`URL` of the public keys in the discovery document, if not this server's own")
}

func defineObjects(c *config, f *flag.FlagSet) {
	f.BoolVar(&c.namespaceDefaults, "namespace-defaults", true, "give namespaces their ServiceAccount default and, with TLS, ConfigMap kube-root-ca.crt; false leaves them empty, as kube-apiserver alone does")
	f.StringVar(&c.serviceRange, "service-cluster-ip-range", "10.96.0.0/16", "IPv4 `CIDR` from which Services get their cluster IPs")
	f.BoolVar(&c.validate, "validate", true, "judge built-in objects by the rules of their types; false trusts the writers, but for metadata")
	f.Func("enable-admission-plugins", "comma-separated `names` of admission plug-ins to switch on besides those that are on by default", appendList(&c.enabledPlugins))
	f.Func("disable-admission-plugins", "comma-separated `names` of admission plug-ins to switch off", appendList(&c.disabledPlugins))
	f.BoolVar(&c.managedFields, "managed-fields", true, "record in metadata.managedFields who set which field; server-side apply needs it")
	f.BoolVar(&c.denyDeprecated, "deny-deprecated", false, "refuse the use of deprecated API versions instead of warning about it")
}

func defineRequests(c *config, f *flag.FlagSet) {
	f.IntVar(&c.maxReadonly, "max-requests-inflight", 400, "requests that only read, at once; the sum with the next flag is flow control's seats")
	f.IntVar(&c.maxMutating, "max-mutating-requests-inflight", 200, "requests that write, at once")
	f.BoolVar(&c.flowControl, "enable-priority-and-fairness", true, "share the sum of the two limits out by flow; false enforces each limit alone")
	f.DurationVar(&c.requestTimeout, "request-timeout", time.Minute, "time for a request other than a watch")
	f.DurationVar(&c.minTimeout, "min-request-timeout", 30*time.Minute, "a watch lasts this long at least, twice as long at most (kube-apiserver: in seconds)")
	f.StringVar(&c.continueKeys, "continue-key-file", "", "`file` of base64 keys for continue tokens, one a line: the first signs, all verify")
	f.StringVar(&c.featureGates, "feature-gates", "", "comma-separated `list`: APIListChunking=true|false")
}

func defineLogs(c *config, f *flag.FlagSet) {
	f.StringVar(&c.auditPath, "audit-log-path", "", "`file` for audit.k8s.io/v1 events, one JSON line each; - is standard output")
	f.StringVar(&c.logFormat, "log-format", "console", "console or json")
	f.IntVar(&c.verbosity, "v", 0, "3 logs every request")
}

func defineBackup(c *config, f *flag.FlagSet) {
	defineData(c, f)
	f.StringVar(&c.source.kubeconfig, "kubeconfig", "", "ask the server of this `file`'s current context, as its user")
	f.StringVar(&c.source.server, "server", "", "the `URL` of the server to ask")
	f.StringVar(&c.source.tokenFile, "token-file", "", "a `file` with the bearer token to show to --server")
	f.StringVar(&c.source.caFile, "certificate-authority", "", "PEM `file` of the authorities that may vouch for --server")
}

// appendTo is a flag that may be repeated.
func appendTo(list *[]string) func(string) error {
	return func(value string) error {
		if value == "" {
			return errors.New("must not be empty")
		}
		*list = append(*list, value)
		return nil
	}
}

// appendList is a flag that may be repeated, each time with a comma-separated list.
func appendList(list *[]string) func(string) error {
	return func(values string) error {
		*list = append(*list, strings.FieldsFunc(values, func(r rune) bool { return r == ',' })...)
		return nil
	}
}
