// Apilet is a Kubernetes-compatible API server: one program, one bbolt file, no etcd, no cluster. Unmodified kubectl, client-go and
// controller-runtime talk to it. A request meets the files in this order:
//
//	         ┌───────────────────────── main.go ─────────────────────────┐
//	request ─▶ record.go, warn.go ─▶ auth.go ─▶ inflight.go ─▶ route      │
//	         └────────────────────────────────────────────────────┬──────┘
//	                         ┌────────────────────────────────────┤
//	                         ▼ reads                              ▼ writes
//	                  list.go, watch.go        patch.go ◀── api.go, strategy.go ──▶ defaults.go, admission.go, validate.go
//	                         │                                    │
//	                         └──────────▶ store.go ◀──────────────┘ ◀── gc.go, which works off what was deleted
//
//	types.go (the table of types, codecs), discovery.go, columns.go and metrics.go are leaves: others ask them, they ask nobody.
//
// This file reads the flags, puts the parts together, and serves until it is told to stop.
package main

import (
	"bufio"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	stdlog "log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/rs/zerolog"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation/path"
	"k8s.io/apimachinery/pkg/version"
)

const (
	minorVersion  = "36"
	gitVersion    = "v1.36.0+apilet"
	shutdownGrace = 20 * time.Second      // for requests that run when the server is told to stop
	farewell      = 50 * time.Millisecond // for HTTP/2 clients to hear that the server goes, and begin nothing new
	bookmarkEvery = time.Minute
	scrubAfter    = time.Minute
	scrubEvery    = 24 * time.Hour

	backupPiece    = 1 << 20       // a client that does not read one of these
	backupPatience = time.Minute   // within this time gets no more
	renewEvery     = 6 * time.Hour // certificates are looked at; see certs.go
)

// config is what the flags say. Names, meanings and defaults are kube-apiserver's where it has the flag.
type config struct {
	data, listen, kubeconfig                string
	source                                  backupSource
	ephemeral                               bool
	tlsCert, tlsKey, certDir                string
	ownCerts                                bool // TLS with a certificate of the server's own making
	auth                                    authConfig
	accounts                                accountConfig
	corsOrigins, authorization              string
	auditPath, jwksURI                      string
	denyDeprecated, managedFields, validate bool
	flowControl                             bool
	maxReadonly, maxMutating                int
	requestTimeout, minTimeout              time.Duration
	compactionInterval, eventTTL            time.Duration
	quota                                   int64
	serviceRange                            string
	continueKeys, featureGates              string
	logFormat                               string
	verbosity                               int
	chunking                                bool
	log                                     zerolog.Logger
}

func main() {
	os.Exit(commandAs(programName(os.Args[0]), os.Args[1:], os.Stdout, os.Stderr))
}

// commandAs runs the program as what it was called: itself, or one of the two whose place it takes in tests.
func commandAs(program string, args []string, stdout, stderr io.Writer) int {
	var err error
	switch program {
	case "etcd":
		ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
		defer cancel()
		err = serveAsEtcd(ctx, args, stderr)
	case "kube-apiserver":
		_, own := newConfig(stderr)
		args, err = translateAPIServer(args, own, stderr)
		switch {
		case errors.Is(err, flag.ErrHelp):
			printAPIServerHelp(stdout, own)
			return 0
		case errors.Is(err, errShowVersion):
			fmt.Fprintln(stdout, "Kubernetes", gitVersion)
			return 0
		case err == nil:
			return command(args, stdout, stderr)
		}
	default:
		return command(args, stdout, stderr)
	}
	if err != nil {
		fmt.Fprintln(stderr, program+":", err)
		return 1
	}
	return 0
}

// command runs the program and returns its exit code: 0, 1 for an error, 2 for a misused command line.
func command(args []string, stdout, stderr io.Writer) int {
	verb := ""
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		verb, args = args[0], args[1:]
	}
	cfg, flags := newConfig(stderr)
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return 2
	}
	var err error
	switch verb {
	case "":
		err = cfg.serve(stderr, flags.Args())
	case "version":
		fmt.Fprintln(stdout, gitVersion)
	case "check":
		err = runCheck(stdout, cfg.data)
	case "defrag":
		err = defragFile(cfg.data)
	case "backup":
		err = runBackup(cfg, flags.Args())
	default:
		fmt.Fprintf(stderr, "apilet: unknown command %q; the commands are version, backup, check, defrag, and none to serve\n", verb)
		return 2
	}
	if err != nil {
		fmt.Fprintln(stderr, "apilet:", err)
		return 1
	}
	return 0
}

// runCheck prints what checkFile found. Problems are an error.
func runCheck(out io.Writer, path string) error {
	report, err := checkFile(path)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s: revision %d, compacted to %d, %d objects, %d records\n", path, report.revision, report.compacted, report.objects, report.records)
	for _, problem := range report.problems {
		fmt.Fprintln(out, problem)
	}
	if len(report.problems) > 0 {
		return fmt.Errorf("%s: %d problems", path, len(report.problems))
	}
	return nil
}

// runBackup copies a running server's objects (--server), or those of a file that no server has open, into a new file.
func runBackup(c *config, args []string) error {
	if len(args) != 1 {
		return errors.New("usage: apilet backup [--server URL [--token-file FILE] [--certificate-authority FILE] | --data FILE] DEST")
	}
	if c.source.server != "" {
		return c.source.download(args[0])
	}
	st, err := openStore(c.data, storeOptions{})
	if err != nil {
		return err
	}
	up, err := newUpkeep(st)
	if err == nil {
		err = up.backup(context.Background(), args[0])
	}
	return errors.Join(err, st.close())
}

