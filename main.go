// Apilet is a Kubernetes-compatible API server in one program with one bbolt file. It needs no etcd
// and no cluster. Unmodified kubectl, client-go and controller-runtime work with it. A request
// passes the parts below in this order. Names without .go are packages under internal/.
//
//	         ┌───────────────────────────── an api ──────────────────────────────┐
//	request ─▶ record · warn.go · deadline ──▶ auth ──▶ apf.go, flowcontrol ──▶ route │
//	         └──────────────────────────────────────────────────────────────┬────┘
//	                         ┌──────────────────────────────────────────────┤
//	                         ▼ reads                                        ▼ writes
//	                  list.go, watch.go        registry ──▶ patch, fieldmanager, defaults, strategy, admission, validation
//	                         │                                    │
//	                         └──────────▶ store ◀─────────────────┘ ◀── gc, which collects garbage after deletes
//
// This file implements the life cycle of a server. The first half starts the server, runs its
// background work and health checks, and stops it. The second half defines the api type, which
// handles requests and does not depend on the life cycle. The api contains the handler chain, the
// route table and the handlers at its ends. The command line comes last.
//
//	record ──▶ deadline ──▶ Authenticate ──▶ Impersonate ──▶ seated ──▶ throughTime ──▶ routes ──▶ serveAPI ──▶ serveResource
//
// Two types handle requests. A readAPI (list.go) serves reads of types, objects and lists at a
// single revision. An api serves the present. It adds a writer, watches and pages about the server.
// For a request about the past (/at/MOMENT/...) the api creates a readAPI.
//
// Invariant: every route checks authorization. Most handlers are wrapped in withAuthorization.
// serveAPI authorizes the request itself. The other handlers authorize each object that they
// return.
package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	stdlog "log"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"
	"github.com/rs/zerolog"

	"apilet/internal/admission"
	"apilet/internal/admission/plugins"
	"apilet/internal/admission/quota"
	"apilet/internal/aggregation"
	"apilet/internal/allocator"
	"apilet/internal/apierror"
	"apilet/internal/audit"
	"apilet/internal/auth"
	"apilet/internal/auth/bootstraptoken"
	"apilet/internal/auth/certs"
	"apilet/internal/auth/node"
	"apilet/internal/auth/serviceaccount"
	"apilet/internal/bootstrap"
	"apilet/internal/cel/policy"
	"apilet/internal/clock"
	"apilet/internal/commandline"
	"apilet/internal/corrupt"
	"apilet/internal/crd"
	"apilet/internal/dashboard"
	"apilet/internal/datafile"
	"apilet/internal/datafile/datacmd"
	"apilet/internal/deprecations"
	"apilet/internal/discovery"
	"apilet/internal/drain"
	"apilet/internal/envtest"
	"apilet/internal/findings"
	"apilet/internal/gc"
	"apilet/internal/health"
	"apilet/internal/history"
	"apilet/internal/history/logcmd"
	"apilet/internal/kubeconfig"
	"apilet/internal/kubelet"
	"apilet/internal/limits"
	"apilet/internal/logonce"
	"apilet/internal/nodebootstrap"
	"apilet/internal/notify"
	"apilet/internal/options"
	"apilet/internal/proxy"
	"apilet/internal/registry"
	"apilet/internal/request"
	"apilet/internal/response"
	"apilet/internal/routing"
	"apilet/internal/scheme"
	"apilet/internal/scheme/internalversion"
	"apilet/internal/serving"
	"apilet/internal/startgc"
	"apilet/internal/store"
	"apilet/internal/torture"
	"apilet/internal/webhook"
)

const (
	bookmarkEvery = time.Minute
	// stoppingGrace limits the wait for running requests at shutdown. Background work has a fifth
	// of it.
	stoppingGrace = 20 * time.Second
	// closingGrace limits the wait for the files and etcd after that.
	closingGrace = 4 * time.Second
	// stopWithin limits the whole shutdown after --shutdown-delay-duration. It is the default grace
	// period of a Pod.
	stopWithin = 30 * time.Second
)

// gitVersion is the version that /version reports.
const gitVersion = scheme.KubernetesVersion + "+apilet"

// config contains the flags of a server and a few settings that have no flag.
type config struct {
	options.Options
	namespaceGrace time.Duration
	grace          time.Duration    // stoppingGrace, except in tests
	starting       context.Context  // canceling it aborts the start; nil means context.Background
	clock          func() time.Time // replaces the machine's clock; nil means time.Now
	log            zerolog.Logger
	manager        health.ServiceManager // receives readiness, reload and stop notifications
}

func main() {
	if len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-") {
		startgc.Resume() // Commands other than serve run with the usual garbage collection.
	}
	// The pool needs one system call for sixteen IDs. IDs have to be unique, but are not secrets.
	uuid.EnableRandPool()
	os.Exit(commandAs(os.Args[0], os.Args[1:], os.Stdout, os.Stderr))
}

// serve runs the server until SIGTERM or SIGINT. A second signal ends the process immediately.
func (c *config) serve(stderr io.Writer) error {
	defer outliveHangups()()
	c.log = newLogger(stderr, c.LogFormat)
	defer limitOtherLogs(c.log)()
	stop, forget := drain.SignalContext(stopWithin+c.ShutdownDelay, func(why string) {
		c.log.Error().Msg(why + ": exiting now, without waiting for unfinished requests. Every write that was acknowledged is kept")
		os.Exit(1)
	}, syscall.SIGTERM, syscall.SIGINT)
	defer forget()
	c.starting = stop
	c.manager = health.FindServiceManager(os.Getenv)
	context.AfterFunc(stop, func() { c.toldManager(c.manager.NotifyStopping()) })
	var serving atomic.Pointer[server] // nil while a server starts or stops
	watched, unwatch := context.WithCancel(context.Background())
	defer unwatch()
	go c.manager.RunWatchdog(watched, func(ctx context.Context) error { return serving.Load().alive(ctx) }, func(err error) {
		c.log.Error().Err(err).Msg("the liveness check of the server itself failed; not notifying the systemd watchdog")
	})
	for again := false; ; {
		own := *c // startServer completes this copy
		s, err := startServer(&own)
		if !again && replicaFailed(&c.Options, err) {
			c.log.Error().Err(err).Msg("cannot start with this replica of etcd; retrying with a new one")
			again = true
			continue
		}
		if err != nil && stop.Err() != nil {
			c.log.Warn().Err(err).Msg("the server was stopped before it was ready")
			return nil
		}
		if err != nil {
			return err
		}
		again = false
		serving.Store(s)
		go startgc.Collect()
		select {
		case <-stop.Done():
			c.log.Info().Stringer("shutdown-delay-duration", c.ShutdownDelay).Msg("stopping")
			s.sendAway(c.ShutdownDelay)
		case err = <-s.failed:
		case why := <-s.storage.cluster.Lost():
			c.log.Error().Err(why).Msg("the replica of etcd is lost; restarting the server within this process")
			serving.Store(nil)
			c.Listen = s.entrance.listening // keep the port that the system has assigned
			if err := s.stop(); err != nil && !errors.Is(err, store.ErrDamaged) {
				return err
			}
			continue
		}
		return errors.Join(err, s.stop())
	}
}

// toldManager logs an error from notifying the service manager.
func (c *config) toldManager(err error) {
	if err != nil {
		c.log.Warn().Err(err).Msg("cannot notify systemd")
	}
}

func newLogger(out io.Writer, format string) zerolog.Logger {
	if format != "json" {
		file, ok := out.(*os.File)
		terminal := ok && isTerminal(file)
		out = zerolog.ConsoleWriter{Out: out, TimeFormat: time.RFC3339, NoColor: !terminal}
	}
	return zerolog.New(out).With().Timestamp().Logger()
}

func newConsole(out io.Writer) zerolog.Logger { return newLogger(out, "console") }

