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
// This file puts the parts together, and serves until it is told to stop. What comes before is the command line: commands.go, flags.go.
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
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation/path"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/warning"

	"apilet/internal/admission"
	"apilet/internal/admission/quota"
	"apilet/internal/audit"
	"apilet/internal/auth"
	"apilet/internal/auth/certs"
	"apilet/internal/auth/rbac"
	"apilet/internal/auth/serviceaccount"
	"apilet/internal/bootstrap"
	"apilet/internal/crd"
	"apilet/internal/envtest"
	"apilet/internal/gc"
	"apilet/internal/registry"
	"apilet/internal/registry/allocator"
	"apilet/internal/request"
	"apilet/internal/response"
	"apilet/internal/scheme"
	"apilet/internal/scheme/discovery"
	"apilet/internal/store"
	"apilet/internal/unreadable"
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
	auth                                    auth.Config
	accounts                                serviceaccount.AccountConfig
	corsOrigins, authorization              string
	auditPath, jwksURI                      string
	denyDeprecated, managedFields, validate bool
	flowControl                             bool
	maxReadonly, maxMutating                int
	requestTimeout, minTimeout              time.Duration
	compactionInterval, eventTTL            time.Duration
	namespaceGrace                          time.Duration // no flag
	namespaceDefaults                       bool
	quota                                   int64
	serviceRange                            string
	continueKeys, featureGates              string
	logFormat                               string
	verbosity                               int
	chunking                                bool
	log                                     zerolog.Logger
}

func main() {
	os.Exit(commandAs(envtest.ProgramName(os.Args[0]), os.Args[1:], os.Stdout, os.Stderr))
}

// serve runs the server until SIGTERM or SIGINT.
func (c *config) serve(stderr io.Writer) error {
	defer outliveHangups()()
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
	if len(c.accounts.Issuers) == 0 {
		c.accounts.Issuers = []string{serviceaccount.DefaultIssuer}
	}
	if c.corsOrigins != "" {
		c.auth.CORSOrigins = strings.Split(c.corsOrigins, ",")
	}
	switch c.authorization {
	case "":
		c.auth.AlwaysAllow = c.auth.Insecure
	case "RBAC", "AlwaysAllow":
		c.auth.AlwaysAllow = c.authorization == "AlwaysAllow"
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
	c.auth.Log = c.log
	return c.auth.CheckListen(c.listen)
}

// finishTLS decides between plain HTTP and TLS, and with whose certificate. An authenticator, an address that others can reach, and
// --cert-dir each ask for TLS. A certificate of the server's own making comes with an authority, whose client certificates authenticate.
func (c *config) finishTLS() error {
	if (c.tlsCert == "") != (c.tlsKey == "") {
		return errors.New("--tls-cert-file and --tls-private-key-file belong together")
	}
	authenticator := c.auth.TokenFile != "" || c.auth.ClientCAFile != ""
	c.ownCerts = c.tlsCert == "" && (authenticator || c.certDir != "" || !auth.StaysHere(c.listen))
	c.auth.Insecure = !authenticator && !c.ownCerts
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
	st        *store.Store
	upkeep    *store.Maintenance
	reg       *scheme.Registry
	rd        *reads
	wr        *registry.Writer
	settler   *bootstrap.NamespaceReconciler // nil without --namespace-defaults
	types     *crd.Definitions
	registrar *bootstrap.APIServiceReconciler
	auth      *auth.Authenticator
	certs     *certs.CertFolder // nil without TLS, or with --tls-cert-file
	metrics   *metrics
	usage     *deprecationTracker
	audit     *audit.Log                // nil without --audit-log-path
	fc        *flowControl              // nil without flow control
	flows     *bootstrap.FlowReconciler // its configuration's
	damage    atomic.Pointer[[]string]  // what the last scrub found
	lost      *unreadable.Unreadables
	troubles  *troubles
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
	s := &server{cfg: c, log: c.log, reg: scheme.NewRegistry(), metrics: newMetrics(), usage: newDeprecationTracker(), troubles: newTroubles(c.log),
		stopping: make(chan struct{}), workers: make(chan struct{}), failed: make(chan error, 1)}
	if err := ownKubeconfig(c.kubeconfig); err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", c.listen) // before any file is made: a port in use leaves none behind
	if err != nil {
		return nil, explainListen(c.listen, err)
	}
	if err := s.open(listener); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return s, nil
}

// explainListen says what to do about a port that cannot be had.
func explainListen(address string, err error) error {
	advice := "name an address of this machine"
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		advice = "stop the program that has it, or choose another port (0 picks a free one)"
	case errors.Is(err, syscall.EACCES):
		advice = "ports below 1024 are for privileged programs: choose another"
	}
	return fmt.Errorf("--listen %s: %w: %s", address, err, advice)
}

