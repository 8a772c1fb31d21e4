// Apilet is a Kubernetes-compatible API server in one program with one bbolt file. Unmodified
// kubectl, client-go and controller-runtime work with it. A request passes the parts below in this
// order. Names without .go are packages under internal/.
//
//	         ┌──────────────────────────────── an api ────────────────────────────────┐
//	request ─▶ record, warn.go, deadline ──▶ auth ──▶ apf.go, flowcontrol ──▶ routes  │
//	         └───────────────────────────────────────────────────────────┬────────────┘
//	                       ┌─────────────────────────────────────────────┤
//	                       ▼ reads                                       ▼ writes
//	                list.go, watch.go       registry ──▶ patch, fieldmanager, admission, kinds
//	                       │                                             │
//	                       └────────▶ store ◀────────────────────────────┘ ◀── gc
//
// The first half of this file starts the server, runs its background work and health checks, and
// stops it. The second half defines the api type, which handles requests and does not depend on
// the life cycle. It contains the handler chain, the route table and the handlers at its ends. The
// command line comes last.
//
//	Record, Authenticate, Impersonate, limitConcurrency, withPast ──▶ routes ──▶ serveAPI ──▶ serveResource
//
// Two types handle requests. A readAPI (list.go) serves reads of types, objects and lists at one
// revision. An api serves the present, and adds writes, watches and pages about the server. For a
// request about the past (/at/MOMENT/...) the api creates a readAPI.
//
// Invariant: every route checks authorization. Most handlers are wrapped in withAuthorization.
// serveAPI authorizes the request itself. The remaining handlers check each returned object.
package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
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
	"apilet/internal/continuetoken"
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
	"apilet/internal/instrumentation"
	"apilet/internal/kubeconfig"
	"apilet/internal/kubelet"
	"apilet/internal/limits"
	"apilet/internal/logging"
	"apilet/internal/logonce"
	"apilet/internal/metrics"
	"apilet/internal/nodebootstrap"
	"apilet/internal/notify"
	"apilet/internal/options"
	"apilet/internal/proxy"
	"apilet/internal/registry"
	"apilet/internal/request"
	"apilet/internal/routing"
	"apilet/internal/scan"
	"apilet/internal/scheme"
	"apilet/internal/scheme/internalversion"
	"apilet/internal/serving"
	"apilet/internal/startgc"
	"apilet/internal/store"
	"apilet/internal/torture"
	"apilet/internal/webhook"
)

const (
	bookmarkInterval = time.Minute
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
	defer drain.IgnoreHangups()()
	c.log = logging.New(stderr, c.LogFormat)
	defer logging.CaptureGlobal(c.log)()
	stop, forget := drain.SignalContext(stopWithin+c.ShutdownDelay, func(why string) {
		c.log.Error().Msg(why + ": exiting now, without waiting for unfinished requests. Every write that was " +
			"acknowledged is kept")
		os.Exit(1)
	}, syscall.SIGTERM, syscall.SIGINT)
	defer forget()
	c.starting = stop
	c.manager = health.FindServiceManager(os.Getenv)
	context.AfterFunc(stop, func() { c.logNotified(c.manager.NotifyStopping()) })
	var serving atomic.Pointer[server] // nil while a server starts or stops
	watched, unwatch := context.WithCancel(context.Background())
	defer unwatch()
	alive := func(ctx context.Context) error { return serving.Load().alive(ctx) }
	go c.manager.RunWatchdog(watched, alive, func(err error) {
		c.log.Error().Err(err).Msg("the liveness check of the server itself failed; not notifying the systemd watchdog")
	})
	for retried := false; ; {
		own := *c // startServer completes this copy
		s, err := startServer(&own)
		if !retried && replicaFailed(&c.Options, err) {
			c.log.Error().Err(err).Msg("cannot start with this replica of etcd; retrying with a new one")
			retried = true
			continue
		}
		if err != nil && stop.Err() != nil {
			c.log.Warn().Err(err).Msg("the server was stopped before it was ready")
			return nil
		}
		if err != nil {
			return err
		}
		retried = false
		serving.Store(s)
		go startgc.Collect()
		select {
		case <-stop.Done():
			c.log.Info().Stringer("shutdown-delay-duration", c.ShutdownDelay).Msg("stopping")
			s.announceShutdown(c.ShutdownDelay)
		case err = <-s.failed:
		case why := <-s.storage.cluster.Lost():
			c.log.Error().Err(why).Msg("the replica of etcd is lost; restarting the server within this process")
			serving.Store(nil)
			c.Listen = s.frontend.address // keep the port that the system has assigned
			if err := s.stop(); err != nil && !errors.Is(err, store.ErrDamaged) {
				return err
			}
			continue
		}
		return errors.Join(err, s.stop())
	}
}

// logNotified logs an error from notifying the service manager.
func (c *config) logNotified(err error) {
	if err != nil {
		c.log.Warn().Err(err).Msg("cannot notify systemd")
	}
}

// ---- The server ----

// A server is a running apilet. It owns the start, the background work and the shutdown. Its api
// handles requests.
type server struct {
	cfg        *config
	log        zerolog.Logger
	clock      *clock.Clock
	troubles   *logonce.Log
	metrics    *metrics.Metrics
	audit      *audit.Log // nil if neither audit flag is set
	storage    *storage
	auth       *auth.Authenticator
	api        *api
	frontend   frontend
	components components
	shutdown   shutdown
	cancelWork context.CancelFunc // cancels the background work
	work       drain.Work         // the background work
	failed     chan error         // receives an error if the server ends unexpectedly
}

// A frontend holds the listener, the certificates and the HTTP server.
type frontend struct {
	endpoint  serving.Endpoint
	listener  net.Listener
	address   string // the address, with the assigned port
	url       string
	tlsConfig *tls.Config // nil means plain HTTP
	http      *http.Server
	conns     drain.Conns
	probe     health.Probe  // checks this server over its own port
	clockSet  chan struct{} // has a token if the machine's clock was set, so that certificates are checked
}