// newConfig returns the flags with their defaults.
func newConfig(stderr io.Writer) (*config, *flag.FlagSet) {
	c := &config{}
	f := flag.NewFlagSet("apilet", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&c.data, "data", "apilet.db", "the `file` that holds everything")
	f.BoolVar(&c.ephemeral, "ephemeral", false, "keep nothing: a temporary file, no fsync, removed at exit")
	f.StringVar(&c.listen, "listen", "127.0.0.1:8080", "`host:port` to serve on; port 0 picks a free one")
	f.StringVar(&c.kubeconfig, "kubeconfig", "", "write a kubeconfig to this `file` once listening")
	f.StringVar(&c.tlsCert, "tls-cert-file", "", "PEM `file` with the serving certificate; makes the server speak TLS")
	f.StringVar(&c.tlsKey, "tls-private-key-file", "", "PEM `file` with the key of --tls-cert-file")
	f.StringVar(&c.certDir, "cert-dir", "", "`folder` for the authority and certificate that are made where TLS needs them; giving it switches TLS on (default: DATA-certs)")
	f.StringVar(&c.auth.clientCAFile, "client-ca-file", "", "PEM `file` of authorities; a client certificate of theirs is its user (CN) and groups (O)")
	f.StringVar(&c.auth.tokenFile, "token-auth-file", "", "CSV `file` of bearer tokens: token,user,uid,\"group1,group2\"")
	f.StringVar(&c.accounts.signingKeyFile, "service-account-signing-key-file", "", "PEM `file` with the private key that signs service account tokens; by default the data file keeps one")
	f.Func("service-account-key-file", "PEM `file` of keys that verify service account tokens, may be repeated; without the flag before, a private one among them signs", appendTo(&c.accounts.keyFiles))
	f.Func("service-account-issuer", "the `URL` that service account tokens name, may be repeated: the first issues, all are accepted (default "+defaultIssuer+")", appendTo(&c.accounts.issuers))
	f.Func("api-audiences", "comma-separated `names` of this server in service account tokens (default: the issuers)", appendList(&c.accounts.audiences))
	f.StringVar(&c.jwksURI, "service-account-jwks-uri", "", "`URL` of the public keys in the discovery document, if not this server's own")
	f.BoolVar(&c.auth.anonymous, "anonymous-auth", true, "with an authenticator: requests without credentials are system:anonymous instead of refused")
	f.StringVar(&c.authorization, "authorization-mode", "", "RBAC or AlwaysAllow; by default RBAC with an authenticator and AlwaysAllow without")
	f.StringVar(&c.corsOrigins, "cors-allowed-origins", "", "comma-separated `regexes` of web origins that may use this server")
	f.IntVar(&c.maxReadonly, "max-requests-inflight", 400, "requests that only read, at once; the sum with the next flag is flow control's seats")
	f.IntVar(&c.maxMutating, "max-mutating-requests-inflight", 200, "requests that write, at once")
	f.DurationVar(&c.requestTimeout, "request-timeout", time.Minute, "time for a request other than a watch")
	f.DurationVar(&c.minTimeout, "min-request-timeout", 30*time.Minute, "a watch lasts this long at least, twice as long at most (kube-apiserver: in seconds)")
	f.DurationVar(&c.compactionInterval, "compaction-interval", 5*time.Minute, "history older than this is compacted; 0 keeps all")
	f.DurationVar(&c.eventTTL, "event-ttl", time.Hour, "Events older than this are deleted")
	f.Int64Var(&c.quota, "quota-backend-bytes", 0, "size of the data file above which writes other than deletes are refused; 0 is no limit")
	f.BoolVar(&c.flowControl, "enable-priority-and-fairness", true, "share the sum of the two limits out by flow; false enforces each limit alone")
	f.StringVar(&c.serviceRange, "service-cluster-ip-range", "10.96.0.0/16", "IPv4 `CIDR` from which Services get their cluster IPs")
	f.StringVar(&c.continueKeys, "continue-key-file", "", "`file` of base64 keys for continue tokens, one a line: the first signs, all verify")
	f.StringVar(&c.featureGates, "feature-gates", "", "comma-separated `list`: APIListChunking=true|false")
	f.StringVar(&c.auditPath, "audit-log-path", "", "`file` for audit.k8s.io/v1 events, one JSON line each; - is standard output")
	f.BoolVar(&c.validate, "validate", true, "judge built-in objects by the rules of their types; false trusts the writers, but for metadata")
	f.BoolVar(&c.managedFields, "managed-fields", true, "record in metadata.managedFields who set which field; server-side apply needs it")
	f.BoolVar(&c.denyDeprecated, "deny-deprecated", false, "refuse the use of deprecated API versions instead of warning about it")
	f.StringVar(&c.logFormat, "log-format", "console", "console or json")
	f.IntVar(&c.verbosity, "v", 0, "3 logs every request")
	f.StringVar(&c.source.server, "server", "", "with backup: the `URL` of the server to ask")
	f.StringVar(&c.source.tokenFile, "token-file", "", "with backup: a `file` with the bearer token to show to --server")
	f.StringVar(&c.source.caFile, "certificate-authority", "", "with backup: PEM `file` of the authorities that may vouch for --server")
	return c, f
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

// serve runs the server until SIGTERM or SIGINT.
func (c *config) serve(stderr io.Writer, rest []string) error {
	if len(rest) > 0 {
		return fmt.Errorf("unexpected argument %q", rest[0])
	}
	c.log = newLogger(stderr, c.logFormat)
	stop, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	s, err := startServer(c)
	if err != nil {
		return err
	}
	select {
	case <-stop.Done():
		c.log.Info().Msg("stopping")
	case err = <-s.failed:
	}
	return errors.Join(err, s.stop())
}

func newLogger(out io.Writer, format string) zerolog.Logger {
	if format != "json" {
		file, ok := out.(*os.File)
		terminal := ok && isTerminal(file)
		out = zerolog.ConsoleWriter{Out: out, TimeFormat: time.RFC3339, NoColor: !terminal}
	}
	return zerolog.New(out).With().Timestamp().Logger()
}

func isTerminal(file *os.File) bool {
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// finish checks what the flags say together and derives what follows from it.
func (c *config) finish() error {
	if err := c.finishTLS(); err != nil {
		return err
	}
	if len(c.accounts.issuers) == 0 {
		c.accounts.issuers = []string{defaultIssuer}
	}
	if c.corsOrigins != "" {
		c.auth.corsOrigins = strings.Split(c.corsOrigins, ",")
	}
	switch c.authorization {
	case "":
		c.auth.alwaysAllow = c.auth.insecure
	case "RBAC", "AlwaysAllow":
		c.auth.alwaysAllow = c.authorization == "AlwaysAllow"
	default:
		return fmt.Errorf("--authorization-mode: %q is neither RBAC nor AlwaysAllow", c.authorization)
	}
	c.chunking = true
	for _, gate := range strings.FieldsFunc(c.featureGates, func(r rune) bool { return r == ',' }) {
		switch name, value, _ := strings.Cut(gate, "="); {
		case name == "APIListChunking" && (value == "true" || value == "false"):
			c.chunking = value == "true"
		default:
			return fmt.Errorf("--feature-gates: %q is not APIListChunking=true or APIListChunking=false", gate)
		}
	}
	c.auth.log = c.log
	return c.auth.checkListen(c.listen)
}

// finishTLS decides between plain HTTP and TLS, and with whose certificate. An authenticator, an address that others can reach, and
// --cert-dir each ask for TLS. A certificate of the server's own making comes with an authority, whose client certificates authenticate.
func (c *config) finishTLS() error {
	if (c.tlsCert == "") != (c.tlsKey == "") {
		return errors.New("--tls-cert-file and --tls-private-key-file belong together")
	}
	authenticator := c.auth.tokenFile != "" || c.auth.clientCAFile != ""
	c.ownCerts = c.tlsCert == "" && (authenticator || c.certDir != "" || !staysHere(c.listen))
	c.auth.insecure = !authenticator && !c.ownCerts
	if c.certDir == "" && !c.ephemeral {
		c.certDir = strings.TrimSuffix(c.data, filepath.Ext(c.data)) + "-certs"
	}
	return nil
}

// ---- The server ----

// A server is a running apilet.
type server struct {
	cfg       *config
	log       zerolog.Logger
	url       string
	st        *store
	upkeep    *upkeep
	reg       *registry
	rd        *reads
	wr        *writes
	types     *definitions
	auth      *authenticator
	certs     *certFolder // nil without TLS, or with --tls-cert-file
	metrics   *metrics
	usage     *deprecationTracker
	audit     *auditLog                // nil without --audit-log-path
	flows     *flowKeeper              // nil without flow control
	policy    *policyKeeper            // nil when nothing is enforced
	damage    atomic.Pointer[[]string] // what the last scrub found
	http      *http.Server
	books     *bookkeeper
	resting   restingConns
	adminEnds time.Time          // of the certificate in the kubeconfig
	stopping  chan struct{}      // closed when the server is told to stop: watches end, /readyz fails
	idle      context.CancelFunc // ends the background work
	workers   chan struct{}      // closed when the background work has ended
	failed    chan error         // what ended the server, if it was not told to stop
}

// startServer opens the store, listens, and serves in the background. The caller stops it.
func startServer(c *config) (*server, error) {
	if err := c.finish(); err != nil {
		return nil, err
	}
	s := &server{cfg: c, log: c.log, reg: newRegistry(), metrics: newMetrics(), usage: newDeprecationTracker(),
		stopping: make(chan struct{}), workers: make(chan struct{}), failed: make(chan error, 1)}
	var err error
	if err = s.openCerts(); err != nil {
		return nil, fmt.Errorf("--cert-dir: %w", err)
	}
	if s.auth, err = newAuthenticator(c.auth); err != nil {
		return nil, err
	}
	if c.auditPath != "" {
		if s.audit, err = openAuditLog(c.auditPath, s.auditHooks()); err != nil {
			return nil, fmt.Errorf("--audit-log-path: %w", err)
		}
	}
	warn := func(text string) { s.log.Warn().Msg(text) }
	if s.st, err = openStore(c.data, storeOptions{ephemeral: c.ephemeral, quota: c.quota, warn: warn}); err != nil {
		return nil, err
	}
	removeLeftovers(s.st.path)
	if err := s.start(); err != nil {
		return nil, errors.Join(err, s.st.close())
	}
	return s, nil
}

func (s *server) start() error {
	if err := s.assemble(); err != nil {
		return err
	}
	if err := s.populate(context.Background()); err != nil {
		return err
	}
	listener, secured, err := s.listen()
	if err != nil {
		return err
	}
	if err := (founder{s.wr, s.reg}).cluster(context.Background(), s.wr.alloc.block, listener.Addr().(*net.TCPAddr).Port); err != nil {
		s.log.Error().Err(err).Msg("a part of the cluster is missing")
	}
	s.http = &http.Server{
		Handler:           s.handler(),
		TLSConfig:         secured,
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       s.cfg.requestTimeout + 5*time.Second,
		WriteTimeout:      s.cfg.requestTimeout + 10*time.Second,
		IdleTimeout:       3 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ConnContext:       withConn,
		ConnState:         s.resting.note,
		ErrorLog:          stdlog.New(s.metrics.countHandshakeErrors(s.log), "", 0),
	}
	if s.cfg.kubeconfig != "" {
		if err := s.writeKubeconfig(); err != nil {
			return errors.Join(fmt.Errorf("--kubeconfig: %w", err), listener.Close())
		}
	}
	s.startWorkers()
	go s.accept(listener)
	s.log.Info().Str("url", s.url).Str("data", s.st.path).Int64("revision", s.st.revision()).Msg("serving")
	return nil
}

// assemble makes the parts that work on the store, and puts them together.
func (s *server) assemble() error {
	var err error
	if s.upkeep, err = newUpkeep(s.st); err != nil {
		return err
	}
	s.cfg.accounts.rootCA = s.cfg.auth.ownCA
	if s.auth.accounts, err = newAccountTokens(s.st, s.cfg.accounts); err != nil {
		return err
	}
	keys, err := s.continueKeys()
	if err != nil {
		return err
	}
	s.rd = &reads{st: s.st, tokens: newTokenCodec(keys), chunking: s.cfg.chunking, minTimeout: s.cfg.minTimeout,
		bookmarks: bookmarkEvery, patience: s.cfg.requestTimeout, shuttingDown: s.stopping, turns: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2))}
	alloc, err := newAllocator(s.st, s.cfg.serviceRange)
	if err != nil {
		return err
	}
	s.wr = &writes{st: s.st, reg: s.reg, rd: s.rd, auth: s.auth, alloc: alloc, validating: s.cfg.validate, managed: s.cfg.managedFields}
	s.wr.hooks = s.webhooks()
	s.books = &bookkeeper{reg: s.reg, metrics: s.metrics, audit: s.audit, log: s.log, verbosity: s.cfg.verbosity, timeout: s.cfg.requestTimeout}
	s.metrics.watchStore(s.storeStats)
	s.metrics.buildInfo(map[string]string{"major": "1", "minor": minorVersion, "git_version": gitVersion, "go_version": runtime.Version(),
		"platform": runtime.GOOS + "/" + runtime.GOARCH})
	s.types = newDefinitions(s.st, s.reg, s.wr, s.log)
	return nil
}