// open opens all files, then the server on a listener, which stays the caller's when there is an error.
func (s *server) open(listener net.Listener) error {
	c := s.cfg
	var err error
	if err = s.openCerts(); err != nil {
		return fmt.Errorf("--cert-dir: %w", err)
	}
	if s.auth, err = auth.New(c.auth); err != nil {
		return err
	}
	if c.auditPath != "" {
		if s.audit, err = audit.Open(c.auditPath, s.auditHooks()); err != nil {
			return fmt.Errorf("--audit-log-path: %w", err)
		}
	}
	if s.st, err = store.Open(c.data, store.Options{Ephemeral: c.ephemeral, Quota: c.quota,
		Outcome: s.troubles.tellWriting,
		Warn:    func(text string) { s.log.Warn().Msg(text) },
		Damaged: func(place string) { s.log.Error().Str("place", place).Msg("the data file is damaged") },
	}); err != nil {
		return err
	}
	removeLeftovers(s.st.Path)
	if err := s.rehearse(); err != nil {
		return errors.Join(err, s.st.Close())
	}
	s.guardSecrets()
	if err := s.start(listener); err != nil {
		return errors.Join(err, s.st.Close())
	}
	return nil
}

// rehearse reads what the start cannot do without. The start writes, too (what every server has, keys), and a file that will be refused
// has to stay as it is: so this comes before all of it.
func (s *server) rehearse() error {
	if _, err := store.NewMaintenance(s.st); err != nil {
		return err
	}
	needed := []string{"/" + apiextensions.GroupName + "/customresourcedefinitions/"}
	if s.cfg.flowControl {
		needed = append(needed, "/"+flowcontrolv1.GroupName+"/flowschemas/", "/"+flowcontrolv1.GroupName+"/prioritylevelconfigurations/")
	}
	if s.auth.Enforcing() {
		for _, plural := range []string{"roles", "rolebindings", "clusterroles", "clusterrolebindings"} {
			needed = append(needed, "/"+rbacv1.GroupName+"/"+plural+"/")
		}
	}
	for _, prefix := range needed {
		if err := s.st.Readable(prefix); err != nil {
			return fmt.Errorf("the start needs all that lies under %s: %w", prefix, err)
		}
	}
	return nil
}

// guardSecrets sees to who may read the files with secrets; certs.go does for those that it makes.
func (s *server) guardSecrets() {
	if !s.cfg.ephemeral {
		if _, err := certs.Hide(s.log, s.st.Path); err != nil {
			s.log.Error().Err(err).Msg("the data file is not for the server alone")
		}
	}
	certs.TellExposed(s.log, append([]string{s.cfg.auth.TokenFile, s.cfg.tlsKey, s.cfg.continueKeys, s.cfg.accounts.SigningKeyFile}, s.cfg.accounts.KeyFiles...)...)
}