func isTerminal(file *os.File) bool {
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// ---- The server ----

// A server is a running apilet. It owns the start, the background work and the shutdown. Its api
// handles requests.
type server struct {
	cfg      *config
	log      zerolog.Logger
	clock    *clock.Clock
	troubles *logonce.Log
	metrics  *metrics
	audit    *audit.Log // nil if neither audit flag is set
	storage  *storage
	auth     *auth.Authenticator
	api      *api
	entrance entrance
	beside   beside
	leave    departure
	idle     context.CancelFunc // cancels the background work
	work     drain.Work         // the background work
	failed   chan error         // receives an error if the server ends unexpectedly
}

// An entrance holds the listener, the certificates and the HTTP server.
type entrance struct {
	endpoint  serving.Endpoint
	listener  net.Listener
	listening string // the address, with the assigned port
	url       string
	secured   *tls.Config // nil means plain HTTP
	http      *http.Server
	resting   drain.Conns
	probe     health.Probe  // checks this server over its own port
	clockSet  chan struct{} // has a token if the machine's clock was set, so that certificates are checked
}

// at returns the address of the listener.
func (e *entrance) at() netip.AddrPort { return e.listener.Addr().(*net.TCPAddr).AddrPort() }

// beside holds the components that run in the background.
type beside struct {
	webhooks    *admission.Webhooks
	policies    *policy.Policies
	definitions *crd.Definitions
	proxy       certs.ProxyClientCertificate // the client certificate for other servers
	apiServices *bootstrap.APIServiceReconciler
	namespaces  *bootstrap.NamespaceReconciler // nil without --namespace-defaults or --controllers
	flows       *bootstrap.FlowReconciler      // reloads the configuration of flow control; nil without flow control
	endpoints   *bootstrap.Endpoints
	founded     error // the error of creating the default objects, if any
}

// A departure announces the shutdown of a server.
type departure struct {
	// leaving is closed when the shutdown begins. From then on /readyz fails.
	leaving  chan struct{}
	once     sync.Once     // closes leaving
	stopping chan struct{} // closed when the server stops serving; watches end then
}

// phases are called in this order. The first error ends the start. The last column shows which
// parts of the data file a phase requires. The packages that own these parts return an error if
// they cannot read them. preflight calls these packages before anything is written, so that a
// rejected file is not changed. No phase requires an object: unreadable objects are logged and
// omitted until they are repaired.
var phases = []func(*server, context.Context) error{
	//                    WHAT                                                                      NEEDS OF THE FILE
	(*server).listen,    // bind the port before creating any file
	(*server).reach,     // connect to etcd, read certificates and users, open the audit log
	(*server).open,      // open the data file, or the replica of etcd                                its meta pages, format, lineage
	(*server).preflight, // read the required parts of the file, and restrict its permissions         maintenance's marks, the accounts' key
	(*server).assemble,  // create the reader, the writer and the api
	(*server).admit,     // build the chain of admission plug-ins
	(*server).observe,   // register the collectors of metrics
	(*server).populate,  // load the stored configuration and create the required objects
	(*server).secure,    // set up TLS on the listener
	(*server).found,     // create the default Services, endpoints and CA bundles
	(*server).serve,     // start to handle requests, and start the background work
}

// startServer runs the phases of a start. It returns a server that serves in the background. The
// caller must stop the server.
func startServer(c *config) (*server, error) {
	if err := c.Finish(); err != nil {
		return nil, err
	}
	if err := c.SetFeatureGates(); err != nil {
		return nil, err
	}
	go internalversion.Register() // runs during the first phases; the first write needs it
	if c.starting == nil {
		c.starting = context.Background()
	}
	if err := kubeconfig.CheckOwnership(c.Kubeconfig); err != nil {
		return nil, err
	}
	rows, err := scheme.Served(c.RuntimeConfig)
	if err != nil {
		return nil, fmt.Errorf("--runtime-config: %w", err)
	}
	if len(c.EmulatedVersion) > 0 {
		rows, err = scheme.ServedBy(int(scheme.EffectiveVersion().EmulationVersion().Minor()), rows, c.RuntimeConfig)
		if err != nil {
			return nil, err
		}
	}
	s := newServer(c, scheme.NewRegistry(rows...))
	for _, phase := range phases {
		if err := phase(s, c.starting); err != nil {
			return nil, s.giveUp(err)
		}
	}
	return s, nil
}

// newServer returns a server that has not been started.
func newServer(c *config, types *scheme.Registry) *server {
	now := clock.New(c.clock)
	c.Auth.Log, c.Auth.Now = c.log, now.Now
	s := &server{cfg: c, log: c.log, clock: now, troubles: logonce.New(c.log), metrics: newMetrics(speaks()), failed: make(chan error, 1),
		entrance: entrance{endpoint: serving.Endpoint{Options: &c.Options, Log: c.log, Now: now.Now}, clockSet: make(chan struct{}, 1)},
		leave:    departure{leaving: make(chan struct{}), stopping: make(chan struct{})}}
	s.storage = &storage{options: &c.Options, types: types, clock: now, log: c.log, troubles: s.troubles}
	s.api = &api{readAPI: readAPI{types: types, log: c.log}, storage: s.storage, usage: deprecations.NewTracker(), options: &c.Options,
		upgrades: limits.NewUpgradeSlots()}
	return s
}

// giveUp cleans up after a failed start.
func (s *server) giveUp(err error) error {
	if s.entrance.listener == nil {
		return err
	}
	return errors.Join(s.storage.giveUp(err), s.entrance.listener.Close())
}

func (s *server) listen(context.Context) (err error) {
	if s.entrance.listener, err = s.entrance.endpoint.Listen(); err == nil {
		s.entrance.listening = s.entrance.listener.Addr().String()
	}
	return err
}

func (s *server) reach(ctx context.Context) error {
	if err := s.storage.readKeys(); err != nil {
		return err
	}
	if err := s.storage.reachEtcd(ctx); err != nil {
		return err
	}
	err := s.entrance.endpoint.Open(s.storage.authorityShared(ctx))
	if err != nil {
		return fmt.Errorf("--cert-dir: %w", err)
	}
	if s.auth, err = auth.New(s.cfg.Auth); err != nil {
		return err
	}
	s.audit, err = openAudit(&s.cfg.Audit, s.api.types, s.metrics, s.troubles, s.log)
	return err
}

func (s *server) open(ctx context.Context) error { return s.storage.open(ctx) }

func (s *server) preflight(context.Context) (err error) {
	if err = s.storage.preflight(); err != nil {
		return err
	}
	s.guardSecrets()
	s.cfg.Accounts.RootCA = s.cfg.Auth.OwnCA
	if s.auth.Accounts, err = serviceaccount.New(s.storage.st, s.cfg.Accounts); err != nil {
		return err
	}
	if s.cfg.Auth.BootstrapTokens {
		s.auth.Bootstrap = &bootstraptoken.Tokens{Store: s.storage.st, Log: zerolog.Nop()}
		if s.cfg.Verbosity >= verbosityOfRefusals {
			s.auth.Bootstrap.Log = s.log
		}
	}
	return kubeconfig.Clear(s.cfg.Kubeconfig)
}

// verbosityOfRefusals is the --v level at which kube-apiserver logs why it rejects a bootstrap
// token.
const verbosityOfRefusals = 3

// guardSecrets restricts access to the data file and warns about readable files with secrets.
// Package certs does the same for the key files that it creates.
func (s *server) guardSecrets() {
	if !s.cfg.Ephemeral {
		if _, err := certs.RestrictPermissions(s.log, s.storage.st.File.Path); err != nil {
			s.log.Error().Err(err).Msg("cannot make the data file private (mode 0600)")
		}
	}
	given := []string{s.cfg.Auth.TokenFile, s.cfg.TLSKey, s.cfg.EncryptionConfig, s.cfg.ContinueKeyFile, s.cfg.Aggregation.ProxyKey,
		s.cfg.Accounts.SigningKeyFile, s.cfg.Audit.Webhook, s.cfg.Auth.TokenHook.File, s.cfg.Hook.File}
	certs.WarnWorldReadable(s.log, append(given, s.cfg.Accounts.KeyFiles...)...)
	s.storage.warnOfCommittable()
}

// assemble creates the components that use the store.
func (s *server) assemble(context.Context) (err error) {
	c, st, types, a := s.cfg, s.storage.st, s.api.types, s.api
	if s.auth.UsesNodeAuthorizer() {
		s.auth.Nodes = node.New(st, types, s.stands("reading what the pods of nodes refer to"))
	}
	keys, err := s.storage.continueKeys()
	if err != nil {
		return err
	}
	blocks, err := c.ServiceRanges()
	if err != nil {
		return err
	}
	alloc := allocator.New(st, blocks...)
	alloc.Shared = s.storage.cluster != nil
	if alloc.Report = s.stands("cluster IPs and node ports"); c.ManagedFields {
		alloc.Manager = "apilet"
	}
	lost := corrupt.NewObjects(st, s.log)
	tell := lost.AddSealed
	s.storage.sealed.Store(&tell)
	a.auth, a.deprecated = s.auth, &deprecatedVersions{server: speaks(), denied: c.DenyDeprecated, used: a.noteUse}
	a.rd = &reads{st: st, past: history.Visibility{Store: st, Authorize: may(s.auth)}, lost: lost, tokens: newTokenCodec(keys),
		podsByNode: st.NewIndex(podKeys, podNode), storage: s.storage.backing().check, readSlots: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2))}
	a.wt = &watching{reads: a.rd, minTimeout: c.MinTimeout, bookmarks: bookmarkEvery, patience: c.RequestTimeout, shuttingDown: s.leave.stopping,
		news: notify.New(st)}
	a.wr = &registry.Writer{Store: st, Types: types, Auth: s.auth, Allocator: alloc, Corrupt: lost, Validating: c.Validate, ManagedFields: c.ManagedFields}
	a.instruments = &instrumentation{reg: types, metrics: s.metrics, audit: s.audit, findings: findings.New(findings.LogTo(s.log)), log: s.log,
		verbosity: c.Verbosity, timeout: c.RequestTimeout, bytes: limits.NewMemory(c.RequestTimeout / 4)}
	return nil
}