// populate brings what is stored into force (definitions, flow control, roles) and adds what every server has.
func (s *server) populate(ctx context.Context) error {
	if err := errors.Join(founder{s.wr, s.reg}.namespaces(ctx), s.types.sync(ctx)); err != nil {
		return err
	}
	if s.cfg.flowControl {
		fc := newFlowControl(s.cfg.maxReadonly+s.cfg.maxMutating, s.cfg.requestTimeout, s.stored)
		s.flows = newFlowKeeper(s.st, s.reg, s.wr, fc)
		s.metrics.registry.MustRegister(fc)
		if err := s.flows.begin(ctx); err != nil {
			return err
		}
	}
	if s.auth.enforcing() {
		s.policy = newPolicyKeeper(s.st, s.reg, s.wr, s.auth)
		if err := s.policy.reconcile(ctx); err != nil {
			return err
		}
	}
	return nil
}

// webhooks reads the configured webhooks.
func (s *server) webhooks() *webhooks {
	h := &webhooks{st: s.st, reg: s.reg, services: &serviceBook{st: s.st, reg: s.reg}, metrics: s.metrics, log: s.log,
		may: s.auth.decide, defaults: fillDefaults}
	h.reload()
	return h
}

// startWorkers runs what goes on beside requests: compaction, and the collector. stop ends it.
func (s *server) startWorkers() {
	ctx, cancel := context.WithCancel(context.Background())
	s.idle = cancel
	gc := &collector{st: s.st, upkeep: s.upkeep, reg: s.reg, wr: s.wr, eventTTL: s.cfg.eventTTL, log: s.log}
	var running sync.WaitGroup
	running.Go(func() { gc.run(ctx) })
	running.Go(func() { s.types.run(ctx) })
	running.Go(func() { s.scrub(ctx) })
	if s.audit != nil {
		running.Go(func() { s.reopenAudit(ctx) })
	}
	if s.certs != nil {
		running.Go(func() { s.renewCerts(ctx) })
	}
	running.Go(func() {
		s.upkeep.run(ctx, s.cfg.compactionInterval, func(_ compaction, err error) { s.afterCompaction(ctx, gc, err) })
	})
	if s.flows != nil {
		running.Go(func() { s.flows.fc.run(ctx) })
		running.Go(func() {
			s.flows.follow(ctx, s.flows.apply, func(err error) { s.log.Error().Err(err).Msg("reading flow schemas and priority levels") })
		})
	}
	if s.policy != nil {
		running.Go(func() {
			s.policy.follow(ctx, s.policy.apply, func(err error) { s.log.Error().Err(err).Msg("reading the policy") })
		})
	}
	go func() {
		running.Wait()
		close(s.workers)
	}()
}