func (s *server) start(listener net.Listener) error {
	if err := clearKubeconfig(s.cfg.kubeconfig); err != nil {
		return err
	}
	if err := s.assemble(); err != nil {
		return err
	}
	if err := s.populate(context.Background()); err != nil {
		return err
	}
	secured, err := s.secure(listener)
	if err != nil {
		return err
	}
	if err := (bootstrap.Initializer{Writer: s.wr, Types: s.reg}).Cluster(context.Background(), s.wr.Allocator.Block, listener.Addr().(*net.TCPAddr).AddrPort()); err != nil {
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
		ErrorLog:          stdlog.New(s.metrics.countHandshakeErrors(levelWriter{s.log}), "", 0),
	}
	if s.cfg.kubeconfig != "" {
		if err := s.writeKubeconfig(); err != nil {
			return err
		}
	}
	s.startWorkers()
	go s.accept(listener)
	s.log.Info().Str("url", s.url).Str("data", s.st.Path).Int64("revision", s.st.Revision()).Msg("serving")
	return nil
}

// assemble makes the parts that work on the store, and puts them together.
func (s *server) assemble() error {
	var err error
	if s.upkeep, err = store.NewMaintenance(s.st); err != nil {
		return err
	}
	s.cfg.accounts.RootCA = s.cfg.auth.OwnCA
	if s.auth.Accounts, err = serviceaccount.NewAccountTokens(s.st, s.cfg.accounts); err != nil {
		return err
	}
	keys, err := s.continueKeys()
	if err != nil {
		return err
	}
	s.lost = unreadable.NewUnreadables(s.st, s.log)
	s.rd = &reads{st: s.st, lost: s.lost, tokens: newTokenCodec(keys), chunking: s.cfg.chunking, minTimeout: s.cfg.minTimeout,
		bookmarks: bookmarkEvery, patience: s.cfg.requestTimeout, shuttingDown: s.stopping, turns: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2))}
	alloc, err := allocator.New(s.st, s.cfg.serviceRange)
	if err != nil {
		return err
	}
	s.wr = &registry.Writer{Store: s.st, Types: s.reg, Auth: s.auth, Allocator: alloc, Unreadable: s.lost, Validating: s.cfg.validate, ManagedFields: s.cfg.managedFields}
	s.wr.Webhooks = s.webhooks()
	if s.wr.Quotas, err = quota.New(s.st, s.reg); err != nil {
		return err
	}
	s.books = &bookkeeper{reg: s.reg, metrics: s.metrics, audit: s.audit, log: s.log, verbosity: s.cfg.verbosity, timeout: s.cfg.requestTimeout}
	s.metrics.watchStore(s.storeStats)
	s.metrics.buildInfo(map[string]string{"major": "1", "minor": minorVersion, "git_version": gitVersion, "go_version": runtime.Version(),
		"platform": runtime.GOOS + "/" + runtime.GOARCH})
	s.types = crd.NewDefinitions(s.st, s.reg, s.wr, s.log)
	return nil
}

// populate brings what is stored into force (definitions, flow control, roles) and adds what every server has.
func (s *server) populate(ctx context.Context) error {
	if err := errors.Join(bootstrap.Initializer{Writer: s.wr, Types: s.reg}.Namespaces(ctx), s.types.Sync(ctx)); err != nil {
		return err
	}
	if s.cfg.namespaceDefaults {
		s.settler = bootstrap.NewNamespaceReconciler(s.st, s.reg, s.wr, s.cfg.auth.OwnCA, s.log)
		if err := s.settler.ReconcileAll(ctx, bootstrap.FirstNamespaces); err != nil {
			return err
		}
		s.wr.NamespaceCreated = s.settler.NamespaceCreated
	}
	if s.cfg.flowControl {
		s.fc = newFlowControl(s.cfg.maxReadonly+s.cfg.maxMutating, s.cfg.requestTimeout, s.stored)
		s.flows = bootstrap.NewFlowReconciler(s.st, s.reg, s.wr, s.fc.configure)
		s.metrics.registry.MustRegister(s.fc.dispatcher)
		if err := s.flows.Start(ctx); err != nil {
			return err
		}
	}
	s.registrar = bootstrap.NewAPIServiceReconciler(s.st, s.reg, s.wr)
	if err := s.registrar.Reconcile(ctx, true); err != nil {
		return err
	}
	if s.auth.Enforcing() {
		policy := bootstrap.NewPolicyReconciler(s.st, s.reg, s.wr, s.auth, func(err error) { s.log.Error().Err(err).Msg("reading the policy") })
		if err := policy.Reconcile(ctx); err != nil {
			return err
		}
		s.wr.Policy = policy.Committed
	}
	return nil
}