// admit builds the chain of admission plug-ins for writes.
func (s *server) admit(context.Context) error {
	st, types, wr := s.storage.st, s.api.types, s.api.wr
	s.beside.webhooks = &admission.Webhooks{Store: st, Types: types, Services: &webhook.ServiceResolver{Store: st, Types: types},
		OnCall: s.metrics.webhookCalled, Log: s.log, Authorize: s.auth.Decide, Defaults: registry.FillDefaults, Corrupt: wr.Corrupt, Report: s.troubles.Report}
	s.beside.webhooks.Reload()
	configuration, err := plugins.ReadConfiguration(s.cfg.AdmissionConfig)
	if err != nil {
		return fmt.Errorf("--admission-control-config-file: %w", err)
	}
	s.beside.policies = &policy.Policies{Store: st, Types: types, Corrupt: wr.Corrupt, Log: s.log, Authorize: s.auth.Decide, Defaults: registry.FillDefaults,
		FieldManager: wr.FieldManager, Convert: admission.ConvertTo, OnCheck: s.metrics.policyChecked}
	s.beside.policies.Reload()
	mutating, validating := plugins.Policies(s.beside.policies)
	table := plugins.Table(plugins.Config{Store: st, Types: types, Authorize: s.auth.Decide, CreateNamespace: wr.CreateNamespace, Webhooks: s.beside.webhooks,
		MutatingPolicy: mutating, ValidatingPolicy: validating, Configuration: *configuration,
		OnPodCheck: s.metrics.podChecked, ControllerManager: !s.cfg.Controllers, Tolerations: s.cfg.Tolerations, Clock: s.cfg.clock})
	on, err := configuration.Select(table, s.cfg.EnabledPlugins, s.cfg.DisabledPlugins)
	if err != nil {
		return err
	}
	wr.Admission, wr.ProvisionsNamespaces = admission.NewChain(table, on), on["NamespaceAutoProvision"]
	wr.OnCommit = append(wr.OnCommit, s.beside.webhooks.OnCommit, s.beside.policies.OnCommit)
	if on["ResourceQuota"] {
		if wr.Quotas, err = quota.New(st, types); err != nil {
			s.log.Error().Err(err).Msg("cannot read ResourceQuotas; some of them are not enforced")
		}
	}
	s.beside.definitions = crd.NewDefinitions(st, types, wr, s.log)
	s.beside.definitions.Report = s.stands("definitions of custom resources")
	s.api.definitions = s.beside.definitions
	return nil
}

// observe registers the collectors of metrics.
func (s *server) observe(context.Context) error {
	m := s.metrics
	m.registry.MustRegister(s.api.instruments.findings, certificateFigures(s.entrance.endpoint.Certificates), clusterFigures{s.storage.cluster},
		&datafile.Collector{Store: s.storage.st, Types: s.api.types, Scrub: s.storage.scrub, Corrupt: s.api.rd.lost, TrackedWrites: s.api.wr.FieldTracking.Load})
	m.registry.MustRegister(s.storage.keys.Collectors()...)
	m.clockBehind(s.clock.Lag)
	m.leader(s.storage.leads.Load)
	m.featureGates(options.FeatureGates())
	m.buildInfo(map[string]string{"major": "1", "minor": strconv.Itoa(speaks()[1]), "git_version": gitVersion, "go_version": runtime.Version(),
		"platform": runtime.GOOS + "/" + runtime.GOARCH})
	return nil
}

// populate loads the stored definitions, roles and flow control configuration, and creates the
// objects that every server needs.
func (s *server) populate(ctx context.Context) error {
	st, types, wr := s.storage.st, s.api.types, s.api.wr
	if err := errors.Join(bootstrap.Initializer{Writer: wr, Types: types}.Namespaces(ctx), s.beside.definitions.Sync(ctx)); err != nil {
		return err
	}
	if s.cfg.Controllers && s.cfg.NamespaceDefaults {
		s.beside.namespaces = bootstrap.NewNamespaceReconciler(st, types, wr, s.cfg.Auth.OwnCA, s.log)
		if err := s.beside.namespaces.ReconcileAll(ctx, bootstrap.FirstNamespaces); err != nil {
			return err
		}
		wr.OnNamespaceCreated = s.beside.namespaces.NamespaceCreated
	}
	if s.cfg.FlowControl {
		fc := newFlowControl(s.cfg.Seats(), s.cfg.RequestTimeout, s.storage.stored)
		s.metrics.registry.MustRegister(fc.dispatcher)
		if fc.followMachine(st, s.log); fc.auto != nil {
			s.metrics.registry.MustRegister(fc.auto.Metrics())
		}
		s.api.fc, s.beside.flows = fc, bootstrap.NewFlowReconciler(st, types, wr, fc.configure)
		if err := s.beside.flows.Start(ctx); err != nil {
			return err
		}
	}
	s.beside.apiServices = bootstrap.NewAPIServiceReconciler(st, types, wr)
	if err := s.beside.apiServices.Reconcile(ctx, true); err != nil {
		return err
	}
	if err := cmp.Or(s.aggregate(ctx), s.connect()); err != nil {
		return err
	}
	if s.auth.EnforcesRBAC() {
		policy := bootstrap.NewPolicyReconciler(st, types, wr, s.auth, func(err error) { s.log.Error().Err(err).Msg("cannot read the roles and bindings") })
		if err := policy.Reconcile(ctx); err != nil {
			return err
		}
		wr.OnPolicyCommit = policy.OnCommit
	}
	return nil
}

// aggregate creates the aggregator, which forwards requests to other API servers. Without TLS, the
// client certificate is created and published only when the first APIService names another server.
func (s *server) aggregate(ctx context.Context) error {
	g := &aggregation.Aggregator{Store: s.storage.st, Types: s.api.types, Services: s.beside.webhooks.Services, Certificate: s.beside.proxy.Certificate,
		SaveStatus: s.api.wr.SaveAPIServiceStatus, IsLeader: s.storage.leads.Load, ResponseHeaderTimeout: s.cfg.RequestTimeout, RejectRedirects: s.cfg.Aggregation.RejectRedirects,
		OnLongRunning: watchBegun, WriteError: s.api.fail, Stopping: s.leave.stopping, Report: s.stands("keeping up with the servers that APIServices name"),
		OnUnavailable: s.metrics.apiServiceUnavailable, Upgrades: s.api.upgrades}
	g.OnFirstUse = func() {
		if err := s.introduce(); err != nil {
			s.log.Error().Err(err).Msg("there is no client certificate for aggregated API servers")
		}
		s.publishAuthorities(ctx)
	}
	s.metrics.registry.MustRegister(g)
	s.api.aggregated = g
	if !s.cfg.Auth.Insecure {
		if err := s.introduce(); err != nil {
			return err
		}
	}
	return g.Load(ctx)
}