// scrub looks for damage in the file a while after the start and then daily. What it finds is logged and makes /readyz fail.
func (s *server) scrub(ctx context.Context) {
	for wait := scrubAfter; ; wait = scrubEvery {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		report, err := s.upkeep.scrub(ctx)
		if err != nil {
			report.problem("%v", err)
		}
		if ctx.Err() != nil {
			return
		}
		for _, problem := range report.problems {
			s.log.Error().Str("problem", problem).Msg("the data file is damaged")
		}
		s.damage.Store(&report.problems)
	}
}

// intact is the health check that shows what the scrub found.
func (s *server) intact() error {
	if problems := s.damage.Load(); problems != nil && len(*problems) > 0 {
		return errors.New((*problems)[0])
	}
	return nil
}

// renewCerts keeps the certificates that the server makes from expiring under it.
func (s *server) renewCerts(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(renewEvery):
		}
		err := s.certs.renew()
		if err == nil && s.cfg.kubeconfig != "" && time.Now().Add(renewBefore).After(s.adminEnds) {
			err = s.writeKubeconfig()
		}
		if err != nil {
			s.log.Error().Err(err).Msg("renewing certificates")
		}
	}
}

// auditHooks count audit events, and tell the log when they cannot be written.
func (s *server) auditHooks() auditHooks {
	return auditHooks{
		written: func(n int) { s.metrics.auditEvents.Add(float64(n)) },
		lost:    func(n int) { s.metrics.auditErrors.Add(float64(n)) },
		trouble: func(err error) {
			if err != nil {
				s.metrics.auditFailing.Set(1)
				s.log.Error().Err(err).Msg("the audit log cannot be written; events wait in memory")
				return
			}
			s.metrics.auditFailing.Set(0)
			s.log.Info().Msg("the audit log is written again")
		},
	}
}