// webhooks reads the configured webhooks.
func (s *server) webhooks() *admission.Webhooks {
	h := &admission.Webhooks{Store: s.st, Types: s.reg, Services: &admission.ServiceResolver{Store: s.st, Types: s.reg}, Called: s.metrics.webhookCalled, Log: s.log,
		May: s.auth.Decide, Defaults: registry.FillDefaults, Unreadable: s.lost, Stands: s.troubles.tell}
	h.Reload()
	return h
}

// startWorkers runs what goes on beside requests: compaction, and the collector. stop ends it.
func (s *server) startWorkers() {
	ctx, cancel := context.WithCancel(context.Background())
	s.idle = cancel
	gc := &gc.Collector{Store: s.st, Maintenance: s.upkeep, Types: s.reg, Writer: s.wr, EventTTL: s.cfg.eventTTL, Grace: s.cfg.namespaceGrace, Log: s.log}
	var running sync.WaitGroup
	running.Go(func() { gc.Run(ctx) })
	if s.settler != nil {
		running.Go(func() {
			gc.KeepUp(ctx, "settling namespaces", func(ctx context.Context) error { return s.settler.Run(ctx, gc) })
		})
	}
	running.Go(func() { s.types.Run(ctx) })
	running.Go(func() {
		s.wr.WriteQuotas(ctx, func(err error) { s.log.Error().Err(err).Msg("writing what is used into the status of ResourceQuotas") })
	})
	running.Go(func() {
		s.registrar.Run(ctx, func(err error) { s.log.Error().Err(err).Msg("keeping the APIServices of custom resources") })
	})
	running.Go(func() { s.scrub(ctx) })
	running.Go(func() {
		if err := s.lost.Survey(ctx, unreadable.JudgeOf(s.reg)); err != nil && ctx.Err() == nil {
			s.log.Error().Err(err).Msg("looking for objects that cannot be read")
		}
	})
	if s.audit != nil {
		running.Go(func() { s.reopenAudit(ctx) })
	}
	if s.certs != nil {
		running.Go(func() { s.renewCerts(ctx) })
	}
	running.Go(func() {
		s.upkeep.Run(ctx, s.cfg.compactionInterval, func(_ store.Compaction, err error) { s.afterCompaction(ctx, gc, err) })
	})
	if s.flows != nil {
		running.Go(func() { s.fc.run(ctx) })
		running.Go(func() {
			s.flows.Run(ctx, s.flows.Apply, func(err error) { s.log.Error().Err(err).Msg("reading flow schemas and priority levels") })
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
		report, err := s.upkeep.Scrub(ctx)
		if err != nil {
			report.Problem("%v", err)
		}
		if ctx.Err() != nil {
			return
		}
		if len(report.Problems) == 0 {
			s.st.Found.Forget()
		}
		for _, problem := range report.Problems {
			s.log.Error().Str("problem", problem).Msg("the data file is damaged")
		}
		s.damage.Store(&report.Problems)
	}
}

// intact is the health check that shows what the scrub found.
func (s *server) intact() error {
	if problems := s.damage.Load(); problems != nil && len(*problems) > 0 {
		return errors.New((*problems)[0])
	}
	return nil
}

// whole is the health check that shows what reads and writes have found since.
func (s *server) whole() error {
	if place := s.st.Found.First(); place != "" {
		return fmt.Errorf("%s: %w", s.st.Path, &store.Damage{Place: place})
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
		err := s.certs.Renew()
		if err == nil && s.cfg.kubeconfig != "" && time.Now().Add(certs.RenewBefore).After(s.adminEnds) {
			err = s.writeKubeconfig()
		}
		if err != nil {
			s.log.Error().Err(err).Msg("renewing certificates")
		}
	}
}

// auditHooks count audit events, and tell the log when they cannot be written.
func (s *server) auditHooks() audit.Hooks {
	return audit.Hooks{
		Written: func(n int) { s.metrics.auditEvents.Add(float64(n)) },
		Dropped: func(n int) { s.metrics.auditErrors.Add(float64(n)) },
		Failing: func(err error) {
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
			if err := s.audit.Reopen(); err != nil {
				s.log.Error().Err(err).Msg("reopening the audit log")
			}
		}
	}
}

// afterCompaction reports a round of compaction and lets old Events go, in the same rhythm.
func (s *server) afterCompaction(ctx context.Context, gc *gc.Collector, err error) {
	if err == nil {
		err = gc.ExpireEvents(ctx)
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
	serviceIP, err := allocator.FirstServiceIP(s.cfg.serviceRange)
	if err != nil {
		return err
	}
	s.certs, err = certs.OpenCertFolder(s.cfg.certDir, func() []string { return certs.OwnHosts(host, serviceIP) }, s.log)
	if err == nil {
		s.cfg.auth.OwnCA = s.certs.Authority.CertPEM
	}
	return err
}

// secure says under which URL the listener is reached, and returns the TLS configuration if there is one.
func (s *server) secure(listener net.Listener) (*tls.Config, error) {
	addr := listener.Addr().(*net.TCPAddr)
	host := addr.String()
	if addr.IP.IsUnspecified() { // listens on all addresses, but it is none
		host = net.JoinHostPort("127.0.0.1", strconv.Itoa(addr.Port))
	}
	s.url = "http://" + host
	var certificate func() *tls.Certificate
	switch {
	case s.certs != nil:
		certificate = s.certs.Serving.Load
	case s.cfg.tlsCert != "":
		pair, err := certs.FollowPair(s.log, s.cfg.tlsCert, s.cfg.tlsKey)
		if err != nil {
			return nil, fmt.Errorf("--tls-cert-file: %w", err)
		}
		certificate = pair.Now
	default:
		return nil, nil
	}
	s.url = "https://" + host
	if s.auth.ClientCAs == nil {
		return certs.TLSConfig(certificate, nil), nil
	}
	return certs.TLSConfig(certificate, s.auth.ClientCAs.Now), nil
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
	s.wr.Webhooks.Close()
	err = errors.Join(err, s.st.Close())
	if s.audit != nil {
		err = errors.Join(err, s.audit.Close())
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
		key, err := s.st.Secret("continue-key", func() []byte {
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

// ---- The chain and the routes ----

// handler is the way of every request: what is done for all of them, from the outside in, then the route.
func (s *server) handler() http.Handler {
	return s.books.record(s.books.deadline(s.auth.Authenticate(s.auth.Impersonate(s.shareOut(s.routes())))))
}

// shareOut gives requests their seats: by flow control, or by counting alone when that is switched off.
func (s *server) shareOut(next http.Handler) http.Handler {
	if s.flows == nil {
		return maxInFlight(s.cfg.maxReadonly, s.cfg.maxMutating, next)
	}
	return s.fc.middleware(next)
}

// routes lists everything that is served.
func (s *server) routes() http.Handler {
	r := chi.NewRouter()
	ready := []healthCheck{pingCheck, shutdownCheck(s.stopping), {"store", s.st.Writable}, {"damage", s.whole}, {"scrub", s.intact}, {"unreadable", s.lost.Check}}
	alive := []healthCheck{pingCheck}
	for name, checks := range map[string][]healthCheck{"livez": alive, "healthz": alive, "readyz": ready} {
		endpoint := &healthEndpoint{name: name, checks: checks, shows: s.maySee}
		r.Handle("/"+name, s.guarded(endpoint.ServeHTTP))
		r.Handle("/"+name+"/*", s.guarded(endpoint.ServeHTTP))
	}
	r.Handle("/version", s.guarded(s.serveVersion))
	r.Handle("/version/", s.guarded(s.serveVersion))
	if config, ok := s.auth.Accounts.OpenIDConfiguration(cmp.Or(s.cfg.jwksURI, s.url+"/openid/v1/jwks")); ok {
		r.Handle("/.well-known/openid-configuration", s.guarded(document("application/json", config)))
		r.Handle("/openid/v1/jwks", s.guarded(document("application/jwk-set+json", s.auth.Accounts.KeySet())))
	}
	r.Handle("/metrics", s.guarded(s.metrics.handler().ServeHTTP))
	r.Handle("/openapi/v2", s.guarded(s.serveSwagger))
	r.Handle("/openapi/v3", s.guarded(s.serveOpenAPI))
	r.Handle("/openapi/v3/*", s.guarded(s.serveOpenAPI))
	r.Handle("/debug/deprecations", s.guarded(s.usage.ServeHTTP))
	if s.flows != nil {
		for _, page := range []string{"dump_priority_levels", "dump_queues", "dump_requests"} {
			r.Handle("/debug/api_priority_and_fairness/"+page, s.guarded(s.fc.serveDump))
		}
	}
	r.Handle(rbac.PathBackup, s.guarded(s.serveBackup))
	r.Handle("/api", s.guarded(s.serveDiscovery))
	r.Handle("/apis", s.guarded(s.serveDiscovery))
	r.Handle("/api/*", s.guarded(s.serveAPI))
	r.Handle("/apis/*", s.guarded(s.serveAPI))
	r.Handle("/", s.guarded(indexPage(r, ready, alive, s.reg)))
	r.NotFound(s.guarded(http.NotFound))
	r.MethodNotAllowed(whateverMethod(r))
	return r
}

// document serves bytes that do not change while the server runs.
func document(contentType string, body []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			response.WriteError(w, r, response.ErrMethodNotAllowed())
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
		if err := s.auth.Authorize(request.From(r.Context())); err != nil {
			w.Header().Set("X-Content-Type-Options", "nosniff")
			s.fail(w, r, err)
			return
		}
		next(w, r)
	}
}

func (s *server) serveDiscovery(w http.ResponseWriter, r *http.Request) {
	discovery.ServeDiscovery(s.reg, w, r)
}
func (s *server) serveOpenAPI(w http.ResponseWriter, r *http.Request) {
	discovery.ServeOpenAPI(s.reg, w, r)
}
func (s *server) serveSwagger(w http.ResponseWriter, r *http.Request) {
	discovery.ServeSwagger(s.reg, w, r)
}

func (s *server) serveVersion(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet {
		response.WriteError(w, r, response.ErrMethodNotAllowed())
		return
	}
	body, _ := json.MarshalIndent(version.Info{Major: "1", Minor: minorVersion, EmulationMajor: "1", EmulationMinor: minorVersion,
		MinCompatibilityMajor: "1", MinCompatibilityMinor: "35", GitVersion: gitVersion, GitTreeState: "clean",
		GoVersion: runtime.Version(), Compiler: runtime.Compiler, Platform: runtime.GOOS + "/" + runtime.GOARCH}, "", "  ")
	response.WriteJSON(w, r, http.StatusOK, body)
}

// serveBackup streams a backup: made beside the data file first, so that a slow client holds up nothing but its own connection. It may
// take longer than --request-timeout, as long as the client is there and reads.
func (s *server) serveBackup(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet {
		s.fail(w, r, response.ErrMethodNotAllowed())
		return
	}
	parent, pattern := filepath.Split(backupFolders(s.st.Path))
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
	if err := s.upkeep.Backup(ctx, path, nil); err != nil {
		if store.IsDiskFull(err) {
			err = apierrors.NewInternalError(store.ErrDiskFull)
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
	for _, res := range s.reg.All() {
		if res.Group == group && res.Plural == resource {
			objects, bytes, _ = s.st.Count(res.KeyPrefix(namespace))
			return objects, bytes
		}
	}
	return -1, 0
}

// storeStats is what /metrics tells of the store.
func (s *server) storeStats() storeGauges {
	stats := s.st.Stats()
	gauges := storeGauges{revision: stats.Revision, compactRevision: stats.CompactRev, fileBytes: stats.FileBytes, freeBytes: stats.FreeBytes}
	gauges.commits, gauges.changes, gauges.commitSeconds, gauges.commitBuckets = stats.Commits, stats.Writes, stats.CommitSeconds, map[float64]uint64{}
	var sum int64
	for i, bound := range store.CommitBounds {
		sum += stats.CommitBuckets[i]
		gauges.commitBuckets[bound] = uint64(sum)
	}
	gauges.damaged = int64(s.st.Found.Count())
	gauges.unreadable = int64(s.lost.Count())
	if problems := s.damage.Load(); problems != nil {
		gauges.corrupt = int64(len(*problems))
	}
	seen := map[string]bool{}
	for _, res := range s.reg.All() {
		if res.Virtual || seen[res.KeyPrefix("")] {
			continue
		}
		seen[res.KeyPrefix("")] = true
		objects, bytes, _ := s.st.Count(res.KeyPrefix(""))
		gauges.objects = append(gauges.objects, objectStats{group: res.StorageGroup, resource: res.Plural, count: objects, bytes: bytes})
	}
	return gauges
}

// serveAPI answers everything below /api/ and /apis/.
func (s *server) serveAPI(w http.ResponseWriter, r *http.Request) {
	info := &request.From(r.Context()).Info
	if !info.ResourceRequest {
		s.serveDiscovery(w, r)
		return
	}
	if legacy := info.APIPrefix == "api"; legacy != (info.Group == "") { // /apis//v1/pods
		http.NotFound(w, r)
		return
	}
	res := s.reg.Lookup(info.Group, info.Version, info.Resource)
	if res == nil {
		discovery.ServeUnknown(s.reg, w, r, info.Group)
		return
	}
	err := s.serveResource(w, r, res)
	if errors.Is(err, response.ErrAborted) {
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
	if unexpected := response.Refuse(w, r, err); unexpected != nil {
		s.log.Error().Err(unexpected).Str("path", r.URL.Path).Str("id", request.From(r.Context()).ID).Msg("internal error")
	}
}

// serveResource answers a request for a resource that is served.
func (s *server) serveResource(w http.ResponseWriter, r *http.Request, res *scheme.Resource) error {
	info := &request.From(r.Context()).Info
	if res.GoType == nil && !hasPath(res, info) {
		http.NotFound(w, r)
		return nil
	}
	if err := routed(res, info, r.Method); err != nil {
		return err
	}
	if problems := path.IsValidPathSegmentName(info.Name); info.Form.Named && len(problems) > 0 {
		return apierrors.NewBadRequest(fmt.Sprintf("Name parameter invalid: %q: %s", info.Name, strings.Join(problems, ";")))
	}
	if err := s.noteDeprecation(r, res); err != nil {
		return err
	}
	if info.Subresource != "" {
		return s.serveSubresource(w, r, res)
	}
	if res.Virtual && info.Verb != "create" {
		return s.rd.virtual(w, r, res)
	}
	switch info.Verb {
	case "get":
		return s.rd.get(w, r, res)
	case "list":
		return s.rd.list(w, r, res)
	case "watch":
		defer s.books.watching(info)()
		return serveWatch(s.rd, w, r, res, s.watchHooks(r.Context()))
	case "create":
		if res.Group == "" && res.Kind == "Binding" {
			return registry.Bind(s.wr, w, r, res)
		}
		return s.wr.Create(w, r, res)
	case "update":
		return s.wr.Update(w, r, res)
	case "patch":
		return s.wr.Patch(w, r, res)
	case "delete":
		return s.wr.Remove(w, r, res)
	case "deletecollection":
		removeEach, err := s.wr.RemoveEach(w, r, res)
		if err != nil {
			return err
		}
		return s.rd.listAnd(w, r, res, removeEach)
	}
	return response.ErrMethodNotAllowed()
}

// watchHooks connect a watch with flow control and the metrics.
func (s *server) watchHooks(ctx context.Context) watchHooks {
	rec := request.From(ctx)
	labels := s.books.watchLabels(&rec.Info)
	return watchHooks{
		begun:  func() { watchBegun(ctx) },
		listed: func() { s.metrics.watchListDone(labels, time.Since(rec.Received)) },
		sent:   s.metrics.longRunning(labels).sent,
	}
}

// serveSubresource answers a request for a part of an object.
func (s *server) serveSubresource(w http.ResponseWriter, r *http.Request, res *scheme.Resource) error {
	info := &request.From(r.Context()).Info
	sub := res.Subresource(info.Subresource)
	switch {
	case !slices.Contains(sub.Verbs, info.Verb) && res.GoType == nil:
		return apierrors.NewMethodNotSupported(res.GroupResource(), info.Verb)
	case !slices.Contains(sub.Verbs, info.Verb):
		return response.ErrMethodNotAllowed()
	}
	switch info.Subresource {
	case "log", "exec", "attach", "portforward", "proxy":
		return registry.NoPodsRun(s.st, res, info, r.URL.Query())
	case "scale":
		return registry.ServeScale(s.wr, w, r, res)
	case "binding":
		return registry.Bind(s.wr, w, r, res)
	case "eviction":
		return registry.Evict(s.wr, w, r, res)
	case "token":
		return registry.IssueToken(s.wr, w, r, res)
	}
	switch info.Verb {
	case "get":
		return s.rd.get(w, r, res)
	case "update":
		return s.wr.Update(w, r, res)
	case "patch":
		return s.wr.Patch(w, r, res)
	}
	return response.ErrMethodNotAllowed()
}

// noteDeprecation warns whoever uses a deprecated version, and remembers who did.
func (s *server) noteDeprecation(r *http.Request, res *scheme.Resource) error {
	if res.Deprecation == nil || !deprecatedIn(res.Deprecation, serverVersion("1", minorVersion)) {
		return nil
	}
	rec := request.From(r.Context())
	release := removedRelease(res.Deprecation)
	text := deprecationWarning(res.Group, res.Version, res.Kind, res.Deprecation)
	if res.Custom != nil {
		text = res.Custom.Deprecation
	}
	warning.AddWarning(r.Context(), "", text)
	rec.Annotate("k8s.io/deprecated", "true")
	if release != "" {
		rec.Annotate("k8s.io/removed-release", release)
	}
	labels := s.books.labels(r, rec)
	s.usage.record(deprecatedUse{User: rec.User.Name, Agent: r.UserAgent(), Verb: rec.Info.Verb, Group: res.Group, Version: res.Version,
		Resource: res.Plural, Subresource: labels.subresource, Removed: release, UseInstead: replacementOf(res.Deprecation)}, time.Now())
	s.metrics.deprecatedUse(labels, release)
	if s.cfg.denyDeprecated {
		return denyDeprecated(res.Group, res.Plural, rec.Info.Name, text)
	}
	return nil
}