// connect creates the connector, which forwards requests to kubelets and Pods.
func (s *server) connect() error {
	flags := &s.cfg.Kubelet
	certificate, err := s.entrance.endpoint.KubeletCertificate()
	if err != nil {
		return err
	}
	config := kubelet.Config{Certificate: certificate, AddressTypes: flags.AddressTypes, Timeout: flags.Timeout}
	if flags.CAFile != "" {
		authorities, err := certs.NewDynamicCAs(s.log, nil, flags.CAFile)
		if err != nil {
			return fmt.Errorf("--kubelet-certificate-authority: %w", err)
		}
		config.Authorities = authorities.Current
	}
	s.api.connector = &kubelet.Connector{Clients: kubelet.NewClients(config), Store: s.storage.st, Types: s.api.types, Admission: s.api.wr.Admission,
		MayCreate: s.auth.MayCreate, Forward: &proxy.Forwarder{Slots: s.api.upgrades, Stopping: s.leave.stopping}, WriteError: s.api.fail}
	return nil
}

// introduce reads or creates the client certificate for other servers.
func (s *server) introduce() error {
	flags := &s.cfg.Aggregation
	return s.beside.proxy.Open(certs.Config{Dir: s.cfg.CertDir, Now: s.cfg.Auth.Now, Log: s.log}, flags.ProxyCert, flags.ProxyKey)
}

func (s *server) secure(context.Context) (err error) {
	s.entrance.url, s.entrance.secured, err = s.entrance.endpoint.Secure(s.entrance.listener, s.auth.HandshakeCAs())
	s.api.keysURL = s.entrance.url + "/openid/v1/jwks"
	return err
}

// found creates objects such as the default Services. If that fails, it logs the error and
// continues.
func (s *server) found(ctx context.Context) error {
	initializer, at, blocks := bootstrap.Initializer{Writer: s.api.wr, Types: s.api.types}, s.entrance.at(), s.api.wr.Allocator.Ranges
	initializer.Warn = func(text string) { s.log.Warn().Msg(text) }
	s.beside.endpoints = &bootstrap.Endpoints{Initializer: initializer, Etcd: s.storage.cluster, Reconciler: s.cfg.EndpointReconciler,
		Advertised: s.cfg.Advertised, IPv6: blocks[0].Addr().Is6()}
	s.beside.founded = errors.Join(initializer.Cluster(ctx, blocks, int(at.Port())), s.beside.endpoints.Start(ctx, at))
	if s.beside.founded != nil {
		s.log.Error().Err(s.beside.founded).Msg("cannot create some of the cluster's default objects")
	}
	s.publishAuthorities(ctx)
	s.publishClusterInfo(ctx, initializer)
	return nil
}

// publishClusterInfo publishes the URL and the CA of this server for nodes that join with a
// bootstrap token. If the administrator provides the serving certificate, the server does not know
// its CA and publishes nothing.
func (s *server) publishClusterInfo(ctx context.Context, initializer bootstrap.Initializer) {
	switch {
	case !s.cfg.Auth.BootstrapTokens:
		return
	case s.cfg.Auth.OwnCA == nil:
		s.log.Info().Msg("ConfigMap cluster-info in kube-public is not published: the CA of --tls-cert-file is unknown")
		return
	}
	url := bootstrap.URLForNodes(s.entrance.url, s.entrance.at(), s.api.wr.Allocator.Ranges[0].Addr().Is6())
	if err := initializer.ClusterInfo(ctx, url, s.cfg.Auth.OwnCA); err != nil {
		s.log.Error().Err(err).Msg("cannot publish ConfigMap cluster-info in kube-public")
	}
}

// publishAuthorities publishes the CAs of accepted client certificates and of the front proxy for
// other programs in the cluster. Changes to the CA files are published at the next start.
func (s *server) publishAuthorities(ctx context.Context) {
	pem, err := s.cfg.Auth.Authorities()
	proxies, problem := s.cfg.Auth.RequestHeader.Config()
	if own := s.beside.proxy.FrontProxy(); own != nil {
		proxies = proxies.With(own.Authority(), certs.FrontProxyName)
	}
	if err = cmp.Or(err, problem); err == nil && (len(pem) > 0 || len(proxies.Authorities) > 0) {
		err = bootstrap.Initializer{Writer: s.api.wr, Types: s.api.types}.ClientAuthorities(ctx, pem, proxies)
	}
	if err != nil {
		s.log.Error().Err(err).Msg("cannot publish the client CA")
	}
}

// serve starts to handle requests in the background.
func (s *server) serve(context.Context) error {
	s.api.health = []*health.Endpoint{{Name: "livez", Checks: s.liveness()}, {Name: "healthz", Checks: append(s.liveness(), s.plugins()...)}, {Name: "readyz", Checks: s.readiness()}}
	for _, endpoint := range s.api.health {
		endpoint.OnResult = s.observed(endpoint.Name)
	}
	s.entrance.http = &http.Server{
		Handler:           s.closing(s.api.handler()),
		TLSConfig:         s.entrance.secured,
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       s.cfg.RequestTimeout + 5*time.Second,
		WriteTimeout:      s.cfg.RequestTimeout + 10*time.Second,
		IdleTimeout:       3 * time.Minute,
		// The deadline of a stream has no effect if the whole HTTP/2 connection is stuck.
		HTTP2:          &http.HTTP2Config{WriteByteTimeout: s.cfg.RequestTimeout},
		MaxHeaderBytes: 64 << 10,
		ConnContext:    withConn,
		ConnState:      s.entrance.resting.Track,
		ErrorLog:       stdlog.New(s.metrics.countHandshakeErrors(levelWriter{s.log}), "", 0),
	}
	if err := s.entrance.endpoint.WriteKubeconfig(); err != nil {
		return err
	}
	s.entrance.probe = health.NewProbe(s.entrance.at(), s.entrance.secured != nil)
	s.startWorkers()
	go s.api.wt.news.Run(s.leave.stopping)
	go s.accept()
	s.log.Info().Str("url", s.entrance.url).Str("page", s.entrance.url+request.PathUI).Str("data", s.storage.st.File.Path).Int64("revision", s.storage.st.Revision()).Msg("serving")
	s.cfg.toldManager(s.cfg.manager.NotifyReady("serving " + s.entrance.url))
	return nil
}

// alive is the check for the watchdog. It requests /livez on the server's own port and waits for
// the writer of the data file. It ignores problems that a restart does not fix, such as a full
// disk, damage or an unavailable etcd. If the server hangs, alive may not return before ctx ends.
func (s *server) alive(ctx context.Context) error {
	if s == nil {
		return nil
	}
	return errors.Join(s.entrance.probe.Get(ctx, "/livez"), s.storage.st.PingWriter(ctx))
}

// typeChecker returns the controller that writes the status of admission policies.
func (s *server) typeChecker() *policy.TypeChecker {
	return &policy.TypeChecker{Store: s.storage.st, Types: s.api.types, Schemas: discovery.KindSchemas,
		Report: s.stands("checking the types of admission policies"), Write: s.api.wr.SavePolicyStatus}
}