// reopenAudit opens the audit log anew at each SIGHUP: that is how logrotate tells that it has moved the file.
func (s *server) reopenAudit(ctx context.Context) {
	hangup := make(chan os.Signal, 1) // one waiting signal stands for all that come before it is seen
	signal.Notify(hangup, syscall.SIGHUP)
	defer signal.Stop(hangup)
	for {
		select {
		case <-ctx.Done():
			return
		case <-hangup:
			if err := s.audit.reopen(); err != nil {
				s.log.Error().Err(err).Msg("reopening the audit log")
			}
		}
	}
}

// afterCompaction reports a round of compaction and lets old Events go, in the same rhythm.
func (s *server) afterCompaction(ctx context.Context, gc *collector, err error) {
	if err == nil {
		err = gc.expireEvents(ctx)
	}
	if err != nil && ctx.Err() == nil {
		s.log.Error().Err(err).Msg("compaction")
	}
}

// openCerts opens --cert-dir where the server needs it. The authority there is one that may sign client certificates.
func (s *server) openCerts() error {
	if !s.cfg.ownCerts {
		return nil
	}
	host, _, _ := net.SplitHostPort(s.cfg.listen) // checked with the flags
	serviceIP, err := firstServiceIP(s.cfg.serviceRange)
	if err != nil {
		return err
	}
	s.certs, err = openCertFolder(s.cfg.certDir, func() []string { return ownHosts(host, serviceIP) }, s.log)
	if err == nil {
		s.cfg.auth.ownCA = s.certs.authority.certPEM
	}
	return err
}

// listen opens the port, and the TLS configuration if there is one.
func (s *server) listen() (net.Listener, *tls.Config, error) {
	listener, err := net.Listen("tcp", s.cfg.listen)
	if err != nil {
		return nil, nil, err
	}
	addr := listener.Addr().(*net.TCPAddr)
	host := addr.String()
	if addr.IP.IsUnspecified() { // listens on all addresses, but it is none
		host = net.JoinHostPort("127.0.0.1", strconv.Itoa(addr.Port))
	}
	s.url = "http://" + host
	var certificate func() *tls.Certificate
	switch {
	case s.certs != nil:
		certificate = s.certs.serving.Load
	case s.cfg.tlsCert != "":
		pair, err := followPair(s.log, s.cfg.tlsCert, s.cfg.tlsKey)
		if err != nil {
			return nil, nil, errors.Join(fmt.Errorf("--tls-cert-file: %w", err), listener.Close())
		}
		certificate = pair.now
	default:
		return listener, nil, nil
	}
	s.url = "https://" + host
	if s.auth.clientCAs == nil {
		return listener, tlsConfig(certificate, nil), nil
	}
	return listener, tlsConfig(certificate, s.auth.clientCAs.now), nil
}

// accept serves until the listener is closed.
func (s *server) accept(listener net.Listener) {
	var err error
	if s.http.TLSConfig != nil {
		err = s.http.ServeTLS(listener, "", "")
	} else {
		err = s.http.Serve(listener)
	}
	if !errors.Is(err, http.ErrServerClosed) {
		s.failed <- err
	}
}

// stop lets running requests end, ends watches, and closes the store.
func (s *server) stop() error {
	close(s.stopping)
	ctx, cancel := context.WithTimeout(context.Background(), shutdownGrace)
	defer cancel()
	time.AfterFunc(farewell, s.resting.close)
	err := s.http.Shutdown(ctx)
	s.idle()
	<-s.workers
	s.wr.hooks.close()
	err = errors.Join(err, s.st.close())
	if s.audit != nil {
		err = errors.Join(err, s.audit.close())
	}
	return err
}

// restingConns are connections without a request: opened and not used yet, as clients that dial ahead have them, or idle. Shutdown would
// wait five seconds for the first request of the former, and one for HTTP/2 clients to leave the latter.
type restingConns struct {
	mu       sync.Mutex // guards what follows
	conns    map[net.Conn]bool
	stopping bool
}

// note is for http.Server.ConnState.
func (c *restingConns) note(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if state != http.StateNew && state != http.StateIdle {
		delete(c.conns, conn)
		return
	}
	if c.conns == nil {
		c.conns = map[net.Conn]bool{}
	}
	c.conns[conn] = true
	if c.stopping {
		time.AfterFunc(farewell, c.close)
	}
}

// close ends what rests, and a while later each connection that comes to rest after it.
func (c *restingConns) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopping = true
	for conn := range c.conns {
		go conn.Close() // which waits for a client that reads nothing
	}
	clear(c.conns)
}