// addrPort returns the address of the listener.
func (f *frontend) addrPort() netip.AddrPort { return f.listener.Addr().(*net.TCPAddr).AddrPort() }

// components holds the components that run in the background.
type components struct {
	webhooks    *admission.Webhooks
	policies    *policy.Policies
	definitions *crd.Definitions
	proxy       certs.ProxyClientCertificate // the client certificate for other servers
	apiServices *bootstrap.APIServiceReconciler
	namespaces  *bootstrap.NamespaceReconciler // nil without --namespace-defaults or --controllers
	flows       *bootstrap.FlowReconciler      // reloads the configuration of flow control; nil without flow control
	endpoints   *bootstrap.Endpoints
	defaultsErr error // the error of creating the default objects, if any
}

// A shutdown announces the shutdown of a server.
type shutdown struct {
	// announced is closed when the shutdown begins. From then on /readyz fails.
	announced chan struct{}
	once      sync.Once     // closes announced
	stopping  chan struct{} // closed when the server stops serving; watches end then
}

// phases are called in this order. The first error ends the start. A phase returns an error if it
// cannot read the parts of the data file in the last column. preflight reads all of them before
// anything is written, so that a rejected file is not changed. No phase requires an object:
// unreadable objects are logged and omitted until they are repaired.
var phases = []func(*server, context.Context) error{
	//                            STEP                                           NEEDS OF THE FILE
	(*server).listen,          // bind the port before creating any file
	(*server).prepare,         // connect to etcd, read certificates and users, open the audit log
	(*server).open,            // open the data file, or the replica of etcd     meta pages, format, lineage
	(*server).preflight,       // read secrets and restrict access to the file   marks of maintenance, key of accounts
	(*server).assemble,        // create the reader, the writer and the api
	(*server).buildAdmission,  // build the chain of admission plug-ins
	(*server).registerMetrics, // register the collectors of metrics
	(*server).populate,        // load the stored configuration and create the required objects
	(*server).secure,          // set up TLS on the listener
	(*server).createDefaults,  // create the default Services, endpoints and CA bundles
	(*server).serve,           // start to handle requests, and start the background work
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
			return nil, s.abort(err)
		}
	}
	return s, nil
}

// newServer returns a server that has not been started.
func newServer(c *config, types *scheme.Registry) *server {
	now := clock.New(c.clock)
	c.Auth.Log, c.Auth.Now = c.log, now.Now
	s := &server{cfg: c, log: c.log, clock: now, troubles: logonce.New(c.log),
		metrics: metrics.New(scheme.MinorVersion()), failed: make(chan error, 1),
		frontend: frontend{endpoint: serving.Endpoint{Options: &c.Options, Log: c.log, Now: now.Now},
			clockSet: make(chan struct{}, 1)},
		shutdown: shutdown{announced: make(chan struct{}), stopping: make(chan struct{})}}
	s.storage = &storage{options: &c.Options, types: types, clock: now, log: c.log, troubles: s.troubles}
	s.api = &api{readAPI: readAPI{types: types, log: c.log}, storage: s.storage, options: &c.Options,
		usage: deprecations.NewTracker(), upgrades: limits.NewUpgradeSlots()}
	return s
}

// abort cleans up after a failed start.
func (s *server) abort(err error) error {
	if s.frontend.listener == nil {
		return err
	}
	return errors.Join(s.storage.abort(err), s.frontend.listener.Close())
}

func (s *server) listen(context.Context) (err error) {
	if s.frontend.listener, err = s.frontend.endpoint.Listen(); err == nil {
		s.frontend.address = s.frontend.listener.Addr().String()
	}
	return err
}

func (s *server) prepare(ctx context.Context) error {
	if err := s.storage.readKeys(); err != nil {
		return err
	}
	if err := s.storage.reachEtcd(ctx); err != nil {
		return err
	}
	err := s.frontend.endpoint.Open(s.storage.authorityShared(ctx))
	if err != nil {
		return fmt.Errorf("--cert-dir: %w", err)
	}
	if s.auth, err = auth.New(s.cfg.Auth); err != nil {
		return err
	}
	s.audit, err = instrumentation.OpenAudit(&s.cfg.Audit, s.api.types, s.metrics, s.troubles, s.log)
	return err
}

func (s *server) open(ctx context.Context) error { return s.storage.open(ctx) }