// startWorkers starts the background work of kube-apiserver and the controllers of
// kube-controller-manager. stop ends them.
func (s *server) startWorkers() {
	ctx, cancel := context.WithCancel(context.Background())
	s.idle = cancel
	gc := &gc.Collector{Store: s.storage.st, Maintenance: s.storage.upkeep, Types: s.api.types, Writer: s.api.wr, EventTTL: s.cfg.EventTTL,
		Grace: s.cfg.namespaceGrace, Report: s.troubles.Report, StartRequest: s.api.instruments.own, RemoteDeleter: s.api.aggregated.EmptyNamespace}
	work := &s.work
	work.Go("the controllers", func() { s.storage.lead(ctx, func(ctx context.Context) { s.workOff(ctx, gc) }) })
	if s.storage.cluster != nil {
		work.Go("following what other servers write", func() { s.api.wr.FollowOtherServers(ctx) })
	}
	work.Go("following what pods refer to", func() { s.auth.Nodes.Run(ctx) })
	work.Go("following definitions of types", func() { s.beside.definitions.Run(ctx) })
	work.Go("keeping up with other servers", func() { s.api.aggregated.Run(ctx) })
	work.Go("following admission policies", func() { s.beside.policies.Run(ctx) })
	work.Go("the scrub of the data file", func() { s.storage.scrub.Run(ctx) })
	work.Go("the findings", func() { s.api.instruments.findings.Run(ctx) })
	work.Go("the search for objects that cannot be read", func() {
		if err := s.api.rd.lost.Scan(ctx, corrupt.NewDecodeCheck(s.api.types)); err != nil && ctx.Err() == nil {
			s.log.Error().Err(err).Msg("cannot search for objects that cannot be decoded")
		}
	})
	if s.storage.keys.Enabled() {
		work.Go("looking at the file about encryption", func() { s.storage.keys.Run(ctx) })
	}
	work.Go("heeding hangups", func() { s.heedHangups(ctx) })
	ready := health.Endpoint{Name: "readyz", Checks: s.readiness(), OnResult: s.observed("readyz")}
	work.Go("the checks of /readyz", func() { ready.Run(ctx, health.CheckInterval) })
	work.Go("watching the clock", func() { s.clock.Run(ctx, clock.CheckInterval, s.noteClockSet) })
	work.Go("renewing certificates", func() { s.entrance.endpoint.Run(ctx, s.entrance.clockSet) })
	work.Go("telling where this server is", func() { s.beside.endpoints.Run(ctx, s.leave.leaving) })
	work.Go("compaction", func() {
		s.storage.upkeep.Run(ctx, s.cfg.CompactionInterval, s.cfg.HistoryRetention(), func(done store.Compaction, err error) { s.storage.afterCompaction(ctx, gc, done, err) })
	})
	if s.beside.flows != nil {
		work.Go("flow control", func() { s.api.fc.run(ctx) })
		work.Go("following flow schemas", func() {
			s.beside.flows.Run(ctx, s.beside.flows.Apply, s.stands("reading flow schemas and priority levels"))
		})
	}
}

// heedHangups reopens the audit log at each SIGHUP until ctx ends. Without an audit log it only
// notifies the service manager, which may wait for the reload.
func (s *server) heedHangups(ctx context.Context) {
	hangup := make(chan os.Signal, 1) // one reload is enough for several signals
	signal.Notify(hangup, syscall.SIGHUP)
	defer signal.Stop(hangup)
	for {
		select {
		case <-ctx.Done():
			return
		case <-hangup:
		}
		s.cfg.toldManager(s.cfg.manager.NotifyReloading())
		if s.audit != nil {
			if err := s.audit.Reopen(); err != nil {
				s.log.Error().Err(err).Msg("cannot reopen the audit log")
			}
		}
		s.cfg.toldManager(s.cfg.manager.NotifyReady("serving " + s.entrance.url))
	}
}

// stands returns a function that logs when the named work begins to fail and when it recovers.
func (s *server) stands(what string) func(error) {
	return func(err error) { s.troubles.Report(what, err) }
}

// noteClockSet logs that the machine's clock was set, and triggers a check of the certificates.
// Package clock decides whether the new time is plausible.
func (s *server) noteClockSet(step time.Duration) {
	s.log.Warn().Str("by", step.Round(time.Second).String()).Time("now", s.clock.Now()).Msg("the machine's clock has been set")
	select {
	case s.entrance.clockSet <- struct{}{}:
	default: // a check is already pending
	}
}

// workOff runs the controllers. If several servers share an etcd cluster, only the leader runs
// them.
func (s *server) workOff(ctx context.Context, gc *gc.Collector) {
	var running sync.WaitGroup
	defer running.Wait()
	if s.cfg.Controllers {
		running.Go(func() { gc.Run(ctx) })
		running.Go(func() { s.typeChecker().Run(ctx) })
		tokens := bootstrap.NewTokenReconciler(s.storage.st, s.api.types, s.api.wr, s.log)
		running.Go(func() {
			gc.RunUntilDone(ctx, "filling Secrets with tokens", func(ctx context.Context) error { return tokens.Run(ctx, s.stands("tokens for Secrets")) })
		})
	}
	if s.beside.namespaces != nil {
		running.Go(func() {
			gc.RunUntilDone(ctx, "reconciling namespaces", s.beside.namespaces.Run)
		})
	}
	running.Go(func() { s.api.wr.Allocator.Run(ctx) })
	running.Go(func() {
		s.api.wr.WriteQuotas(ctx, s.stands("writing what is used into the status of ResourceQuotas"))
	})
	running.Go(func() {
		s.beside.apiServices.Run(ctx, s.stands("keeping the APIServices of custom resources"))
	})
}

// accept serves until the listener is closed.
func (s *server) accept() {
	if err := serving.Accept(s.entrance.http, s.entrance.listener); !errors.Is(err, http.ErrServerClosed) {
		s.failed <- err
	}
}

// sendAway announces the shutdown and keeps serving for delay, so that clients and load balancers
// switch to other servers.
func (s *server) sendAway(delay time.Duration) {
	s.leave.once.Do(func() { close(s.leave.leaving) })
	if delay <= 0 {
		return
	}
	select {
	case <-time.After(delay):
	case err := <-s.failed:
		s.failed <- err
	case <-s.storage.cluster.Lost():
	}
}

// closing is a middleware that sets Connection: close during shutdown. The client then opens a new
// connection, and a load balancer routes it to another server. In HTTP/2 the header causes a
// GOAWAY, and running requests continue.
func (s *server) closing(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-s.leave.leaving:
			w.Header().Set("Connection", "close")
		default:
		}
		next.ServeHTTP(w, r)
	})
}

// stop waits for running requests, ends watches and closes the store. All waits are limited. If a
// limit is reached, stop logs a warning and continues. No acknowledged write is lost, since writes
// are in the file or in etcd before their responses.
func (s *server) stop() error {
	s.sendAway(0)
	// Watches end after the listener is closed, because their clients reconnect immediately.
	s.entrance.http.RegisterOnShutdown(func() { close(s.leave.stopping) })
	ctx, cancel := context.WithTimeout(context.Background(), s.cfg.grace)
	defer cancel()
	time.AfterFunc(drain.Delay, s.entrance.resting.Close)
	err := s.entrance.http.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		s.log.Warn().Int("connections", s.entrance.resting.Busy()).Stringer("waited", s.cfg.grace).Msg("shutdown: closing the connections of unfinished requests")
		err = s.entrance.http.Close()
	}
	s.idle()
	if unfinished := s.work.Wait(s.cfg.grace / 5); unfinished != nil {
		s.log.Warn().Err(unfinished).Msg("shutdown: abandoning background work")
	}
	return errors.Join(err, s.close())
}

// close closes the store and the audit log. It is called after the requests and the background
// work.
func (s *server) close() error {
	var closing drain.Work
	var stored, audited error
	closing.Go("closing the data file", func() {
		s.api.wt.news.Close()
		s.beside.webhooks.Close()
		s.api.connector.Clients.Close()
		stored = s.storage.close()
	})
	if s.audit != nil {
		closing.Go("closing the audit log", func() { audited = s.audit.Close() })
	}
	if err := closing.Wait(closingGrace); err != nil {
		return err
	}
	return errors.Join(stored, audited)
}

// liveness returns the checks of /livez and /healthz. If the storage is unavailable they only warn,
// because a restart would not help.
func (s *server) liveness() []health.Check {
	return append([]health.Check{health.Ping, {Name: "etcd", Err: s.storage.backing().seen, WarnOnly: true}}, s.started()...)
}