// continueKeys reads the keys of --continue-key-file, or the one that the data file keeps.
func (s *server) continueKeys() ([][]byte, error) {
	if s.cfg.continueKeys == "" {
		key, err := s.st.secret("continue-key", func() []byte {
			key := make([]byte, 32)
			_, _ = rand.Read(key) // never fails
			return key
		})
		return [][]byte{key}, err
	}
	file, err := os.Open(s.cfg.continueKeys)
	if err != nil {
		return nil, fmt.Errorf("--continue-key-file: %w", err)
	}
	defer file.Close()
	var keys [][]byte
	for lines, n := bufio.NewScanner(file), 1; lines.Scan(); n++ {
		text := strings.TrimSpace(lines.Text())
		if text == "" {
			continue
		}
		key, err := base64.StdEncoding.DecodeString(text)
		if err != nil || len(key) < 32 {
			return nil, fmt.Errorf("--continue-key-file: line %d is not the base64 of at least 32 bytes", n)
		}
		keys = append(keys, key)
	}
	if len(keys) == 0 {
		return nil, errors.New("--continue-key-file: no key in it")
	}
	return keys, nil
}

// writeKubeconfig writes how to reach this server, at once and whole. On the plain port it says insecure-skip-tls-verify: the JavaScript
// client refuses plain HTTP otherwise, the others ignore it. A server with an authority of its own adds an administrator's certificate;
// another cannot make one, and leaves the user empty.
func (s *server) writeKubeconfig() error {
	cluster, admin := map[string]any{"server": s.url}, map[string]any{}
	switch {
	case s.certs != nil:
		cluster["certificate-authority-data"] = s.certs.authority.certPEM
		pair, err := s.certs.issueAdmin()
		if err != nil {
			return err
		}
		admin["client-certificate-data"], admin["client-key-data"] = pair.certPEM, pair.keyPEM
		s.adminEnds = pair.cert.NotAfter
	case s.cfg.tlsCert != "":
		ca, err := os.ReadFile(s.cfg.tlsCert)
		if err != nil {
			return err
		}
		cluster["certificate-authority-data"] = ca
	default:
		cluster["insecure-skip-tls-verify"] = true
	}
	doc, err := json.MarshalIndent(map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": "apilet",
		"clusters": []any{map[string]any{"name": "apilet", "cluster": cluster}},
		"users":    []any{map[string]any{"name": "apilet", "user": admin}},
		"contexts": []any{map[string]any{"name": "apilet", "context": map[string]any{"cluster": "apilet", "user": "apilet"}}},
	}, "", "  ")
	if err != nil {
		return err
	}
	return saveFile(s.cfg.kubeconfig, append(doc, '\n'))
}

// ---- The chain and the routes ----

// handler is the way of every request: what is done for all of them, from the outside in, then the route.
func (s *server) handler() http.Handler {
	return s.books.record(s.books.deadline(s.auth.authenticate(s.auth.impersonate(s.shareOut(s.routes())))))
}

// shareOut gives requests their seats: by flow control, or by counting alone when that is switched off.
func (s *server) shareOut(next http.Handler) http.Handler {
	if s.flows == nil {
		return maxInFlight(s.cfg.maxReadonly, s.cfg.maxMutating, next)
	}
	return s.flows.fc.middleware(next)
}

// routes lists everything that is served.
func (s *server) routes() http.Handler {
	r := chi.NewRouter()
	ready := []healthCheck{pingCheck, shutdownCheck(s.stopping), {"store", s.st.writable}, {"scrub", s.intact}}
	alive := []healthCheck{pingCheck}
	for name, checks := range map[string][]healthCheck{"livez": alive, "healthz": alive, "readyz": ready} {
		endpoint := &healthEndpoint{name: name, checks: checks}
		r.Handle("/"+name, s.guarded(endpoint.ServeHTTP))
		r.Handle("/"+name+"/*", s.guarded(endpoint.ServeHTTP))
	}
	r.Handle("/version", s.guarded(s.serveVersion))
	if config, ok := s.auth.accounts.openIDConfiguration(cmp.Or(s.cfg.jwksURI, s.url+"/openid/v1/jwks")); ok {
		r.Handle("/.well-known/openid-configuration", s.guarded(document("application/json", config)))
		r.Handle("/openid/v1/jwks", s.guarded(document("application/jwk-set+json", s.auth.accounts.keySet())))
	}
	r.Handle("/metrics", s.guarded(s.metrics.handler().ServeHTTP))
	r.Handle("/openapi/v3", s.guarded(s.serveOpenAPI))
	r.Handle("/openapi/v3/*", s.guarded(s.serveOpenAPI))
	r.Handle("/debug/deprecations", s.guarded(s.usage.ServeHTTP))
	if s.flows != nil {
		for _, page := range []string{"dump_priority_levels", "dump_queues", "dump_requests"} {
			r.Handle("/debug/api_priority_and_fairness/"+page, s.guarded(s.flows.fc.serveDump))
		}
	}
	r.Handle("/debug/backup", s.guarded(s.serveBackup))
	r.Handle("/api", s.guarded(s.serveDiscovery))
	r.Handle("/apis", s.guarded(s.serveDiscovery))
	r.Handle("/api/*", s.guarded(s.serveAPI))
	r.Handle("/apis/*", s.guarded(s.serveAPI))
	r.NotFound(s.guarded(http.NotFound))
	return r
}

// document serves bytes that do not change while the server runs.
func document(contentType string, body []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			writeError(w, r, errMethodNotAllowed())
			return
		}
		w.Header().Set("Content-Type", contentType)
		w.Header().Set("Cache-Control", "public, max-age=3600")
		_, _ = w.Write(body) // the client is gone otherwise
	}
}

// guarded authorizes a request before it is handled.
func (s *server) guarded(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := s.auth.authorize(requestFrom(r.Context())); err != nil {
			w.Header().Set("X-Content-Type-Options", "nosniff")
			s.fail(w, r, err)
			return
		}
		next(w, r)
	}
}