func (s *server) preflight(context.Context) (err error) {
	if err = s.storage.preflight(); err != nil {
		return err
	}
	s.protectSecrets()
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

// protectSecrets restricts access to the data file, and warns about files with secrets that other
// users can read or that git would commit.
func (s *server) protectSecrets() {
	written := s.cfg.WrittenSecrets()
	if path := s.storage.st.File.Path; !s.cfg.Ephemeral {
		if _, err := certs.RestrictPermissions(s.log, path); err != nil {
			s.log.Error().Err(err).Msg("cannot make the data file private (mode 0600)")
		}
		written = append(written, path, path+store.LogSuffix)
	}
	certs.WarnWorldReadable(s.log, s.cfg.SecretFiles()...)
	datafile.WarnCommittable(s.log, written...)
}

// assemble creates the components that use the store.
func (s *server) assemble(context.Context) (err error) {
	c, st, types, a := s.cfg, s.storage.st, s.api.types, s.api
	if s.auth.UsesNodeAuthorizer() {
		s.auth.Nodes = node.New(st, types, s.reporter("reading what the pods of nodes refer to"))
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
	if alloc.Report = s.reporter("cluster IPs and node ports"); c.ManagedFields {
		alloc.Manager = "apilet"
	}
	lost := corrupt.NewObjects(st, s.log)
	tell := lost.AddSealed
	s.storage.sealed.Store(&tell)
	a.auth, a.deprecated = s.auth, &deprecatedVersions{server: scheme.MinorVersion(), denied: c.DenyDeprecated,
		used: a.recordDeprecated}
	a.rd = &readHandler{Source: scan.NewSource(st, lost), tokens: continuetoken.NewCodec(keys),
		storage: s.storage.backing().check, past: history.Visibility{Store: st, Authorize: allows(s.auth)}}
	a.wt = &watchHandler{readHandler: a.rd, minTimeout: c.MinTimeout, bookmarks: bookmarkInterval,
		patience: c.RequestTimeout, shuttingDown: s.shutdown.stopping, notifier: notify.New(st)}
	a.wr = &registry.Writer{Store: st, Types: types, Auth: s.auth, Allocator: alloc, Corrupt: lost,
		Validating: c.Validate, ManagedFields: c.ManagedFields}
	a.instruments = &instrumentation.Recorder{Types: types, Metrics: s.metrics, Audit: s.audit,
		Findings: findings.New(findings.LogTo(s.log)), Log: s.log, Verbosity: c.Verbosity, Timeout: c.RequestTimeout,
		Bytes: limits.NewMemory(c.RequestTimeout / 4), Warnings: newWarningRecorder}
	return nil
}

// buildAdmission builds the chain of admission plug-ins for writes.
func (s *server) buildAdmission(context.Context) error {
	st, types, wr, parts := s.storage.st, s.api.types, s.api.wr, &s.components
	parts.webhooks = &admission.Webhooks{Store: st, Types: types, Log: s.log, Authorize: s.auth.Decide,
		Services: &webhook.ServiceResolver{Store: st, Types: types}, OnCall: s.metrics.WebhookCalled,
		Defaults: registry.FillDefaults, Corrupt: wr.Corrupt, Report: s.troubles.Report}
	parts.webhooks.Reload()
	configuration, err := plugins.ReadConfiguration(s.cfg.AdmissionConfig)
	if err != nil {
		return fmt.Errorf("--admission-control-config-file: %w", err)
	}
	parts.policies = &policy.Policies{Store: st, Types: types, Log: s.log, Authorize: s.auth.Decide,
		Defaults: registry.FillDefaults, Corrupt: wr.Corrupt, FieldManager: wr.FieldManager,
		Convert: admission.ConvertTo, OnCheck: s.metrics.PolicyChecked}
	parts.policies.Reload()
	mutating, validating := plugins.Policies(parts.policies)
	table := plugins.Table(plugins.Config{Store: st, Types: types, Authorize: s.auth.Decide, Webhooks: parts.webhooks,
		MutatingPolicy: mutating, ValidatingPolicy: validating, Configuration: *configuration,
		CreateNamespace: wr.CreateNamespace, ControllerManager: !s.cfg.Controllers,
		OnPodCheck: s.metrics.PodChecked, Tolerations: s.cfg.Tolerations, Clock: s.cfg.clock})
	on, err := configuration.Select(table, s.cfg.EnabledPlugins, s.cfg.DisabledPlugins)
	if err != nil {
		return err
	}
	wr.Admission, wr.ProvisionsNamespaces = admission.NewChain(table, on), on["NamespaceAutoProvision"]
	wr.OnCommit = append(wr.OnCommit, parts.webhooks.OnCommit, parts.policies.OnCommit)
	if on["ResourceQuota"] {
		if wr.Quotas, err = quota.New(st, types); err != nil {
			s.log.Error().Err(err).Msg("cannot read ResourceQuotas; some of them are not enforced")
		}
	}
	parts.definitions = crd.NewDefinitions(st, types, wr, s.log)
	parts.definitions.Report = s.reporter("definitions of custom resources")
	s.api.definitions = parts.definitions
	return nil
}

// registerMetrics registers the collectors of metrics.
func (s *server) registerMetrics(context.Context) error {
	state := serverState{version: gitVersion, cluster: s.storage.cluster, certificates: s.frontend.endpoint.Certificates,
		clockLag: s.clock.Lag, leads: s.storage.leads.Load,
		data: &datafile.Collector{Store: s.storage.st, Types: s.api.types, Scrub: s.storage.scrub,
			Corrupt: s.api.rd.Corrupt, TrackedWrites: s.api.wr.FieldTracking.Load}}
	state.register(s.metrics.Registry, append(s.storage.keys.Collectors(), s.api.instruments.Findings)...)
	return nil
}

// populate loads the stored definitions, roles and flow control configuration, and creates the
// objects that every server needs.
func (s *server) populate(ctx context.Context) error {
	st, types, wr, parts := s.storage.st, s.api.types, s.api.wr, &s.components
	first := bootstrap.Initializer{Writer: wr, Types: types}
	if err := errors.Join(first.Namespaces(ctx), parts.definitions.Sync(ctx)); err != nil {
		return err
	}
	if s.cfg.Controllers && s.cfg.NamespaceDefaults {
		parts.namespaces = bootstrap.NewNamespaceReconciler(st, types, wr, s.cfg.Auth.OwnCA, s.log)
		if err := parts.namespaces.ReconcileAll(ctx, bootstrap.FirstNamespaces); err != nil {
			return err
		}
		wr.OnNamespaceCreated = parts.namespaces.NamespaceCreated
	}
	if s.cfg.FlowControl {
		fc := newFlowControl(s.cfg.Seats(), s.cfg.RequestTimeout, s.storage.countStored)
		s.metrics.Registry.MustRegister(fc.dispatcher)
		if fc.followMachine(st, s.log); fc.auto != nil {
			s.metrics.Registry.MustRegister(fc.auto.Metrics())
		}
		s.api.fc, parts.flows = fc, bootstrap.NewFlowReconciler(st, types, wr, fc.configure)
		if err := parts.flows.Start(ctx); err != nil {
			return err
		}
	}
	parts.apiServices = bootstrap.NewAPIServiceReconciler(st, types, wr)
	if err := parts.apiServices.Reconcile(ctx, true); err != nil {
		return err
	}
	if err := cmp.Or(s.aggregate(ctx), s.connectKubelets()); err != nil {
		return err
	}
	if s.auth.EnforcesRBAC() {
		policy := bootstrap.NewPolicyReconciler(st, types, wr, s.auth,
			func(err error) { s.log.Error().Err(err).Msg("cannot read the roles and bindings") })
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
	api, parts := s.api, &s.components
	g := &aggregation.Aggregator{Store: s.storage.st, Types: api.types, Services: parts.webhooks.Services,
		Certificate: parts.proxy.Certificate, SaveStatus: api.wr.SaveAPIServiceStatus, IsLeader: s.storage.leads.Load,
		ResponseHeaderTimeout: s.cfg.RequestTimeout, RejectRedirects: s.cfg.Aggregation.RejectRedirects,
		Upgrades:      api.upgrades,
		OnLongRunning: returnWatchSeats, WriteError: api.fail, Stopping: s.shutdown.stopping,
		Report:        s.reporter("keeping up with the servers that APIServices name"),
		OnUnavailable: s.metrics.APIServiceUnavailable}
	g.OnFirstUse = func() {
		if err := s.openProxyCertificate(); err != nil {
			s.log.Error().Err(err).Msg("there is no client certificate for aggregated API servers")
		}
		s.publishAuthorities(ctx)
	}
	s.metrics.Registry.MustRegister(g)
	api.aggregated = g
	if !s.cfg.Auth.Insecure {
		if err := s.openProxyCertificate(); err != nil {
			return err
		}
	}
	return g.Load(ctx)
}

// connectKubelets creates the connector, which forwards requests to kubelets and Pods.
func (s *server) connectKubelets() error {
	flags := &s.cfg.Kubelet
	certificate, err := s.frontend.endpoint.KubeletCertificate()
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
	api := s.api
	api.connector = &kubelet.Connector{Clients: kubelet.NewClients(config), Store: s.storage.st, Types: api.types,
		Admission: api.wr.Admission, MayCreate: s.auth.MayCreate, WriteError: api.fail,
		Forward: &proxy.Forwarder{Slots: api.upgrades, Stopping: s.shutdown.stopping}}
	return nil
}

// openProxyCertificate reads or creates the client certificate for other servers.
func (s *server) openProxyCertificate() error {
	flags := &s.cfg.Aggregation
	config := certs.Config{Dir: s.cfg.CertDir, Now: s.cfg.Auth.Now, Log: s.log}
	return s.components.proxy.Open(config, flags.ProxyCert, flags.ProxyKey)
}

func (s *server) secure(context.Context) (err error) {
	f := &s.frontend
	f.url, f.tlsConfig, err = f.endpoint.Secure(f.listener, s.auth.HandshakeCAs())
	s.api.keysURL = f.url + "/openid/v1/jwks"
	return err
}

// createDefaults creates objects such as the default Services. If that fails, it logs the error and
// continues.
func (s *server) createDefaults(ctx context.Context) error {
	parts, at, blocks := &s.components, s.frontend.addrPort(), s.api.wr.Allocator.Ranges
	initializer := bootstrap.Initializer{Writer: s.api.wr, Types: s.api.types, Log: s.log,
		Warn: func(text string) { s.log.Warn().Msg(text) }}
	parts.endpoints = &bootstrap.Endpoints{Initializer: initializer, Etcd: s.storage.cluster,
		Reconciler: s.cfg.EndpointReconciler, Advertised: s.cfg.Advertised, IPv6: blocks[0].Addr().Is6()}
	parts.defaultsErr = errors.Join(initializer.Cluster(ctx, blocks, int(at.Port())), parts.endpoints.Start(ctx, at))
	if parts.defaultsErr != nil {
		s.log.Error().Err(parts.defaultsErr).Msg("cannot create some of the cluster's default objects")
	}
	s.publishAuthorities(ctx)
	initializer.PublishClusterInfo(ctx, &s.cfg.Auth, s.frontend.url, at, blocks[0].Addr().Is6())
	return nil
}

// publishAuthorities publishes the CAs of accepted client certificates and of the front proxy for
// other programs in the cluster. Changes to the CA files are published at the next start.
func (s *server) publishAuthorities(ctx context.Context) {
	initializer := bootstrap.Initializer{Writer: s.api.wr, Types: s.api.types, Log: s.log}
	initializer.PublishAuthorities(ctx, &s.cfg.Auth, s.components.proxy.FrontProxy())
}

// serve starts to handle requests in the background.
func (s *server) serve(context.Context) error {
	s.api.health = []*health.Endpoint{
		{Name: "livez", Checks: s.liveness()},
		{Name: "healthz", Checks: append(s.liveness(), s.storage.keyChecks()...)},
		{Name: "readyz", Checks: s.readiness()},
	}
	for _, endpoint := range s.api.health {
		endpoint.OnResult = s.recordCheck(endpoint.Name)
	}
	s.frontend.http = &http.Server{
		Handler:           drain.CloseConnections(s.shutdown.announced, s.api.handler()),
		TLSConfig:         s.frontend.tlsConfig,
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       s.cfg.RequestTimeout + 5*time.Second,
		WriteTimeout:      s.cfg.RequestTimeout + 10*time.Second,
		IdleTimeout:       3 * time.Minute,
		// The deadline of a stream has no effect if the whole HTTP/2 connection is stuck.
		HTTP2:          &http.HTTP2Config{WriteByteTimeout: s.cfg.RequestTimeout},
		MaxHeaderBytes: 64 << 10,
		ConnContext:    withConn,
		ConnState:      s.frontend.conns.Track,
		ErrorLog:       logging.HTTPErrors(s.log, s.metrics.TLSHandshakeErrors.Inc),
	}
	if err := s.frontend.endpoint.WriteKubeconfig(); err != nil {
		return err
	}
	s.frontend.probe = health.NewProbe(s.frontend.addrPort(), s.frontend.tlsConfig != nil)
	s.startWorkers()
	go s.api.wt.notifier.Run(s.shutdown.stopping)
	go s.accept()
	st := s.storage.st
	s.log.Info().Str("url", s.frontend.url).Str("page", s.frontend.url+request.PathUI).
		Str("data", st.File.Path).Int64("revision", st.Revision()).Msg("serving")
	s.cfg.logNotified(s.cfg.manager.NotifyReady("serving " + s.frontend.url))
	return nil
}

// alive is the check for the watchdog. It requests /livez on the server's own port and waits for
// the writer of the data file. It ignores problems that a restart does not fix, such as a full
// disk.
func (s *server) alive(ctx context.Context) error {
	if s == nil {
		return nil
	}
	return errors.Join(s.frontend.probe.Get(ctx, "/livez"), s.storage.st.PingWriter(ctx))
}

// reporter returns a function that logs when the named work begins to fail and when it recovers.
func (s *server) reporter(what string) func(error) {
	return func(err error) { s.troubles.Report(what, err) }
}

// A worker does background work until its context ends.
type worker struct {
	name string
	on   bool // whether this server has the work
	run  func(context.Context)
}

// workers returns the background work of kube-apiserver.
func (s *server) workers() []worker {
	st, types, api, parts := s.storage, s.api.types, s.api, &s.components
	collector := &gc.Collector{Store: st.st, Maintenance: st.upkeep, Types: types, Writer: api.wr,
		EventTTL: s.cfg.EventTTL, Grace: s.cfg.namespaceGrace, Report: s.troubles.Report,
		StartRequest: api.instruments.BeginInternal, RemoteDeleter: api.aggregated.EmptyNamespace}
	ready := health.Endpoint{Name: "readyz", Checks: s.readiness(), OnResult: s.recordCheck("readyz")}
	return []worker{
		{"the controllers", true, func(ctx context.Context) {
			st.lead(ctx, func(ctx context.Context) { s.runControllers(ctx, collector) })
		}},
		{"following what other servers write", st.cluster != nil, api.wr.FollowOtherServers},
		{"following what pods refer to", true, s.auth.Nodes.Run},
		{"following definitions of types", true, parts.definitions.Run},
		{"keeping up with other servers", true, api.aggregated.Run},
		{"following admission policies", true, parts.policies.Run},
		{"the scrub of the data file", true, st.scrub.Run},
		{"the findings", true, api.instruments.Findings.Run},
		{"the search for objects that cannot be read", true, func(ctx context.Context) {
			err := api.rd.Corrupt.Scan(ctx, corrupt.NewDecodeCheck(types))
			if err != nil && ctx.Err() == nil {
				s.log.Error().Err(err).Msg("cannot search for objects that cannot be decoded")
			}
		}},
		{"looking at the file about encryption", st.keys.Enabled(), st.keys.Run},
		{"heeding hangups", true, func(ctx context.Context) {
			s.cfg.manager.ReloadOnHangup(ctx, "serving "+s.frontend.url, s.reopenAudit, s.cfg.logNotified)
		}},
		{"the checks of /readyz", true, func(ctx context.Context) { ready.Run(ctx, health.CheckInterval) }},
		{"watching the clock", true, func(ctx context.Context) {
			s.clock.Run(ctx, clock.CheckInterval, s.noteClockSet)
		}},
		{"renewing certificates", true, func(ctx context.Context) {
			s.frontend.endpoint.Run(ctx, s.frontend.clockSet)
		}},
		{"telling where this server is", true, func(ctx context.Context) {
			parts.endpoints.Run(ctx, s.shutdown.announced)
		}},
		{"compaction", true, func(ctx context.Context) {
			kept := s.cfg.HistoryRetention()
			st.upkeep.Run(ctx, s.cfg.CompactionInterval, kept, func(done store.Compaction, err error) {
				st.afterCompaction(ctx, collector, done, err)
			})
		}},
		{"flow control", parts.flows != nil, func(ctx context.Context) { api.fc.run(ctx) }},
		{"following flow schemas", parts.flows != nil, func(ctx context.Context) {
			parts.flows.Run(ctx, parts.flows.Apply, s.reporter("reading flow schemas and priority levels"))
		}},
	}
}

// runControllers runs the controllers of kube-controller-manager. If several servers share an etcd
// cluster, only the leader runs them.
func (s *server) runControllers(ctx context.Context, collector *gc.Collector) {
	st, types, wr, on := s.storage.st, s.api.types, s.api.wr, s.cfg.Controllers
	policies := policy.TypeChecker{Store: st, Types: types, Schemas: discovery.KindSchemas,
		Report: s.reporter("checking the types of admission policies"), Write: wr.SavePolicyStatus}
	tokens := bootstrap.NewTokenReconciler(st, types, wr, s.log)
	var running sync.WaitGroup
	defer running.Wait()
	for _, c := range []worker{
		{"collecting garbage", on, collector.Run},
		{"checking the types of admission policies", on, policies.Run},
		{"filling Secrets with tokens", on, func(ctx context.Context) {
			collector.RunUntilDone(ctx, "filling Secrets with tokens", func(ctx context.Context) error {
				return tokens.Run(ctx, s.reporter("tokens for Secrets"))
			})
		}},
		{"reconciling namespaces", s.components.namespaces != nil, func(ctx context.Context) {
			collector.RunUntilDone(ctx, "reconciling namespaces", s.components.namespaces.Run)
		}},
		{"repairing cluster IPs and node ports", true, wr.Allocator.Run},
		{"writing the status of ResourceQuotas", true, func(ctx context.Context) {
			wr.WriteQuotas(ctx, s.reporter("writing what is used into the status of ResourceQuotas"))
		}},
		{"keeping the APIServices of custom resources", true, func(ctx context.Context) {
			s.components.apiServices.Run(ctx, s.reporter("keeping the APIServices of custom resources"))
		}},
	} {
		if c.on {
			running.Go(func() { c.run(ctx) })
		}
	}
}

// startWorkers starts the background work. stop ends it.
func (s *server) startWorkers() {
	ctx, cancel := context.WithCancel(context.Background())
	s.cancelWork = cancel
	for _, w := range s.workers() {
		if w.on {
			s.work.Go(w.name, func() { w.run(ctx) })
		}
	}
}

// reopenAudit reopens the audit log after a rotation.
func (s *server) reopenAudit() {
	if s.audit == nil {
		return
	}
	if err := s.audit.Reopen(); err != nil {
		s.log.Error().Err(err).Msg("cannot reopen the audit log")
	}
}

// noteClockSet logs that the machine's clock was set, and triggers a check of the certificates.
// Package clock decides whether the new time is plausible.
func (s *server) noteClockSet(step time.Duration) {
	s.log.Warn().Str("by", step.Round(time.Second).String()).Time("now", s.clock.Now()).
		Msg("the machine's clock has been set")
	select {
	case s.frontend.clockSet <- struct{}{}:
	default: // a check is already pending
	}
}

// accept serves until the listener is closed.
func (s *server) accept() {
	if err := serving.Accept(s.frontend.http, s.frontend.listener); !errors.Is(err, http.ErrServerClosed) {
		s.failed <- err
	}
}

// announceShutdown announces the shutdown and keeps serving for delay, so that clients and load
// balancers switch to other servers.
func (s *server) announceShutdown(delay time.Duration) {
	s.shutdown.once.Do(func() { close(s.shutdown.announced) })
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

// stop waits for running requests, ends watches and closes the store. All waits are limited. If a
// limit is reached, stop logs a warning and continues. No acknowledged write is lost, since writes
// are in the file or in etcd before their responses.
func (s *server) stop() error {
	s.announceShutdown(0)
	// Watches end after the listener is closed, because their clients reconnect immediately.
	s.frontend.http.RegisterOnShutdown(func() { close(s.shutdown.stopping) })
	ctx, cancel := context.WithTimeout(context.Background(), s.cfg.grace)
	defer cancel()
	time.AfterFunc(drain.Delay, s.frontend.conns.Close)
	err := s.frontend.http.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		s.log.Warn().Int("connections", s.frontend.conns.Busy()).Stringer("waited", s.cfg.grace).
			Msg("shutdown: closing the connections of unfinished requests")
		err = s.frontend.http.Close()
	}
	s.cancelWork()
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
		s.api.wt.notifier.Close()
		s.components.webhooks.Close()
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
	return append([]health.Check{health.Ping, {Name: "etcd", Err: s.storage.backing().seen, WarnOnly: true}},
		s.startHooks()...)
}

func (s *server) startHooks() []health.Check {
	return health.StartHooks(s.auth.EnforcesRBAC(), s.components.flows != nil,
		func() error { return s.components.defaultsErr })
}

// readiness returns the checks of /readyz. A failed check makes the server unready, because the
// server cannot do its work. A check with Warns set leaves it ready: the server still answers reads
// and deletes, and administrators need access to fix the problem.
func (s *server) readiness() []health.Check {
	st := s.storage
	checks := []health.Check{
		health.Ping,
		health.Shutdown(s.shutdown.announced),
		{Name: "store", Err: st.st.File.Writable},
		{Name: "damage", Err: st.scrub.CheckDamage},
		{Name: "scrub", Err: st.scrub.CheckLastScrub},
		{Name: "unreadable", Err: s.api.rd.Corrupt.Check},
		{Name: "disk", Err: st.st.HasRoom, WarnOnly: true},
		{Name: "certificates", Err: s.frontend.endpoint.CheckCertificates, WarnOnly: true},
		{Name: "clock", Err: s.clock.Check, WarnOnly: true},
	}
	if s.audit != nil {
		checks = append(checks, health.Check{Name: "audit", Err: s.audit.CheckHealth, WarnOnly: true})
	}
	holds := st.backing() // under the names of kube-apiserver's storage checks
	checks = append(checks,
		health.Check{Name: "quota", Err: holds.quota, WarnOnly: true},
		health.Check{Name: "etcd", Err: holds.check},
		health.Check{Name: "etcd-readiness", Err: holds.seen})
	return slices.Concat(checks, st.keyChecks(), health.AlwaysHealthy("informer-sync"), s.startHooks())
}

// recordCheck returns a function that records the result of a check in a metric. For readyz it also
// logs the checks that no other part of the server logs.
func (s *server) recordCheck(endpoint string) func(check string, err error) {
	return func(check string, err error) {
		s.metrics.HealthChecked(endpoint, check, err == nil)
		logged := append([]string{"damage", "scrub", "unreadable", "certificates", "clock"},
			s.storage.backing().logged...)
		if endpoint == "readyz" && slices.Contains(logged, check) {
			s.troubles.Report("/readyz/"+check, err)
		}
	}
}

// ---- The chain and the routes ----

// An api handles requests about the present. For requests about the past it creates a readAPI.
type api struct {
	readAPI
	wr          *registry.Writer
	wt          *watchHandler
	definitions *crd.Definitions
	aggregated  *aggregation.Aggregator // forwards requests to other API servers
	connector   *kubelet.Connector      // forwards requests to kubelets and Pods
	upgrades    *limits.Slots           // limits upgraded connections of all handlers together
	storage     *storage
	fc          *flowControl // nil without flow control
	instruments *instrumentation.Recorder
	usage       *deprecations.Tracker
	watches     dashboard.Watches  // the running watches
	health      []*health.Endpoint // /livez, /healthz and /readyz
	options     *options.Options
	keysURL     string // URL of the keys that verify the tokens of service accounts
}

// handler returns the chain of handlers for every request, from the outermost to the routes.
func (a *api) handler() http.Handler {
	way := a.routes()
	steps := []func(http.Handler) http.Handler{
		a.instruments.Record, a.auth.Authenticate, a.auth.Impersonate, a.limitConcurrency, a.withPast,
	}
	if log := a.instruments.Audit; log != nil && log.Policy != nil {
		steps = slices.Insert(steps, 2, a.instruments.Received)
	}
	for _, step := range slices.Backward(steps) {
		way = step(way)
	}
	return way
}

// limitConcurrency limits the number of concurrent requests: by flow control, or by a plain count
// if flow control is disabled.
func (a *api) limitConcurrency(next http.Handler) http.Handler {
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
		endpoint.MayView = a.mayGet
		r.Handle("/"+endpoint.Name, a.withAuthorization(endpoint.ServeHTTP))
		r.Handle("/"+endpoint.Name+"/*", a.withAuthorization(endpoint.ServeHTTP))
	}
	r.Handle("/version", a.withAuthorization(discovery.ServeVersion(gitVersion)))
	r.Handle("/version/", a.withAuthorization(discovery.ServeVersion(gitVersion)))
	if config, ok := a.auth.Accounts.OpenIDConfiguration(cmp.Or(a.options.JWKSURI, a.keysURL)); ok {
		keys := routing.Document("application/jwk-set+json", a.auth.Accounts.KeySet())
		r.Handle("/.well-known/openid-configuration", a.withAuthorization(routing.Document("application/json", config)))
		r.Handle("/openid/v1/jwks", a.withAuthorization(keys))
	}
	r.Handle("/metrics", a.withAuthorization(a.instruments.Metrics.Handler().ServeHTTP))
	r.Handle("/openapi/v2", a.withAuthorization(a.serveSwagger))
	r.Handle("/openapi/v3", a.withAuthorization(a.serveOpenAPI))
	r.Handle("/openapi/v3/*", a.withAuthorization(a.serveOpenAPI))
	r.Handle("/debug/deprecations", a.withAuthorization(a.usage.ServeHTTP))
	r.Handle(history.Path, a.history()) // authorizes each object in its response
	r.HandleFunc(findings.Path, func(w http.ResponseWriter, r *http.Request) {
		a.instruments.Findings.Serve(w, r, findings.Rights{
			Authorize: a.rd.past.Authorize, MayListAny: a.auth.MayListAnything,
			VisibleSince: a.rd.past.TimeSince})
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
	backups := datafile.Backups{Store: a.storage.st, Maintenance: a.storage.upkeep, Ephemeral: a.options.Ephemeral,
		RevisionAt: a.moments().Resolve, WriteError: a.fail}
	r.Handle(request.PathBackup, a.withAuthorization(backups.ServeHTTP))
	page := a.page()
	r.Handle("/debug/ui", http.RedirectHandler(request.PathUI, http.StatusMovedPermanently))
	r.HandleFunc(request.PathUI+"*", page.ServePage) // no authorization, since the page contains no data
	r.Handle(dashboard.DataPath, a.withAuthorization(page.ServeData))
	r.Handle("/api", a.withAuthorization(a.serveVersions))
	r.Handle("/apis", a.withAuthorization(a.serveGroups))
	r.HandleFunc("/api/*", a.serveAPI)
	r.HandleFunc("/apis/*", a.serveAPI)
	r.Handle("/", dashboard.RedirectBrowsers(a.withAuthorization(routing.Index(r, a.types, checked...))))
	r.NotFound(a.withAuthorization(http.NotFound))
	r.MethodNotAllowed(routing.AnyMethod(r))
	return r
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

// withPast serves requests below /at/MOMENT/ as of that moment, and passes all other requests to
// now.
func (a *api) withPast(now http.Handler) http.Handler {
	past := history.PastHandler{Moments: a.moments(), Classify: history.KindOf,
		Types: a.definitions.RegistryAt, Serve: a.serveAsOf, WriteError: a.fail}
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

// serveAsOf serves a request as of revision rev. If types is nil, the response does not depend on
// time.
func (a *api) serveAsOf(w http.ResponseWriter, r *http.Request, types *scheme.Registry, rev int64) {
	if types == nil {
		discovery.ServeVersion(gitVersion)(w, r)
		return
	}
	switch path := request.From(r.Context()).Info.Path; {
	case path == "/openapi/v2":
		discovery.ServeSwagger(types, nil, w, r)
	case strings.HasPrefix(path, "/openapi/"):
		// The URLs contain the revision, so that clients may cache the documents for a year.
		discovery.ServeOpenAPI(types, history.PathAt+strconv.FormatInt(rev, 10), w, r)
	default:
		a.asOf(types, rev).serveAPI(w, r)
	}
}

// asOf returns the API as of revision rev. The current authorization rules apply.
func (a *api) asOf(types *scheme.Registry, rev int64) *readAPI {
	return &readAPI{types: types, rd: a.rd.asOf(rev), auth: a.auth, deprecated: a.deprecated, log: a.log}
}

// history returns the handler of the change log. A user sees the changes of objects that he was
// allowed to list.
func (a *api) history() *history.Log {
	return history.New(history.Config{Store: a.storage.st, Maintenance: a.storage.upkeep, Types: a.types,
		MayListAny: a.auth.MayListAnything, OnCaughtUp: returnWatchSeats, WriteError: a.fail, Visibility: a.rd.past,
		WriteTimeout: a.options.RequestTimeout, Lifetime: a.options.MinTimeout, ShuttingDown: a.wt.shuttingDown})
}

// allows returns a function that reports whether the current rules allow a request.
func allows(by *auth.Authenticator) func(request.User, request.Info) bool {
	return func(u request.User, info request.Info) bool {
		allowed, _ := by.Decide(u, info)
		return allowed
	}
}

// mayGet reports whether the user of r may get another path.
func (a *api) mayGet(r *http.Request, path string) bool {
	return a.auth.Check(request.From(r.Context()).User, request.Info{Verb: "get", Path: path}) == nil
}

// page returns the dashboard, which is served at /debug/ui/.
func (a *api) page() *dashboard.Page {
	p := &dashboard.Page{Store: a.storage.st, Types: a.types, Watches: &a.watches, Version: gitVersion,
		Retention: a.options.HistoryRetention(), Deprecations: func(most int) any { return a.usage.List(most) }}
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
	a.serveVersions(w, r)
}

// serveVersions handles /api, and /apis without aggregated servers.
func (a *api) serveVersions(w http.ResponseWriter, r *http.Request) {
	discovery.ServeDiscovery(a.types, w, r)
}

// serveOpenAPI handles /openapi/v3 and the paths below it.
func (a *api) serveOpenAPI(w http.ResponseWriter, r *http.Request) {
	if !a.aggregated.ServeOpenAPI(w, r) {
		discovery.ServeOpenAPI(a.types, "", w, r)
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
	a.finish(w, r, err)
}

// serveResource handles a request for a known resource.
func (a *api) serveResource(w http.ResponseWriter, r *http.Request, rec *request.Request, res *scheme.Resource) error {
	info := &rec.Info
	// Reserve memory before the write starts. Later the request can no longer be rejected.
	if info.Name != "" && request.IsMutating(info) && !res.Virtual && !request.IsConnect(info.Subresource) {
		_, size, _ := a.rd.Store.GetUpTo(res.Key(res.Scope(info.Namespace), info.Name), 0)
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
		defer a.instruments.CountWatch(info)()
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
		return a.rd.list(w, r, rec, res, removeEach)
	}
	return apierror.MethodNotAllowed()
}

// watchHooks connects a watch with flow control, metrics and the dashboard. The caller must call
// done when the watch ends.
func (a *api) watchHooks(r *http.Request, rec *request.Request, res *scheme.Resource) (hooks watchHooks, done func()) {
	labels := a.instruments.WatchLabels(&rec.Info)
	options, _ := rec.Info.ListOptions() // invalid options are rejected later
	shown := &dashboard.Watch{User: rec.User.Name, Agent: r.UserAgent(), Group: res.Group, Resource: res.Plural,
		Namespace: rec.Info.Namespace, LabelSelector: options.LabelSelector, FieldSelector: options.FieldSelector,
		Base: res.KeyPrefix(""), Started: rec.Received}
	a.watches.Add(shown)
	return watchHooks{
		started: func() { returnWatchSeats(r.Context()) },
		listed:  func() { a.instruments.Metrics.WatchListDone(labels, time.Since(rec.Received)) },
		sent:    a.instruments.Metrics.LongRunning(labels).Sent,
		opened:  shown.Follow,
	}, func() { a.watches.Remove(shown) }
}

// serveSubresource handles a request for a subresource.
func (a *api) serveSubresource(w http.ResponseWriter, r *http.Request, rec *request.Request,
	res *scheme.Resource) error {
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

// recordDeprecated records the use of a deprecated version.
func (a *api) recordDeprecated(r *http.Request, rec *request.Request, res *scheme.Resource) {
	labels := a.instruments.Labels(r, rec)
	use := deprecations.UseOf(rec, res)
	use.Agent, use.Subresource = r.UserAgent(), labels.Subresource
	a.usage.Record(use, time.Now())
	a.instruments.Metrics.DeprecatedUse(labels, use.Removed)
}

// ---- The command line ----

// program returns apilet's command line program.
func program() *commandline.Program {
	return &commandline.Program{Name: "apilet",
		Description: "Apilet is a Kubernetes-compatible API server in one program and one file.",
		Commands: func() []commandline.Command {
			return (&config{namespaceGrace: gc.NamespaceGrace, grace: stoppingGrace}).commands()
		}, Version: printVersion}
}

// commands returns apilet's commands. Their flags write into c.
func (c *config) commands() []commandline.Command {
	return slices.Concat([]commandline.Command{
		{Name: "", ArgCounts: []int{0}, Description: "run the server", Groups: c.Groups(),
			Run: func(call commandline.Call) error { return c.serve(call.Errors) }},
	}, datacmd.Commands(logging.Console), []commandline.Command{
		envtest.Command(&c.Base, &c.EmulatedVersion, c.SetFeatureGates),
	}, nodebootstrap.Commands(logging.Console), torture.Commands(), logcmd.Commands())
}

// commandAs runs the program under the name called: as apilet, as the kubectl plug-in, or in place
// of etcd or kube-apiserver in tests.
func commandAs(called string, args []string, stdout, stderr io.Writer) int {
	name := envtest.ProgramName(called)
	switch name {
	case logcmd.PluginName:
		return logcmd.Plugin(printVersion).Run(args, stdout, stderr)
	case "etcd":
		return envtest.RunAsEtcd(args, stdout, stderr)
	case "kube-apiserver":
		_, own := newConfig(stderr)
		return envtest.RunAsAPIServer(called, args, own, gitVersion, program().Run, stdout, stderr)
	}
	return program().Run(args, stdout, stderr)
}

// printVersion prints the version of apilet, the format of its data files, and the Kubernetes
// version of /version.
func printVersion(out io.Writer) error {
	_, err := fmt.Fprintf(out, "%sdata file format %d\nKubernetes %s\n", commandline.ThisBuild().Lines("apilet"),
		store.Format, gitVersion)
	return err
}

// newConfig returns a default config and a FlagSet that writes into it.
func newConfig(stderr io.Writer) (*config, *flag.FlagSet) {
	c := &config{namespaceGrace: gc.NamespaceGrace, grace: stoppingGrace}
	f := flag.NewFlagSet("apilet", flag.ContinueOnError)
	f.SetOutput(stderr)
	for _, group := range c.Groups() {
		group.Define(f)
	}
	return c, f
}