// started returns one check for each of kube-apiserver's start hooks. It omits hooks that this
// server does not run, or that it runs after the start.
func (s *server) started() []health.Check {
	const hook = "poststarthook/"
	checks := health.AlwaysHealthy(hook+"start-apiserver-admission-initializer", hook+"generic-apiserver-start-informers", hook+"start-apiextensions-informers",
		hook+"start-apiextensions-controllers", hook+"crd-informer-synced", hook+"start-system-namespaces-controller", hook+"storage-readiness",
		hook+"apiservice-registration-controller", hook+"kube-apiserver-autoregistration", "autoregister-completion")
	if s.auth.EnforcesRBAC() {
		checks = append(checks, health.AlwaysHealthy(hook+"rbac/bootstrap-roles")...)
	}
	if s.beside.flows != nil {
		checks = append(checks, health.AlwaysHealthy(hook+"priority-and-fairness-config-consumer", hook+"priority-and-fairness-config-producer", hook+"priority-and-fairness-filter")...)
	}
	for _, name := range []string{"scheduling/bootstrap-system-priority-classes", "bootstrap-controller", "start-kubernetes-service-cidr-controller"} {
		checks = append(checks, health.Check{Name: hook + name, Err: func() error { return s.beside.founded }, WarnOnly: true})
	}
	return checks
}

// readiness returns the checks of /readyz. A failed check makes the server unready, because the
// server cannot do its work. A check with Warns set leaves it ready: the server still answers reads
// and deletes, and administrators need access to fix the problem.
func (s *server) readiness() []health.Check {
	checks := []health.Check{health.Ping, health.Shutdown(s.leave.leaving), {Name: "store", Err: s.storage.st.File.Writable}, {Name: "damage", Err: s.storage.scrub.CheckDamage},
		{Name: "scrub", Err: s.storage.scrub.CheckLastScrub}, {Name: "unreadable", Err: s.api.rd.lost.Check}, {Name: "disk", Err: s.storage.st.HasRoom, WarnOnly: true},
		{Name: "certificates", Err: s.entrance.endpoint.CheckCertificates, WarnOnly: true}, {Name: "clock", Err: s.clockRight, WarnOnly: true}}
	if s.audit != nil {
		checks = append(checks, health.Check{Name: "audit", Err: s.audit.CheckHealth, WarnOnly: true})
	}
	holds := s.storage.backing() // under the names of kube-apiserver's storage checks
	checks = append(checks, health.Check{Name: "quota", Err: holds.quota, WarnOnly: true}, health.Check{Name: "etcd", Err: holds.check},
		health.Check{Name: "etcd-readiness", Err: holds.seen})
	return slices.Concat(checks, s.plugins(), health.AlwaysHealthy("informer-sync"), s.started())
}

// plugins returns the check of the KMS plugins, if any are configured. /livez does not include it,
// because a restart does not bring a plugin back.
func (s *server) plugins() []health.Check {
	if !s.storage.keys.HasHealth() {
		return nil
	}
	return []health.Check{{Name: "kms-providers", Err: s.storage.keys.Health}}
}

// clockRight returns an error if the machine's clock is too far behind to be trusted.
func (s *server) clockRight() error {
	if by := s.clock.Lag(); by > 0 {
		return fmt.Errorf("the machine's clock is at least %s slow: set it, for example with timedatectl, or wait for a time server",
			by.Round(time.Second))
	}
	return nil
}

// observed returns a function that records the result of a check in a metric. For readyz it also
// logs the checks that no other part of the server logs.
func (s *server) observed(endpoint string) func(check string, err error) {
	return func(check string, err error) {
		s.metrics.checked(endpoint, check, err == nil)
		told := append([]string{"damage", "scrub", "unreadable", "certificates", "clock"}, s.storage.backing().told...)
		if endpoint == "readyz" && slices.Contains(told, check) {
			s.troubles.Report("/readyz/"+check, err)
		}
	}
}

// ---- The chain and the routes ----

// speaks returns the version of Kubernetes that this server implements.
func speaks() [2]int { return serverVersion("1", strings.Split(scheme.KubernetesVersion, ".")[1]) }

// An api handles requests about the present. For requests about the past it creates a readAPI.
type api struct {
	readAPI
	wr          *registry.Writer
	wt          *watching
	definitions *crd.Definitions
	aggregated  *aggregation.Aggregator // forwards requests to other API servers
	connector   *kubelet.Connector      // forwards requests to kubelets and Pods
	upgrades    *limits.Slots           // limits upgraded connections of all handlers together
	storage     *storage
	fc          *flowControl // nil without flow control
	instruments *instrumentation
	usage       *deprecations.Tracker
	shown       dashboard.Watches  // the running watches
	health      []*health.Endpoint // /livez, /healthz and /readyz
	options     *options.Options
	keysURL     string // URL of the keys that verify the tokens of service accounts
}

// handler returns the chain of handlers for every request, from the outermost to the routes.
func (a *api) handler() http.Handler {
	way := a.routes()
	steps := []func(http.Handler) http.Handler{
		a.instruments.record, a.auth.Authenticate, a.auth.Impersonate, a.seated, a.throughTime,
	}
	if log := a.instruments.audit; log != nil && log.Policy != nil {
		steps = slices.Insert(steps, 2, a.instruments.received)
	}
	for _, step := range slices.Backward(steps) {
		way = step(way)
	}
	return way
}

// seated limits the number of concurrent requests: by flow control, or by a plain count if flow
// control is disabled.
func (a *api) seated(next http.Handler) http.Handler {
	if a.fc == nil {
		return maxInFlight(a.options.MaxReadonly, a.options.MaxMutating, next)
	}
	return a.fc.middleware(next)
}

// routes returns the router with every route.
func (a *api) routes() http.Handler {
	r := chi.NewRouter()
	var checked []string
	for _, endpoint := range a.health {
		for _, check := range endpoint.Checks {
			checked = append(checked, "/"+endpoint.Name+"/"+check.Name)
		}
		endpoint.MayView = a.maySee
		r.Handle("/"+endpoint.Name, a.withAuthorization(endpoint.ServeHTTP))
		r.Handle("/"+endpoint.Name+"/*", a.withAuthorization(endpoint.ServeHTTP))
	}
	r.Handle("/version", a.withAuthorization(serveVersion))
	r.Handle("/version/", a.withAuthorization(serveVersion))
	if config, ok := a.auth.Accounts.OpenIDConfiguration(cmp.Or(a.options.JWKSURI, a.keysURL)); ok {
		r.Handle("/.well-known/openid-configuration", a.withAuthorization(document("application/json", config)))
		r.Handle("/openid/v1/jwks", a.withAuthorization(document("application/jwk-set+json", a.auth.Accounts.KeySet())))
	}
	r.Handle("/metrics", a.withAuthorization(a.instruments.metrics.handler().ServeHTTP))
	r.Handle("/openapi/v2", a.withAuthorization(a.serveSwagger))
	r.Handle("/openapi/v3", a.withAuthorization(a.serveOpenAPI))
	r.Handle("/openapi/v3/*", a.withAuthorization(a.serveOpenAPI))
	r.Handle("/debug/deprecations", a.withAuthorization(a.usage.ServeHTTP))
	r.Handle(history.Path, a.history()) // authorizes each object in its response
	r.HandleFunc(findings.Path, func(w http.ResponseWriter, r *http.Request) {
		a.instruments.findings.Serve(w, r, findings.Rights{Authorize: may(a.auth), MayListAny: a.auth.MayListAnything, VisibleSince: a.timeSince})
	})
	if a.fc != nil {
		pages := []string{"dump_priority_levels", "dump_queues", "dump_requests"}
		if a.fc.auto != nil {
			pages = append(pages, "dump_seats")
		}
		for _, page := range pages {
			r.Handle("/debug/api_priority_and_fairness/"+page, a.withAuthorization(a.fc.serveDump))
		}
	}
	backups := datafile.Backups{Store: a.storage.st, Maintenance: a.storage.upkeep, Ephemeral: a.options.Ephemeral, RevisionAt: a.moments().Resolve, WriteError: a.fail}
	r.Handle(request.PathBackup, a.withAuthorization(backups.ServeHTTP))
	page := a.page()
	r.Handle("/debug/ui", http.RedirectHandler(request.PathUI, http.StatusMovedPermanently))
	r.HandleFunc(request.PathUI+"*", page.ServePage) // no authorization, since the page contains no data
	r.Handle(dashboard.DataPath, a.withAuthorization(page.ServeData))
	r.Handle("/api", a.withAuthorization(a.serveDiscovery))
	r.Handle("/apis", a.withAuthorization(a.serveGroups))
	r.HandleFunc("/api/*", a.serveAPI)
	r.HandleFunc("/apis/*", a.serveAPI)
	r.Handle("/", dashboard.RedirectBrowsers(a.withAuthorization(routing.Index(r, a.types, checked...))))
	r.NotFound(a.withAuthorization(http.NotFound))
	r.MethodNotAllowed(routing.AnyMethod(r))
	return r
}