func (s *server) serveDiscovery(w http.ResponseWriter, r *http.Request) { serveDiscovery(s.reg, w, r) }
func (s *server) serveOpenAPI(w http.ResponseWriter, r *http.Request)   { serveOpenAPI(s.reg, w, r) }

func (s *server) serveVersion(w http.ResponseWriter, r *http.Request) {
	body, _ := json.MarshalIndent(version.Info{Major: "1", Minor: minorVersion, EmulationMajor: "1", EmulationMinor: minorVersion,
		MinCompatibilityMajor: "1", MinCompatibilityMinor: "35", GitVersion: gitVersion, GitTreeState: "clean",
		GoVersion: runtime.Version(), Compiler: runtime.Compiler, Platform: runtime.GOOS + "/" + runtime.GOARCH}, "", "  ")
	writeJSON(w, r, http.StatusOK, body)
}

// serveBackup streams a backup: made beside the data file first, so that a slow client holds up nothing but its own connection. It may
// take longer than --request-timeout, as long as the client is there and reads.
func (s *server) serveBackup(w http.ResponseWriter, r *http.Request) {
	parent, pattern := filepath.Split(backupFolders(s.st.path))
	if s.cfg.ephemeral { // whose folder is gone already
		parent = ""
	}
	dir, err := os.MkdirTemp(parent, pattern)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	defer os.RemoveAll(dir)
	ctx, cancel := withoutDeadline(r.Context())
	defer cancel()
	path := filepath.Join(dir, "backup")
	if err := s.upkeep.backup(ctx, path); err != nil {
		if isDiskFull(err) {
			err = apierrors.NewInternalError(errDiskFull)
		}
		s.fail(w, r, err)
		return
	}
	file, err := os.Open(path)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	defer file.Close()
	if info, err := file.Stat(); err == nil {
		w.Header().Set("Content-Length", strconv.FormatInt(info.Size(), 10))
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	for control := http.NewResponseController(w); err == nil; {
		_ = control.SetWriteDeadline(time.Now().Add(backupPatience)) // at worst the server's own limit holds
		_, err = io.CopyN(w, file, backupPiece)
	}
	if err != io.EOF {
		panic(http.ErrAbortHandler)
	}
}

// backupFolders is the pattern of the folders in which the backups of a data file are made. Those of a server that was killed are
// removed by the next one, which has the file to itself.
func backupFolders(data string) string {
	return filepath.Join(filepath.Dir(data), "."+filepath.Base(data)+".backup-*")
}

func removeLeftovers(data string) {
	folders, _ := filepath.Glob(backupFolders(data))
	for _, folder := range folders {
		_ = os.RemoveAll(folder) // what stays is in nobody's way
	}
}

// withoutDeadline is cancelled with ctx, but not by its deadline. Once that has passed nothing cancels it but the caller.
func withoutDeadline(ctx context.Context) (context.Context, context.CancelFunc) {
	free, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		if errors.Is(ctx.Err(), context.Canceled) {
			cancel()
		}
	})
	return free, func() { stop(); cancel() }
}

// stored tells flow control how much a resource holds.
func (s *server) stored(group, resource, namespace string) (objects, bytes int64) {
	for _, res := range s.reg.all() {
		if res.group == group && res.plural == resource {
			objects, bytes, _ = s.st.count(res.keyPrefix(namespace))
			return objects, bytes
		}
	}
	return -1, 0
}

// storeStats is what /metrics tells of the store.
func (s *server) storeStats() storeGauges {
	stats := s.st.stats()
	gauges := storeGauges{revision: stats.revision, compactRevision: stats.compactRev, fileBytes: stats.fileBytes, freeBytes: stats.freeBytes}
	gauges.commits, gauges.changes, gauges.commitSeconds, gauges.commitBuckets = stats.commits, stats.writes, stats.commitSeconds, map[float64]uint64{}
	var sum int64
	for i, bound := range commitBounds {
		sum += stats.commitBuckets[i]
		gauges.commitBuckets[bound] = uint64(sum)
	}
	if problems := s.damage.Load(); problems != nil {
		gauges.corrupt = int64(len(*problems))
	}
	seen := map[string]bool{}
	for _, res := range s.reg.all() {
		if res.virtual || seen[res.keyPrefix("")] {
			continue
		}
		seen[res.keyPrefix("")] = true
		objects, bytes, _ := s.st.count(res.keyPrefix(""))
		gauges.objects = append(gauges.objects, objectStats{group: res.storageGroup, resource: res.plural, count: objects, bytes: bytes})
	}
	return gauges
}

// serveAPI answers everything below /api/ and /apis/.
func (s *server) serveAPI(w http.ResponseWriter, r *http.Request) {
	info := &requestFrom(r.Context()).info
	if !info.resourceRequest {
		s.serveDiscovery(w, r)
		return
	}
	if legacy := info.apiPrefix == "api"; legacy != (info.group == "") { // /apis//v1/pods
		http.NotFound(w, r)
		return
	}
	res := s.reg.lookup(info.group, info.version, info.resource)
	if res == nil {
		serveUnknown(s.reg, w, r, info.group)
		return
	}
	err := s.serveResource(w, r, res)
	if errors.Is(err, errAborted) {
		panic(http.ErrAbortHandler)
	}
	if err != nil {
		s.fail(w, r, err)
	}
}

// fail answers with an error, and logs the ones that are nobody's fault but ours. A request that ran out
// of time is not.
func (s *server) fail(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		err = apierrors.NewTimeoutError("request did not complete within the allotted timeout", 0)
	}
	if unexpected := refuse(w, r, err); unexpected != nil {
		s.log.Error().Err(unexpected).Str("path", r.URL.Path).Str("id", requestFrom(r.Context()).id).Msg("internal error")
	}
}