// document serves bytes that do not change while the server runs.
func document(contentType string, body []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			response.WriteError(w, r, apierror.MethodNotAllowed())
			return
		}
		w.Header().Set("Content-Type", contentType)
		w.Header().Set("Cache-Control", "public, max-age=3600")
		_, _ = w.Write(body) // fails only if the client is gone
	}
}

// withAuthorization authorizes each request before calling next.
func (a *api) withAuthorization(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := a.auth.Authorize(request.From(r.Context())); err != nil {
			a.fail(w, r, err)
			return
		}
		next(w, r)
	}
}

// throughTime serves requests below /at/MOMENT/ as of that moment, and passes all other requests to
// now.
func (a *api) throughTime(now http.Handler) http.Handler {
	past := history.PastHandler{Moments: a.moments(), Classify: hadAnswer, Types: a.definitions.RegistryAt, Serve: a.serveThen, WriteError: a.fail}
	then := a.withAuthorization(past.ServeHTTP) // with the current authorization rules
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if request.From(r.Context()).Moment == "" {
			now.ServeHTTP(w, r)
			return
		}
		then(w, r)
	})
}

func (a *api) moments() history.Moments {
	return history.Moments{Store: a.storage.st, Maintenance: a.storage.upkeep}
}

// hadAnswer reports how a path can be served as of the past, if at all.
func hadAnswer(path string) history.PathKind {
	root, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	switch {
	case root == "api" || root == "apis" || path == "/openapi/v2" || path == "/openapi/v3" || strings.HasPrefix(path, "/openapi/v3/"):
		return history.Versioned
	case path == "/version" || path == "/version/":
		return history.Timeless
	}
	return history.NoHistory
}

// serveThen serves a request as of revision rev. If types is nil, the response does not depend on
// time.
func (a *api) serveThen(w http.ResponseWriter, r *http.Request, types *scheme.Registry, rev int64) {
	if types == nil {
		serveVersion(w, r)
		return
	}
	then := a.at(types, rev)
	switch asked := request.From(r.Context()).Info.Path; {
	case asked == "/openapi/v2":
		then.serveSwagger(w, r)
	case strings.HasPrefix(asked, "/openapi/"):
		// The URLs contain the revision, so that clients may cache the documents for a year.
		discovery.ServeOpenAPI(types, history.PathAt+strconv.FormatInt(rev, 10), w, r)
	default:
		then.serveAPI(w, r)
	}
}

// at returns the API as of revision rev. The current authorization rules apply.
func (a *api) at(types *scheme.Registry, rev int64) *readAPI {
	return &readAPI{types: types, rd: a.rd.asOf(rev), auth: a.auth, deprecated: a.deprecated, log: a.log}
}

// history returns the handler of the change log. A user sees the changes of objects that he was
// allowed to list.
func (a *api) history() *history.Log {
	return history.New(history.Config{Store: a.storage.st, Maintenance: a.storage.upkeep, Types: a.types, MayListAny: a.auth.MayListAnything,
		OnCaughtUp: watchBegun, WriteError: a.fail, Visibility: a.rd.past,
		WriteTimeout: a.options.RequestTimeout, Lifetime: a.options.MinTimeout, ShuttingDown: a.wt.shuttingDown})
}

// timeSince returns the time since which the user may see the requested objects.
func (a *api) timeSince(u request.User, info request.Info) time.Time {
	switch rev, err := a.rd.past.VisibleSince(u, info, ""); {
	case err != nil: // if the file is damaged, the scrub reports it
		return time.Now()
	case rev > 0:
		return a.rd.st.TimeOf(rev)
	}
	return time.Time{}
}

// may returns a function that reports whether the current rules allow a request.
func may(by *auth.Authenticator) func(u request.User, info request.Info) bool {
	return func(u request.User, info request.Info) bool {
		allowed, _ := by.Decide(u, info)
		return allowed
	}
}

// maySee reports whether the user of r may get another path.
func (a *api) maySee(r *http.Request, path string) bool {
	return a.auth.Check(request.From(r.Context()).User, request.Info{Verb: "get", Path: path}) == nil
}

// page returns the dashboard, which is served at /debug/ui/.
func (a *api) page() *dashboard.Page {
	p := &dashboard.Page{Store: a.storage.st, Types: a.types, Watches: &a.shown, Version: gitVersion, Retention: a.options.HistoryRetention(),
		Deprecations: func(most int) any { return a.usage.List(most) }}
	if a.fc != nil {
		p.Flows = a.fc.dispatcher
	}
	return p
}

// serveGroups handles /apis.
func (a *api) serveGroups(w http.ResponseWriter, r *http.Request) {
	if others := a.aggregated.RemoteVersions(); others != nil {
		discovery.ServeMerged(a.types, others, w, r)
		return
	}
	a.serveDiscovery(w, r)
}

// serveOpenAPI handles /openapi/v3 and the paths below it.
func (a *api) serveOpenAPI(w http.ResponseWriter, r *http.Request) {
	if !a.aggregated.ServeOpenAPI(w, r) {
		a.readAPI.serveOpenAPI(w, r)
	}
}

func (a *api) serveSwagger(w http.ResponseWriter, r *http.Request) {
	discovery.ServeSwagger(a.types, a.aggregated.RemoteVersions(), w, r)
}

// serveAPI authorizes and handles all requests below /api/ and /apis/.
func (a *api) serveAPI(w http.ResponseWriter, r *http.Request) {
	rec := request.From(r.Context())
	if err := a.auth.Authorize(rec); err != nil {
		a.fail(w, r, err)
		return
	}
	if rec.Info.Form.InPath && !rec.Info.ResourceRequest {
		routing.RefuseVerbAlone(w, r)
		return
	}
	if a.aggregated.Serve(w, r) {
		return
	}
	res, err := a.typeOf(w, r, rec)
	if res != nil && err == nil {
		err = a.serveResource(w, r, rec, res)
	}
	a.end(w, r, err)
}

// serveResource handles a request for a known resource.
func (a *api) serveResource(w http.ResponseWriter, r *http.Request, rec *request.Request, res *scheme.Resource) error {
	info := &rec.Info
	// Reserve memory before the write starts. Later the request can no longer be rejected.
	if info.Name != "" && request.IsMutating(info) && !res.Virtual && !request.IsConnect(info.Subresource) {
		_, size, _ := a.rd.st.GetUpTo(res.Key(res.Scope(info.Namespace), info.Name), 0)
		if err := limits.Reserve(r.Context(), w, size); err != nil {
			return err
		}
	}
	if info.Subresource != "" {
		return a.serveSubresource(w, r, rec, res)
	}
	switch info.Verb {
	case "get", "list":
		return a.readAPI.serveResource(w, r, rec, res)
	case "create":
		if res.Group == "" && res.Kind == "Binding" {
			return registry.Bind(a.wr, w, r, rec, res)
		}
		return a.wr.Create(w, r, rec, res)
	}
	if res.Virtual {
		return apierror.MethodNotAllowed()
	}
	switch info.Verb {
	case "watch":
		defer a.instruments.watching(info)()
		hooks, done := a.watchHooks(r, rec, res)
		defer done()
		return a.wt.serve(w, r, rec, res, hooks)
	case "update":
		return a.wr.Update(w, r, rec, res)
	case "patch":
		return a.wr.Patch(w, r, rec, res)
	case "delete":
		return a.wr.Remove(w, r, rec, res)
	case "deletecollection":
		if _, err := parseQuery(res, info); err != nil { // report this error before errors in the body
			return err
		}
		removeEach, err := a.wr.RemoveCollection(w, r, rec, res)
		if err != nil {
			return err
		}
		return a.rd.listAnd(w, r, rec, res, removeEach)
	}
	return apierror.MethodNotAllowed()
}