// serveResource answers a request for a resource that is served.
func (s *server) serveResource(w http.ResponseWriter, r *http.Request, res *resource) error {
	info := &requestFrom(r.Context()).info
	switch astray := res.namespaced && info.namespace == "" && namesObject(info) || !res.namespaced && info.namespace != "" && !ownsNamespace(info); {
	case res.goType == nil && (astray || res.namespaced && info.namespace == "" && info.verb != "list" && info.verb != "watch"):
		http.NotFound(w, r)
		return nil
	case astray:
		return errNoSuchResource()
	}
	if problems := path.IsValidPathSegmentName(info.name); len(problems) > 0 && namesObject(info) {
		return apierrors.NewBadRequest(fmt.Sprintf("Name parameter invalid: %q: %s", info.name, strings.Join(problems, ";")))
	}
	if err := s.noteDeprecation(r, res); err != nil {
		return err
	}
	if r.Method == http.MethodHead {
		return errMethodNotAllowed()
	}
	if info.subresource != "" {
		return s.serveSubresource(w, r, res)
	}
	if res.namespaced && info.namespace == "" && info.verb == "create" && !res.virtual || !res.allows(info.verb) || misplaced(info) {
		return errMethodNotAllowed()
	}
	if res.virtual && info.verb != "create" {
		return s.rd.virtual(w, r, res)
	}
	switch info.verb {
	case "get":
		return s.rd.get(w, r, res)
	case "list":
		return s.rd.list(w, r, res)
	case "watch":
		return serveWatch(s.rd, w, r, res, s.watchHooks(r.Context()))
	case "create":
		return s.wr.create(w, r, res)
	case "update":
		return s.wr.update(w, r, res)
	case "patch":
		return s.wr.patch(w, r, res)
	case "delete":
		return s.wr.remove(w, r, res)
	case "deletecollection":
		return s.wr.removeAll(w, r, res)
	}
	return errMethodNotAllowed()
}

// watchHooks connect a watch with flow control and the metrics.
func (s *server) watchHooks(ctx context.Context) watchHooks {
	rec := requestFrom(ctx)
	labels := s.books.watchLabels(&rec.info)
	return watchHooks{
		begun:  func() { watchBegun(ctx) },
		listed: func() { s.metrics.watchListDone(labels, time.Since(rec.received)) },
		sent:   s.metrics.longRunning(labels).sent,
	}
}

// namesObject says that the path goes down to one object. (A list has a name, too, when its field selector gives one.)
func namesObject(info *requestInfo) bool {
	switch info.verb {
	case "list", "watch", "create", "deletecollection":
		return info.subresource != ""
	}
	return info.name != ""
}

// misplaced says that an object is to be created under a path that names one already, or changed where none is named.
func misplaced(info *requestInfo) bool {
	switch info.verb {
	case "create":
		return info.name != ""
	case "update", "patch":
		return info.name == ""
	}
	return false
}

// ownsNamespace says that the request is for a Namespace object, which lies in the namespace that it is.
func ownsNamespace(info *requestInfo) bool { return info.group == "" && info.resource == "namespaces" }

// serveSubresource answers a request for a part of an object.
func (s *server) serveSubresource(w http.ResponseWriter, r *http.Request, res *resource) error {
	info := &requestFrom(r.Context()).info
	sub := res.subresource(info.subresource)
	switch {
	case sub == nil && res.goType == nil:
		return apierrors.NewNotFound(res.groupResource(), info.name)
	case sub == nil:
		return errNoSuchResource()
	case !slices.Contains(sub.verbs, info.verb) && res.goType == nil:
		return apierrors.NewMethodNotSupported(res.groupResource(), info.verb)
	case !slices.Contains(sub.verbs, info.verb):
		return errMethodNotAllowed()
	}
	switch info.subresource {
	case "log", "exec", "attach", "portforward", "proxy":
		return noPodsRun(s.st, res, info)
	case "scale":
		return serveScale(s.wr, w, r, res)
	case "binding":
		return bind(s.wr, w, r, res)
	case "eviction":
		return evict(s.wr, w, r, res)
	case "token":
		return issueToken(s.wr, w, r, res)
	}
	switch info.verb {
	case "get":
		return s.rd.get(w, r, res)
	case "update":
		return s.wr.update(w, r, res)
	case "patch":
		return s.wr.patch(w, r, res)
	}
	return errMethodNotAllowed()
}

// noteDeprecation warns whoever uses a deprecated version, and remembers who did.
func (s *server) noteDeprecation(r *http.Request, res *resource) error {
	if res.deprecation == nil || !deprecatedIn(res.deprecation, serverVersion("1", minorVersion)) {
		return nil
	}
	rec := requestFrom(r.Context())
	release := removedRelease(res.deprecation)
	text := deprecationWarning(res.group, res.version, res.kind, res.deprecation)
	if res.custom != nil {
		text = res.custom.deprecation
	}
	addWarning(r.Context(), text)
	s.metrics.deprecatedUse(s.books.labels(r, rec), release)
	rec.annotate("k8s.io/deprecated", "true")
	if release != "" {
		rec.annotate("k8s.io/removed-release", release)
	}
	s.usage.record(deprecatedUse{User: rec.user.name, Agent: r.UserAgent(), Verb: rec.info.verb, Group: res.group, Version: res.version,
		Resource: res.plural, Subresource: rec.info.subresource, Removed: release, UseInstead: replacementOf(res.deprecation)}, time.Now())
	if s.cfg.denyDeprecated {
		return denyDeprecated(res.group, res.plural, rec.info.name, text)
	}
	return nil
}