// watchHooks connects a watch with flow control, metrics and the dashboard. The caller must call
// done when the watch ends.
func (a *api) watchHooks(r *http.Request, rec *request.Request, res *scheme.Resource) (hooks watchHooks, done func()) {
	labels := a.instruments.watchLabels(&rec.Info)
	options, _ := rec.Info.ListOptions() // invalid options are rejected later
	shown := &dashboard.Watch{User: rec.User.Name, Agent: r.UserAgent(), Group: res.Group, Resource: res.Plural, Namespace: rec.Info.Namespace,
		LabelSelector: options.LabelSelector, FieldSelector: options.FieldSelector, Base: res.KeyPrefix(""), Started: rec.Received}
	a.shown.Add(shown)
	return watchHooks{
		begun:  func() { watchBegun(r.Context()) },
		listed: func() { a.instruments.metrics.watchListDone(labels, time.Since(rec.Received)) },
		sent:   a.instruments.metrics.longRunning(labels).sent,
		opened: shown.Follow,
	}, func() { a.shown.Remove(shown) }
}

// serveSubresource handles a request for a subresource.
func (a *api) serveSubresource(w http.ResponseWriter, r *http.Request, rec *request.Request, res *scheme.Resource) error {
	info := &rec.Info
	if info.Verb == "get" && !request.IsConnect(info.Subresource) {
		return a.readAPI.serveSubresource(w, r, rec, res)
	}
	if err := routing.CheckVerb(res, info); err != nil {
		return err
	}
	if request.IsConnect(info.Subresource) {
		return a.connector.Serve(w, r, rec, res)
	}
	switch info.Subresource {
	case "scale":
		return registry.ServeScale(a.wr, w, r, rec, res)
	case "binding":
		return registry.Bind(a.wr, w, r, rec, res)
	case "eviction":
		return registry.Evict(a.wr, w, r, rec, res)
	case "token":
		return registry.IssueToken(a.wr, w, r, rec, res)
	}
	switch info.Verb {
	case "update":
		return a.wr.Update(w, r, rec, res)
	case "patch":
		return a.wr.Patch(w, r, rec, res)
	}
	return apierror.MethodNotAllowed()
}

// noteUse records the use of a deprecated version.
func (a *api) noteUse(r *http.Request, rec *request.Request, res *scheme.Resource) {
	labels, release := a.instruments.labels(r, rec), removedRelease(res.Deprecation)
	a.usage.Record(deprecations.Use{User: rec.User.Name, Agent: r.UserAgent(), Verb: rec.Info.Verb, Group: res.Group, Version: res.Version,
		Resource: res.Plural, Subresource: labels.subresource, Removed: release, UseInstead: replacementOf(res.Deprecation)}, time.Now())
	a.instruments.metrics.deprecatedUse(labels, release)
}

func serveVersion(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet {
		_ = response.Refuse(w, r, apierror.MethodNotAllowed())
		return
	}
	info := *scheme.EffectiveVersion().Info()
	info.GitVersion, info.GitCommit, info.GitTreeState, info.BuildDate = gitVersion, "", "clean", ""
	body, _ := json.MarshalIndent(info, "", "  ")
	response.WriteJSON(w, r, http.StatusOK, body)
}

// ---- The command line ----

// program returns apilet's command line program.
func program() *commandline.Program {
	return &commandline.Program{Name: "apilet", Description: "Apilet is a Kubernetes-compatible API server in one program and one file.",
		Commands: func() []commandline.Command {
			return (&config{namespaceGrace: gc.NamespaceGrace, grace: stoppingGrace}).commands()
		}, Version: printVersion}
}

// commands returns apilet's commands. Their flags write into c.
func (c *config) commands() []commandline.Command {
	return slices.Concat([]commandline.Command{
		{Name: "", ArgCounts: []int{0}, Description: "run the server", Groups: c.Groups(), Run: func(call commandline.Call) error { return c.serve(call.Errors) }},
	}, datacmd.Commands(newConsole), []commandline.Command{
		{Name: "envtest-assets", Args: "DIR", ArgCounts: []int{1}, Description: "create a folder with envtest's binaries, and print the shell command that selects it",
			Groups: []commandline.FlagGroup{{Title: "Flags", Define: func(f *flag.FlagSet) {
				f.StringVar(&c.Base, "base", "", "a data `file` that each server copies at its start; `apilet fork` creates one")
				f.Func("version", "the `version` of Kubernetes that each server emulates, 1.34 to 1.37; a patch version is ignored", func(text string) error {
					c.EmulatedVersion = []string{envtest.MinorVersion(text)}
					return nil
				})
			}}},
			Run: func(call commandline.Call) error {
				if err := c.SetFeatureGates(); err != nil {
					return err
				}
				return envtest.MakeAssets(call.Out, call.Args, c.Base, strings.Join(c.EmulatedVersion, ","))
			}},
	}, nodebootstrap.Commands(newConsole), torture.Commands(), logcmd.Commands())
}

// commandAs runs the program under the name called: as apilet, as the kubectl plug-in, or in place
// of etcd or kube-apiserver in tests.
func commandAs(called string, args []string, stdout, stderr io.Writer) int {
	var err error
	name := envtest.ProgramName(called)
	switch name {
	case logcmd.PluginName:
		return logcmd.Plugin(printVersion).Run(args, stdout, stderr)
	case "etcd":
		ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
		defer cancel()
		context.AfterFunc(ctx, cancel) // a second signal ends the process
		defer outliveHangups()()
		err = envtest.ServeAsEtcd(ctx, args, stdout, stderr)
	case "kube-apiserver":
		_, own := newConfig(stderr)
		args, err = envtest.TranslateAPIServer(args, own, stderr)
		switch {
		case errors.Is(err, flag.ErrHelp):
			envtest.PrintAPIServerHelp(stdout, own)
			return 0
		case errors.Is(err, envtest.ErrShowVersion):
			fmt.Fprintln(stdout, "Kubernetes", gitVersion)
			return 0
		case err == nil:
			return program().Run(append(args, envtest.FlagsBeside(called, args)...), stdout, stderr)
		}
	default:
		return program().Run(args, stdout, stderr)
	}
	if err != nil {
		fmt.Fprintln(stderr, name+":", err)
		return 1
	}
	return 0
}

// outliveHangups ignores SIGHUP until stop is called. Closing a terminal sends SIGHUP, and so does
// logrotate even if no audit log is configured.
func outliveHangups() (stop func()) {
	heard := make(chan os.Signal, 1) // never read; further signals are dropped
	signal.Notify(heard, syscall.SIGHUP)
	return func() { signal.Stop(heard) }
}

// printVersion prints the version of apilet, the format of its data files, and the Kubernetes
// version of /version.
func printVersion(out io.Writer) error {
	_, err := fmt.Fprintf(out, "%sdata file format %d\nKubernetes %s\n", commandline.ThisBuild().Lines("apilet"), store.Format, gitVersion)
	return err
}

// ---- Flags. Most have the names, meanings and defaults of kube-apiserver ----

// newConfig returns a default config and a FlagSet that writes into it.
func newConfig(stderr io.Writer) (*config, *flag.FlagSet) {
	c, f := &config{namespaceGrace: gc.NamespaceGrace, grace: stoppingGrace}, flag.NewFlagSet("apilet", flag.ContinueOnError)
	f.SetOutput(stderr)
	for _, group := range c.Groups() {
		group.Define(f)
	}
	return c, f
}
