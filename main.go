// Apilet is a Kubernetes-compatible API server: one program, one bbolt file, no etcd, no cluster. Unmodified kubectl, client-go and
// controller-runtime talk to it. A request meets the parts in this order; what stands without .go is a package under internal/:
//
//	         ┌───────────────────────────── an api ──────────────────────────────┐
//	request ─▶ record · warn.go · deadline ──▶ auth ──▶ apf.go, flowcontrol ──▶ route │
//	         └──────────────────────────────────────────────────────────────┬────┘
//	                         ┌──────────────────────────────────────────────┤
//	                         ▼ reads                                        ▼ writes
//	                  list.go, watch.go        registry ──▶ patch, fieldmanager, defaults, strategy, admission, validation
//	                         │                                    │
//	                         └──────────▶ store ◀─────────────────┘ ◀── gc, which works off what was deleted
//
// This file is the life of a server: what it is made of, the phases of its start, what it does beside requests, its health, and its end. Behind it
// stands what answers requests, an api, which knows nothing of starts and stops: the chain of steps that every request goes through, the one list of
// routes, and what is at their ends. The command line comes last.
//
//	record ──▶ deadline ──▶ Authenticate ──▶ Impersonate ──▶ seated ──▶ throughTime ──▶ routes ──▶ serveAPI ──▶ serveResource
//
// Two types answer. A readAPI (list.go) is what is served at one moment, for reading: types, and objects one by one and in lists. An api is the one of
// now, which has what else there is: a writer, watches, pages about itself. What is asked about a moment that is over (/at/MOMENT/...) is answered by
// a readAPI that is made for the request, and nothing that it has can write.
//
// Invariant: a handler is reached by whoever may ask for it, and by nobody else: each route stands behind withAuthorization or is serveAPI, which
// authorizes itself, except for the routes that authorize each object in their answers.
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
	"k8s.io/apimachinery/pkg/version"

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
	"apilet/internal/shares"
	"apilet/internal/startgc"
	"apilet/internal/store"
	"apilet/internal/torture"
	"apilet/internal/troubles"
	"apilet/internal/unreadable"
	"apilet/internal/webhook"
)

const (
	bookmarkEvery = time.Minute
	stoppingGrace = 20 * time.Second // for requests that run when the server is told to stop; the work beside them has a fifth of it
	closingGrace  = 4 * time.Second  // for the files and etcd, after that
	stopWithin    = 30 * time.Second // for the process, from the end of --shutdown-delay-duration on, whatever it is doing: as long as Kubernetes gives a pod
)

// gitVersion is the version that /version reports.
const gitVersion = scheme.KubernetesVersion + "+apilet"

// config is how a server is to be: what the flags say, and what none says.
type config struct {
	options.Options
	namespaceGrace time.Duration
	grace          time.Duration    // stoppingGrace
	starting       context.Context  // ends a start; nil: nothing does
	clock          func() time.Time // in place of the machine's clock; nil: that one
	log            zerolog.Logger
	manager        health.ServiceManager // is told how it goes
}

func main() {
	if len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-") {
		startgc.Resume() // for commands that do not serve
	}
	uuid.EnableRandPool() // a system call for sixteen: ids are to be unlike each other, and keep no secret
	os.Exit(commandAs(os.Args[0], os.Args[1:], os.Stdout, os.Stderr))
}

// serve runs the server until SIGTERM or SIGINT. The second of these ends the process at once.
func (c *config) serve(stderr io.Writer) error {
	defer outliveHangups()()
	c.log = newLogger(stderr, c.LogFormat)
	defer limitOtherLogs(c.log)()
	stop, forget := drain.Told(stopWithin+c.ShutdownDelay, func(why string) {
		c.log.Error().Msg(why + ": exiting now, without waiting for unfinished requests. Every write that was acknowledged is kept")
		os.Exit(1)
	}, syscall.SIGTERM, syscall.SIGINT)
	defer forget()
	c.starting = stop
	c.manager = health.FindServiceManager(os.Getenv)
	context.AfterFunc(stop, func() { c.toldManager(c.manager.Stopping()) })
	var serving atomic.Pointer[server] // nil while one starts or stops
	watched, unwatch := context.WithCancel(context.Background())
	defer unwatch()
	go c.manager.Watch(watched, func(ctx context.Context) error { return serving.Load().alive(ctx) }, func(err error) {
		c.log.Error().Err(err).Msg("the liveness check of the server itself failed; not notifying the systemd watchdog")
	})
	for again := false; ; {
		own := *c // the start completes it
		s, err := startServer(&own)
		if !again && replicaFailed(&c.Options, err) {
			c.log.Error().Err(err).Msg("cannot start with this replica of etcd; starting once more with a new one")
			again = true
			continue
		}
		if err != nil && stop.Err() != nil {
			c.log.Warn().Err(err).Msg("the server was told to stop before it served")
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
			c.Listen = s.entrance.listening // the port that it has now
			if err := s.stop(); err != nil && !errors.Is(err, store.ErrDamaged) {
				return err
			}
			continue
		}
		return errors.Join(err, s.stop())
	}
}

// toldManager is for what telling the service manager has come to.
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

// A server is a running apilet: what starts, works beside requests, and stops. Requests are its api's.
type server struct {
	cfg      *config
	log      zerolog.Logger
	clock    *clock.Clock
	troubles *troubles.Log
	metrics  *metrics
	audit    *audit.Log // nil without --audit-log-path and --audit-webhook-config-file
	storage  *storage
	auth     *auth.Authenticator
	api      *api
	entrance entrance
	beside   beside
	leave    departure
	idle     context.CancelFunc // ends the background work
	work     drain.Work         // in the background
	failed   chan error         // what ended the server, if it was not told to stop
}

// An entrance is where a server is reached.
type entrance struct {
	endpoint  serving.Endpoint
	listener  net.Listener
	listening string // the address, with the port that it has
	url       string
	secured   *tls.Config // nil: it speaks plain HTTP
	http      *http.Server
	resting   drain.Conns
	probe     health.Probe  // of itself
	clockSet  chan struct{} // a token when the machine's clock has been set: certificates are looked at
}

// at is the address as a client has it.
func (e *entrance) at() netip.AddrPort { return e.listener.Addr().(*net.TCPAddr).AddrPort() }

// beside is what works beside requests, and follows what they write.
type beside struct {
	webhooks    *admission.Webhooks
	policies    *policy.Policies
	definitions *crd.Definitions
	proxy       certs.Introduction // what is shown to other servers
	apiServices *bootstrap.APIServiceReconciler
	namespaces  *bootstrap.NamespaceReconciler // nil without --namespace-defaults, or --controllers
	flows       *bootstrap.FlowReconciler      // of flow control's configuration; nil without it
	endpoints   *bootstrap.Endpoints
	founded     error // why a part of what every cluster has is missing; nil: it is there
}

// A departure is what is heard of a server's end.
type departure struct {
	leaving  chan struct{} // closed when the server is told to stop: /readyz fails, connections end with their next answer
	once     sync.Once     // closes it
	stopping chan struct{} // closed when the server ends serving: watches end
}

// phases are a start's, in their order; the first that fails ends it. The last column is what a phase cannot do without of the data file. The rooms whose
// it is say so by an error when they are made, and preflight makes them before anything is written: a file that is refused stays as it is. No phase
// needs an object: one that cannot be read is left out, told, and served again when it is mended.
var phases = []func(*server, context.Context) error{
	//                    WHAT                                                                      NEEDS OF THE FILE
	(*server).listen,    // the port, before any file is made: one in use leaves none behind
	(*server).reach,     // what is not the data file: etcd, certificates, users, the audit log
	(*server).open,      // the data file, or the replica of what etcd has                            its meta pages, format, lineage
	(*server).preflight, // what is needed of the file is read; it is hidden from others              maintenance's marks, the accounts' key
	(*server).assemble,  // the parts that answer are put together: reads, writer, api
	(*server).admit,     // the plug-ins that every write passes
	(*server).observe,   // metrics are told where to look
	(*server).populate,  // what is stored comes into force, what every server has is added
	(*server).secure,    // the certificate is shown on the port
	(*server).found,     // what every cluster has: Services, where this server is, whom it trusts
	(*server).serve,     // requests are answered, and the work beside them begins
}

// startServer goes through the phases. The caller stops the server, which serves in the background.
func startServer(c *config) (*server, error) {
	if err := c.Finish(); err != nil {
		return nil, err
	}
	if err := c.SetFeatureGates(); err != nil {
		return nil, err
	}
	go internalversion.Register() // concurrently with the first phases; the first write needs it
	if c.starting == nil {
		c.starting = context.Background()
	}
	if err := kubeconfig.CheckOwn(c.Kubeconfig); err != nil {
		return nil, err
	}
	rows, err := scheme.Served(c.RuntimeConfig)
	if err != nil {
		return nil, fmt.Errorf("--runtime-config: %w", err)
	}
	s := newServer(c, scheme.NewRegistry(rows...))
	for _, phase := range phases {
		if err := phase(s, c.starting); err != nil {
			return nil, s.giveUp(err)
		}
	}
	return s, nil
}

// newServer is one that has not begun to start.
func newServer(c *config, types *scheme.Registry) *server {
	now := clock.New(c.clock)
	c.Auth.Log, c.Auth.Now = c.log, now.Now
	s := &server{cfg: c, log: c.log, clock: now, troubles: troubles.New(c.log), metrics: newMetrics(speaks()), failed: make(chan error, 1),
		entrance: entrance{endpoint: serving.Endpoint{Options: &c.Options, Log: c.log, Now: now.Now}, clockSet: make(chan struct{}, 1)},
		leave:    departure{leaving: make(chan struct{}), stopping: make(chan struct{})}}
	s.storage = &storage{options: &c.Options, types: types, clock: now, log: c.log, troubles: s.troubles}
	s.api = &api{readAPI: readAPI{types: types, log: c.log}, storage: s.storage, usage: deprecations.NewTracker(), options: &c.Options,
		upgrades: shares.NewUpgrades()}
	return s
}

// giveUp closes what a start had opened that has failed.
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

// verbosityOfRefusals is the --v from which kube-apiserver logs why a bootstrap token was rejected.
const verbosityOfRefusals = 3

// guardSecrets sees to who may read the files with secrets; package certs does for those that it makes.
func (s *server) guardSecrets() {
	if !s.cfg.Ephemeral {
		if _, err := certs.Hide(s.log, s.storage.st.File.Path); err != nil {
			s.log.Error().Err(err).Msg("cannot make the data file private (mode 0600)")
		}
	}
	given := []string{s.cfg.Auth.TokenFile, s.cfg.TLSKey, s.cfg.EncryptionConfig, s.cfg.ContinueKeyFile, s.cfg.Aggregation.ProxyKey,
		s.cfg.Accounts.SigningKeyFile, s.cfg.Audit.Webhook, s.cfg.Auth.TokenHook.File, s.cfg.Hook.File}
	certs.TellExposed(s.log, append(given, s.cfg.Accounts.KeyFiles...)...)
	s.storage.warnOfCommittable()
}

// assemble makes the parts that work on the store, and puts them together.
func (s *server) assemble(context.Context) (err error) {
	c, st, types, a := s.cfg, s.storage.st, s.api.types, s.api
	if s.auth.WantsNodes() {
		s.auth.Nodes = node.New(st, types, s.stands("reading what the pods of nodes refer to"))
	}
	keys, err := s.storage.continueKeys()
	if err != nil {
		return err
	}
	blocks, err := c.ServiceBlocks()
	if err != nil {
		return err
	}
	alloc := allocator.New(st, blocks...)
	alloc.Shared = s.storage.cluster != nil
	if alloc.Failed = s.stands("cluster IPs and node ports"); c.ManagedFields {
		alloc.Manager = "apilet"
	}
	lost := unreadable.NewUnreadables(st, s.log)
	tell := lost.NoteSealed
	s.storage.sealed.Store(&tell)
	a.auth, a.deprecated = s.auth, &deprecatedVersions{server: speaks(), denied: c.DenyDeprecated, used: a.noteUse}
	a.rd = &reads{st: st, past: history.Reach{Store: st, May: may(s.auth)}, lost: lost, tokens: newTokenCodec(keys),
		podsByNode: st.NewIndex(podKeys, podNode), storage: s.storage.backing().check, readSlots: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2))}
	a.wt = &watching{reads: a.rd, minTimeout: c.MinTimeout, bookmarks: bookmarkEvery, patience: c.RequestTimeout, shuttingDown: s.leave.stopping,
		news: notify.New(st)}
	a.wr = &registry.Writer{Store: st, Types: types, Auth: s.auth, Allocator: alloc, Unreadable: lost, Validating: c.Validate, ManagedFields: c.ManagedFields}
	a.instruments = &instrumentation{reg: types, metrics: s.metrics, audit: s.audit, findings: findings.New(findings.Logged(s.log)), log: s.log,
		verbosity: c.Verbosity, timeout: c.RequestTimeout, bytes: shares.NewBytes(c.RequestTimeout / 4)}
	return nil
}

// admit puts the chain of plug-ins together that every write passes.
func (s *server) admit(context.Context) error {
	st, types, wr := s.storage.st, s.api.types, s.api.wr
	s.beside.webhooks = &admission.Webhooks{Store: st, Types: types, Services: &webhook.ServiceResolver{Store: st, Types: types},
		Called: s.metrics.webhookCalled, Log: s.log, May: s.auth.Decide, Defaults: registry.FillDefaults, Unreadable: wr.Unreadable, Stands: s.troubles.Tell}
	s.beside.webhooks.Reload()
	configuration, err := plugins.ReadConfiguration(s.cfg.AdmissionConfig)
	if err != nil {
		return fmt.Errorf("--admission-control-config-file: %w", err)
	}
	s.beside.policies = &policy.Policies{Store: st, Types: types, Unreadable: wr.Unreadable, Log: s.log, May: s.auth.Decide, Defaults: registry.FillDefaults,
		Fields: wr.FieldManager, Convert: admission.MovedTo, Checked: s.metrics.policyChecked}
	s.beside.policies.Reload()
	mutating, validating := plugins.Policies(s.beside.policies)
	table := plugins.Table(plugins.Config{Store: st, Types: types, May: s.auth.Decide, CreateNamespace: wr.CreateNamespace, Webhooks: s.beside.webhooks,
		MutatingPolicy: mutating, ValidatingPolicy: validating, Configuration: *configuration,
		PodChecked: s.metrics.podChecked, ControllerManager: !s.cfg.Controllers, Tolerations: s.cfg.Tolerations, Clock: s.cfg.clock})
	on, err := configuration.Select(table, s.cfg.EnabledPlugins, s.cfg.DisabledPlugins)
	if err != nil {
		return err
	}
	wr.Admission, wr.ProvisionsNamespaces = admission.NewChain(table, on), on["NamespaceAutoProvision"]
	wr.Committed = append(wr.Committed, s.beside.webhooks.Committed, s.beside.policies.Committed)
	if on["ResourceQuota"] {
		if wr.Quotas, err = quota.New(st, types); err != nil {
			s.log.Error().Err(err).Msg("reading ResourceQuotas: not all of them hold")
		}
	}
	s.beside.definitions = crd.NewDefinitions(st, types, wr, s.log)
	s.beside.definitions.Stands = s.stands("definitions of custom resources")
	s.api.definitions = s.beside.definitions
	return nil
}

// observe tells metrics where to look.
func (s *server) observe(context.Context) error {
	m := s.metrics
	m.registry.MustRegister(s.api.instruments.findings, certificateFigures(s.entrance.endpoint.Certificates), clusterFigures{s.storage.cluster},
		&datafile.Collector{Store: s.storage.st, Types: s.api.types, Scrub: s.storage.scrub, Unreadable: s.api.rd.lost, Tracked: s.api.wr.Tracked.Load})
	m.registry.MustRegister(s.storage.keys.Collectors()...)
	m.clockBehind(s.clock.Behind)
	m.leader(s.storage.leads.Load)
	m.featureGates(options.FeatureGates())
	m.buildInfo(map[string]string{"major": "1", "minor": strconv.Itoa(speaks()[1]), "git_version": gitVersion, "go_version": runtime.Version(),
		"platform": runtime.GOOS + "/" + runtime.GOARCH})
	return nil
}

// populate brings what is stored into force (definitions, flow control, roles) and adds what every server has.
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
		wr.NamespaceCreated = s.beside.namespaces.NamespaceCreated
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
	if s.auth.Enforcing() {
		policy := bootstrap.NewPolicyReconciler(st, types, wr, s.auth, func(err error) { s.log.Error().Err(err).Msg("cannot read the roles and bindings") })
		if err := policy.Reconcile(ctx); err != nil {
			return err
		}
		wr.Policy = policy.Committed
	}
	return nil
}

// aggregate makes what passes requests on to other servers. Without TLS nothing is made, or published, before there is such a server.
func (s *server) aggregate(ctx context.Context) error {
	g := &aggregation.Aggregator{Store: s.storage.st, Types: s.api.types, Services: s.beside.webhooks.Services, Certificate: s.beside.proxy.Certificate,
		SaveStatus: s.api.wr.SaveAPIServiceStatus, Leads: s.storage.leads.Load, Patience: s.cfg.RequestTimeout, RejectRedirects: s.cfg.Aggregation.RejectRedirects,
		Delegated: watchBegun, Fail: s.api.fail, Stopping: s.leave.stopping, Stands: s.stands("keeping up with the servers that APIServices name"),
		Unavailable: s.metrics.apiServiceUnavailable, Upgrades: s.api.upgrades}
	g.Begin = func() {
		if err := s.introduce(); err != nil {
			s.log.Error().Err(err).Msg("there is no certificate to show to the servers that APIServices name")
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

// connect makes the part of the server that connects clients with kubelets and Pods.
func (s *server) connect() error {
	flags := &s.cfg.Kubelet
	certificate, err := s.entrance.endpoint.KubeletCertificate()
	if err != nil {
		return err
	}
	config := kubelet.Config{Certificate: certificate, AddressTypes: flags.AddressTypes, Timeout: flags.Timeout}
	if flags.CAFile != "" {
		authorities, err := certs.FollowAuthorities(s.log, nil, flags.CAFile)
		if err != nil {
			return fmt.Errorf("--kubelet-certificate-authority: %w", err)
		}
		config.Authorities = authorities.Now
	}
	s.api.connector = &kubelet.Connector{Clients: kubelet.NewClients(config), Store: s.storage.st, Types: s.api.types, Admission: s.api.wr.Admission,
		MayCreate: s.auth.MayCreate, Forward: &proxy.Forwarder{Places: s.api.upgrades, Stopping: s.leave.stopping}, Fail: s.api.fail}
	return nil
}

// introduce has the certificate that is shown to other servers made, or read.
func (s *server) introduce() error {
	flags := &s.cfg.Aggregation
	return s.beside.proxy.Open(certs.Config{Dir: s.cfg.CertDir, Now: s.cfg.Auth.Now, Log: s.log}, flags.ProxyCert, flags.ProxyKey)
}

func (s *server) secure(context.Context) (err error) {
	s.entrance.url, s.entrance.secured, err = s.entrance.endpoint.Secure(s.entrance.listener, s.auth.AskedCertificates())
	s.api.keysURL = s.entrance.url + "/openid/v1/jwks"
	return err
}

// found adds what every cluster has. A part that is missing is told, and no reason not to serve.
func (s *server) found(ctx context.Context) error {
	initializer, at, blocks := bootstrap.Initializer{Writer: s.api.wr, Types: s.api.types}, s.entrance.at(), s.api.wr.Allocator.Blocks
	initializer.Warn = func(text string) { s.log.Warn().Msg(text) }
	s.beside.endpoints = &bootstrap.Endpoints{Initializer: initializer, Etcd: s.storage.cluster, Reconciler: s.cfg.EndpointReconciler,
		Advertised: s.cfg.Advertised, Six: blocks[0].Addr().Is6()}
	s.beside.founded = errors.Join(initializer.Cluster(ctx, blocks, int(at.Port())), s.beside.endpoints.Start(ctx, at))
	if s.beside.founded != nil {
		s.log.Error().Err(s.beside.founded).Msg("cannot create some of the objects that every cluster has")
	}
	s.publishAuthorities(ctx)
	s.publishClusterInfo(ctx, initializer)
	return nil
}

// publishClusterInfo publishes the URL and the authority of this server for nodes with a bootstrap token. A server with a certificate of
// the administrator's does not know the authority that has signed it.
func (s *server) publishClusterInfo(ctx context.Context, initializer bootstrap.Initializer) {
	switch {
	case !s.cfg.Auth.BootstrapTokens:
		return
	case s.cfg.Auth.OwnCA == nil:
		s.log.Info().Msg("ConfigMap cluster-info in kube-public is not published: the authority that has signed the certificate of --tls-cert-file is unknown")
		return
	}
	url := bootstrap.URLForNodes(s.entrance.url, s.entrance.at(), s.api.wr.Allocator.Blocks[0].Addr().Is6())
	if err := initializer.ClusterInfo(ctx, url, s.cfg.Auth.OwnCA); err != nil {
		s.log.Error().Err(err).Msg("cannot publish ConfigMap cluster-info in kube-public")
	}
}

// publishAuthorities tells programs beside this server whose client certificates it takes, and by which it speaks to them for others. They learn of a
// changed file at the next start.
func (s *server) publishAuthorities(ctx context.Context) {
	pem, err := s.cfg.Auth.Authorities()
	proxies, problem := s.cfg.Auth.RequestHeader.Published()
	if own := s.beside.proxy.Own(); own != nil {
		proxies = proxies.With(own.Authority(), certs.FrontProxyName)
	}
	if err = cmp.Or(err, problem); err == nil && (len(pem) > 0 || len(proxies.Authorities) > 0) {
		err = bootstrap.Initializer{Writer: s.api.wr, Types: s.api.types}.ClientAuthorities(ctx, pem, proxies)
	}
	if err != nil {
		s.log.Error().Err(err).Msg("cannot publish the client CA")
	}
}

// serve answers requests in the background.
func (s *server) serve(context.Context) error {
	s.api.health = []*health.Endpoint{{Name: "livez", Checks: s.liveness()}, {Name: "healthz", Checks: append(s.liveness(), s.plugins()...)}, {Name: "readyz", Checks: s.readiness()}}
	for _, endpoint := range s.api.health {
		endpoint.Observed = s.observed(endpoint.Name)
	}
	s.entrance.http = &http.Server{
		Handler:           s.closing(s.api.handler()),
		TLSConfig:         s.entrance.secured,
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       s.cfg.RequestTimeout + 5*time.Second,
		WriteTimeout:      s.cfg.RequestTimeout + 10*time.Second,
		IdleTimeout:       3 * time.Minute,
		HTTP2:             &http.HTTP2Config{WriteByteTimeout: s.cfg.RequestTimeout}, // a stream's deadline is of no use on a connection that is stuck
		MaxHeaderBytes:    64 << 10,
		ConnContext:       withConn,
		ConnState:         s.entrance.resting.Note,
		ErrorLog:          stdlog.New(s.metrics.countHandshakeErrors(levelWriter{s.log}), "", 0),
	}
	if err := s.entrance.endpoint.WriteKubeconfig(); err != nil {
		return err
	}
	s.entrance.probe = health.NewProbe(s.entrance.at(), s.entrance.secured != nil)
	s.startWorkers()
	go s.api.wt.news.Run(s.leave.stopping)
	go s.accept()
	s.log.Info().Str("url", s.entrance.url).Str("data", s.storage.st.File.Path).Int64("revision", s.storage.st.Revision()).Msg("serving")
	s.cfg.toldManager(s.cfg.manager.Ready("serving " + s.entrance.url))
	return nil
}

// alive proves that the server lives, for a watchdog: it answers /livez at its own port, and the writer of its data file answers. What a restart would
// not cure (a full disk, damage, an etcd that is away) is no lack of life. A proof that hangs lasts longer than ctx.
func (s *server) alive(ctx context.Context) error {
	if s == nil {
		return nil
	}
	return errors.Join(s.entrance.probe.Ask(ctx, "/livez"), s.storage.st.WriterAnswers(ctx))
}

// typeChecker keeps the status of admission policies.
func (s *server) typeChecker() *policy.TypeChecker {
	return &policy.TypeChecker{Store: s.storage.st, Types: s.api.types, Schemas: discovery.KindSchemas,
		Tell: s.stands("checking the types of admission policies"), Write: s.api.wr.SavePolicyStatus}
}

// startWorkers runs what goes on beside requests: what kube-apiserver does in the background, and what kube-controller-manager would do.
// stop ends it.
func (s *server) startWorkers() {
	ctx, cancel := context.WithCancel(context.Background())
	s.idle = cancel
	gc := &gc.Collector{Store: s.storage.st, Maintenance: s.storage.upkeep, Types: s.api.types, Writer: s.api.wr, EventTTL: s.cfg.EventTTL,
		Grace: s.cfg.namespaceGrace, Stands: s.troubles.Tell, Begin: s.api.instruments.own, Elsewhere: s.api.aggregated.Empty}
	work := &s.work
	work.Go("the controllers", func() { s.storage.lead(ctx, func(ctx context.Context) { s.workOff(ctx, gc) }) })
	if s.storage.cluster != nil {
		work.Go("following what other servers write", func() { s.api.wr.FollowOthers(ctx) })
	}
	work.Go("following what pods refer to", func() { s.auth.Nodes.Run(ctx) })
	work.Go("following definitions of types", func() { s.beside.definitions.Run(ctx) })
	work.Go("keeping up with other servers", func() { s.api.aggregated.Run(ctx) })
	work.Go("following admission policies", func() { s.beside.policies.Run(ctx) })
	work.Go("the scrub of the data file", func() { s.storage.scrub.Run(ctx) })
	work.Go("the findings", func() { s.api.instruments.findings.Run(ctx) })
	work.Go("the search for objects that cannot be read", func() {
		if err := s.api.rd.lost.Survey(ctx, unreadable.NewDecodeCheck(s.api.types)); err != nil && ctx.Err() == nil {
			s.log.Error().Err(err).Msg("cannot look for objects that cannot be decoded")
		}
	})
	if s.storage.keys.On() {
		work.Go("looking at the file about encryption", func() { s.storage.keys.Run(ctx) })
	}
	work.Go("heeding hangups", func() { s.heedHangups(ctx) })
	ready := health.Endpoint{Name: "readyz", Checks: s.readiness(), Observed: s.observed("readyz")}
	work.Go("the checks of /readyz", func() { ready.Run(ctx, health.LookEvery) })
	work.Go("watching the clock", func() { s.clock.Run(ctx, clock.LookEvery, s.noteClockSet) })
	work.Go("renewing certificates", func() { s.entrance.endpoint.Run(ctx, s.entrance.clockSet) })
	work.Go("telling where this server is", func() { s.beside.endpoints.Run(ctx, s.leave.leaving) })
	work.Go("compaction", func() {
		s.storage.upkeep.Run(ctx, s.cfg.CompactionInterval, s.cfg.Kept(), func(done store.Compaction, err error) { s.storage.afterCompaction(ctx, gc, done, err) })
	})
	if s.beside.flows != nil {
		work.Go("flow control", func() { s.api.fc.run(ctx) })
		work.Go("following flow schemas", func() {
			s.beside.flows.Run(ctx, s.beside.flows.Apply, s.stands("reading flow schemas and priority levels"))
		})
	}
}

// heedHangups opens the audit log anew at each SIGHUP, until ctx ends. The service manager is told also where there is none: it may wait for that.
func (s *server) heedHangups(ctx context.Context) {
	hangup := make(chan os.Signal, 1) // one waiting signal stands for all that come before it is seen
	signal.Notify(hangup, syscall.SIGHUP)
	defer signal.Stop(hangup)
	for {
		select {
		case <-ctx.Done():
			return
		case <-hangup:
		}
		s.cfg.toldManager(s.cfg.manager.Reloading())
		if s.audit != nil {
			if err := s.audit.Reopen(); err != nil {
				s.log.Error().Err(err).Msg("cannot reopen the audit log")
			}
		}
		s.cfg.toldManager(s.cfg.manager.Ready("serving " + s.entrance.url))
	}
}

// stands is what somebody in the background is given to tell how it stands, after each round.
func (s *server) stands(what string) func(error) {
	return func(err error) { s.troubles.Tell(what, err) }
}

// noteClockSet has the certificates looked at: the clock says by itself whether it is believed.
func (s *server) noteClockSet(step time.Duration) {
	s.log.Warn().Str("by", step.Round(time.Second).String()).Time("now", s.clock.Now()).Msg("the machine's clock has been set")
	select {
	case s.entrance.clockSet <- struct{}{}:
	default: // they will be looked at
	}
}

// workOff does what follows from writes, later than they. Where several servers share their objects, one of them does.
func (s *server) workOff(ctx context.Context, gc *gc.Collector) {
	var running sync.WaitGroup
	defer running.Wait()
	if s.cfg.Controllers {
		running.Go(func() { gc.Run(ctx) })
		running.Go(func() { s.typeChecker().Run(ctx) })
		tokens := bootstrap.NewTokenReconciler(s.storage.st, s.api.types, s.api.wr, s.log)
		running.Go(func() {
			gc.KeepUp(ctx, "filling Secrets with tokens", func(ctx context.Context) error { return tokens.Run(ctx, s.stands("tokens for Secrets")) })
		})
	}
	if s.beside.namespaces != nil {
		running.Go(func() {
			gc.KeepUp(ctx, "reconciling namespaces", s.beside.namespaces.Run)
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

// sendAway goes on serving for a while, and has clients and load balancers go elsewhere meanwhile.
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

// closing ends connections with their answers once the server leaves: who asks again connects anew, and a load balancer knows where. In HTTP/2 the
// header becomes a GOAWAY, after which what runs on the connection goes on.
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

// stop lets running requests end, ends watches, and closes the store. It waits for nothing without a bound, and says in the log what it has
// given up. That loses nothing: a write is answered when it is in the file, or in etcd.
func (s *server) stop() error {
	s.sendAway(0)
	s.entrance.http.RegisterOnShutdown(func() { close(s.leave.stopping) }) // behind the closed door: whose watch ends comes back at once
	ctx, cancel := context.WithTimeout(context.Background(), s.cfg.grace)
	defer cancel()
	time.AfterFunc(drain.Delay, s.entrance.resting.Close)
	err := s.entrance.http.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		s.log.Warn().Int("connections", s.entrance.resting.Busy()).Stringer("waited", s.cfg.grace).Msg("shutdown: closing the connections of requests that do not end")
		err = s.entrance.http.Close()
	}
	s.idle()
	if unfinished := s.work.Wait(s.cfg.grace / 5); unfinished != nil {
		s.log.Warn().Err(unfinished).Msg("shutdown: abandoning background work")
	}
	return errors.Join(err, s.close())
}

// close closes what a server has open, when nobody uses it any more, or is waited for.
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

// liveness lists what is looked at in /livez and /healthz. Storage that is away is told, but a restart would not bring it back.
func (s *server) liveness() []health.Check {
	return append([]health.Check{health.Ping, {Name: "etcd", Err: s.storage.backing().seen, Warns: true}}, s.started()...)
}

// started lists what is done when the server listens, by the names of kube-apiserver's hooks. What kube-apiserver does and this server does not, or
// later, is not there.
func (s *server) started() []health.Check {
	const hook = "poststarthook/"
	checks := health.Done(hook+"start-apiserver-admission-initializer", hook+"generic-apiserver-start-informers", hook+"start-apiextensions-informers",
		hook+"start-apiextensions-controllers", hook+"crd-informer-synced", hook+"start-system-namespaces-controller", hook+"storage-readiness",
		hook+"apiservice-registration-controller", hook+"kube-apiserver-autoregistration", "autoregister-completion")
	if s.auth.Enforcing() {
		checks = append(checks, health.Done(hook+"rbac/bootstrap-roles")...)
	}
	if s.beside.flows != nil {
		checks = append(checks, health.Done(hook+"priority-and-fairness-config-consumer", hook+"priority-and-fairness-config-producer", hook+"priority-and-fairness-filter")...)
	}
	for _, name := range []string{"scheduling/bootstrap-system-priority-classes", "bootstrap-controller", "start-kubernetes-service-cidr-controller"} {
		checks = append(checks, health.Check{Name: hook + name, Err: func() error { return s.beside.founded }, Warns: true})
	}
	return checks
}

// readiness lists what is looked at in /readyz. What fails makes the server unready: another one, or none, would answer better. What warns leaves it
// ready, since it answers reads and deletes, and whoever is to help must get at it.
func (s *server) readiness() []health.Check {
	checks := []health.Check{health.Ping, health.Shutdown(s.leave.leaving), {Name: "store", Err: s.storage.st.File.Writable}, {Name: "damage", Err: s.storage.scrub.Whole},
		{Name: "scrub", Err: s.storage.scrub.Intact}, {Name: "unreadable", Err: s.api.rd.lost.Check}, {Name: "disk", Err: s.storage.st.HasRoom, Warns: true},
		{Name: "certificates", Err: s.entrance.endpoint.Valid, Warns: true}, {Name: "clock", Err: s.clockRight, Warns: true}}
	if s.audit != nil {
		checks = append(checks, health.Check{Name: "audit", Err: s.audit.Works, Warns: true})
	}
	holds := s.storage.backing() // under the names that kube-apiserver's checks of its storage have
	checks = append(checks, health.Check{Name: "quota", Err: holds.quota, Warns: true}, health.Check{Name: "etcd", Err: holds.check},
		health.Check{Name: "etcd-readiness", Err: holds.seen})
	return slices.Concat(checks, s.plugins(), health.Done("informer-sync"), s.started())
}

// plugins is the check of those that have the keys of what is encrypted, where there are any. A restart would not bring them back, so /livez has none.
func (s *server) plugins() []health.Check {
	if !s.storage.keys.HasHealth() {
		return nil
	}
	return []health.Check{{Name: "kms-providers", Err: s.storage.keys.Health}}
}

// clockRight is the check that shows whether the machine's clock is believed.
func (s *server) clockRight() error {
	if by := s.clock.Behind(); by > 0 {
		return fmt.Errorf("the machine's clock is behind what is known to have passed, by %s: it is not believed until a time server or somebody sets it (timedatectl)",
			by.Round(time.Second))
	}
	return nil
}

// observed counts how a check went, and has the log hear of those that nobody else tells it of.
func (s *server) observed(endpoint string) func(check string, err error) {
	return func(check string, err error) {
		s.metrics.checked(endpoint, check, err == nil)
		told := append([]string{"damage", "scrub", "unreadable", "certificates", "clock"}, s.storage.backing().told...)
		if endpoint == "readyz" && slices.Contains(told, check) {
			s.troubles.Tell("/readyz/"+check, err)
		}
	}
}

// ---- The chain and the routes ----

// speaks is the version of Kubernetes that this server speaks as.
func speaks() [2]int { return serverVersion("1", strings.Split(scheme.KubernetesVersion, ".")[1]) }

// An api answers requests about now, and leads those about what was to a readAPI.
type api struct {
	readAPI
	wr          *registry.Writer
	wt          *watching
	definitions *crd.Definitions
	aggregated  *aggregation.Aggregator // passes on what is for other servers
	connector   *kubelet.Connector      // passes on what is for kubelets and Pods
	upgrades    *shares.Places          // for upgraded connections, of all handlers together
	storage     *storage
	fc          *flowControl // nil without flow control
	instruments *instrumentation
	usage       *deprecations.Tracker
	shown       dashboard.Watches  // that are served
	health      []*health.Endpoint // /livez and its like
	options     *options.Options
	keysURL     string // where this server has the keys that check service accounts' tokens
}

// handler is the way of every request: what is done for all of them, from the outside in, then the route.
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

// seated gives requests their seats: by flow control, or by counting alone when that is switched off.
func (a *api) seated(next http.Handler) http.Handler {
	if a.fc == nil {
		return maxInFlight(a.options.MaxReadonly, a.options.MaxMutating, next)
	}
	return a.fc.middleware(next)
}

// routes lists everything that is served.
func (a *api) routes() http.Handler {
	r := chi.NewRouter()
	var checked []string
	for _, endpoint := range a.health {
		for _, check := range endpoint.Checks {
			checked = append(checked, "/"+endpoint.Name+"/"+check.Name)
		}
		endpoint.Shows = a.maySee
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
	r.Handle(history.Path, a.history()) // which asks for each object that it tells of
	r.HandleFunc(findings.Path, func(w http.ResponseWriter, r *http.Request) {
		a.instruments.findings.Serve(w, r, findings.Rights{May: may(a.auth), MayAnything: a.auth.MayListAnything, Since: a.timeSince})
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
	backups := datafile.Backups{Store: a.storage.st, Maintenance: a.storage.upkeep, Ephemeral: a.options.Ephemeral, At: a.moments().Named, Fail: a.fail}
	r.Handle(request.PathBackup, a.withAuthorization(backups.ServeHTTP))
	page := a.page()
	r.Handle("/debug/ui", http.RedirectHandler(request.PathUI, http.StatusMovedPermanently))
	r.HandleFunc(request.PathUI+"*", page.ServePage) // for anybody: nothing of the server is in it
	r.Handle(dashboard.DataPath, a.withAuthorization(page.ServeData))
	r.Handle("/api", a.withAuthorization(a.serveDiscovery))
	r.Handle("/apis", a.withAuthorization(a.serveGroups))
	r.HandleFunc("/api/*", a.serveAPI)
	r.HandleFunc("/apis/*", a.serveAPI)
	r.Handle("/", a.withAuthorization(routing.Index(r, a.types, checked...)))
	r.NotFound(a.withAuthorization(http.NotFound))
	r.MethodNotAllowed(routing.WhateverMethod(r))
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
		_, _ = w.Write(body) // the client is gone otherwise
	}
}

// withAuthorization authorizes a request before it is handled.
func (a *api) withAuthorization(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := a.auth.Authorize(request.From(r.Context())); err != nil {
			a.fail(w, r, err)
			return
		}
		next(w, r)
	}
}

// throughTime answers what asks about a moment (/at/MOMENT/...) as of then, and leaves the rest to now.
func (a *api) throughTime(now http.Handler) http.Handler {
	past := history.Past{Moments: a.moments(), Has: hadAnswer, Types: a.definitions.At, Show: a.serveThen, Fail: a.fail}
	then := a.withAuthorization(past.ServeHTTP) // by the rules of now
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if request.From(r.Context()).At == "" {
			now.ServeHTTP(w, r)
			return
		}
		then(w, r)
	})
}

func (a *api) moments() history.Moments {
	return history.Moments{Store: a.storage.st, Maintenance: a.storage.upkeep}
}

// hadAnswer says which paths are shown as they were.
func hadAnswer(path string) history.Answer {
	root, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	switch {
	case root == "api" || root == "apis" || path == "/openapi/v2" || path == "/openapi/v3" || strings.HasPrefix(path, "/openapi/v3/"):
		return history.Typed
	case path == "/version" || path == "/version/":
		return history.Timeless
	}
	return history.Nothing
}

// serveThen answers with what this server showed at a revision; types is nil for what is the same at all times.
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
		discovery.ServeOpenAPI(types, history.PathThen+strconv.FormatInt(rev, 10), w, r) // where it may be kept for a year
	default:
		then.serveAPI(w, r)
	}
}

// at is the API as it was at a revision, by the rules of now.
func (a *api) at(types *scheme.Registry, rev int64) *readAPI {
	return &readAPI{types: types, rd: a.rd.asOf(rev), auth: a.auth, deprecated: a.deprecated, log: a.log}
}

// history answers what has changed, to those who may list what it was.
func (a *api) history() *history.Log {
	return history.New(history.Config{Store: a.storage.st, Maintenance: a.storage.upkeep, Types: a.types, MayAnything: a.auth.MayListAnything,
		Begun: watchBegun, Fail: a.fail, Reach: a.rd.past,
		Patience: a.options.RequestTimeout, Lifetime: a.options.MinTimeout, ShuttingDown: a.wt.shuttingDown})
}

// timeSince is from when on somebody may know of what a request is about.
func (a *api) timeSince(u request.User, info request.Info) time.Time {
	switch rev, err := a.rd.past.Since(u, info, ""); {
	case err != nil: // damage, of which a scrub tells
		return time.Now()
	case rev > 0:
		return a.rd.st.TimeOf(rev)
	}
	return time.Time{}
}

// may tells whether somebody may do something, by the rules of now.
func may(by *auth.Authenticator) func(u request.User, info request.Info) bool {
	return func(u request.User, info request.Info) bool {
		allowed, _ := by.Decide(u, info)
		return allowed
	}
}

// maySee tells whether who asks may get another path, too.
func (a *api) maySee(r *http.Request, path string) bool {
	return a.auth.Check(request.From(r.Context()).User, request.Info{Verb: "get", Path: path}) == nil
}

// page is what /debug/ui/ shows.
func (a *api) page() *dashboard.Page {
	p := &dashboard.Page{Store: a.storage.st, Types: a.types, Watches: &a.shown, Version: gitVersion, Kept: a.options.Kept(),
		Deprecations: func(most int) any { return a.usage.List(most) }}
	if a.fc != nil {
		p.Flows = a.fc.dispatcher
	}
	return p
}

// serveGroups answers /apis.
func (a *api) serveGroups(w http.ResponseWriter, r *http.Request) {
	if others := a.aggregated.Others(); others != nil {
		discovery.ServeMerged(a.types, others, w, r)
		return
	}
	a.serveDiscovery(w, r)
}

// serveOpenAPI answers /openapi/v3 and what is below it.
func (a *api) serveOpenAPI(w http.ResponseWriter, r *http.Request) {
	if !a.aggregated.ServeOpenAPI(w, r) {
		a.readAPI.serveOpenAPI(w, r)
	}
}

func (a *api) serveSwagger(w http.ResponseWriter, r *http.Request) {
	discovery.ServeSwagger(a.types, a.aggregated.Others(), w, r)
}

// serveAPI authorizes and answers everything below /api/ and /apis/.
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

// serveResource answers a request for a resource that is served.
func (a *api) serveResource(w http.ResponseWriter, r *http.Request, rec *request.Request, res *scheme.Resource) error {
	info := &rec.Info
	if info.Name != "" && request.IsMutating(info) && !res.Virtual && !request.Connects(info.Subresource) { // before anything is done: afterwards nothing can be refused
		_, size, _ := a.rd.st.GetUpTo(res.Key(res.Scope(info.Namespace), info.Name), 0)
		if err := shares.Hold(r.Context(), w, size); err != nil {
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
		if _, err := parseQuery(res, info); err != nil { // told before what is wrong with the body
			return err
		}
		removeEach, err := a.wr.RemoveEach(w, r, rec, res)
		if err != nil {
			return err
		}
		return a.rd.listAnd(w, r, rec, res, removeEach)
	}
	return apierror.MethodNotAllowed()
}

// watchHooks connect a watch with flow control, the metrics and the page. done is to be called when it is over.
func (a *api) watchHooks(r *http.Request, rec *request.Request, res *scheme.Resource) (hooks watchHooks, done func()) {
	labels := a.instruments.watchLabels(&rec.Info)
	options, _ := rec.Info.ListOptions() // those that are wrong are refused further on
	shown := &dashboard.Watch{User: rec.User.Name, Agent: r.UserAgent(), Group: res.Group, Resource: res.Plural, Namespace: rec.Info.Namespace,
		LabelSelector: options.LabelSelector, FieldSelector: options.FieldSelector, Base: res.KeyPrefix(""), Started: rec.Received}
	a.shown.Begin(shown)
	return watchHooks{
		begun:  func() { watchBegun(r.Context()) },
		listed: func() { a.instruments.metrics.watchListDone(labels, time.Since(rec.Received)) },
		sent:   a.instruments.metrics.longRunning(labels).sent,
		opened: shown.Follow,
	}, func() { a.shown.End(shown) }
}

// serveSubresource answers a request for a part of an object.
func (a *api) serveSubresource(w http.ResponseWriter, r *http.Request, rec *request.Request, res *scheme.Resource) error {
	info := &rec.Info
	if info.Verb == "get" && !request.Connects(info.Subresource) {
		return a.readAPI.serveSubresource(w, r, rec, res)
	}
	if err := routing.HasVerb(res, info); err != nil {
		return err
	}
	if request.Connects(info.Subresource) {
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

// noteUse remembers who has used a deprecated version.
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
	minor := strconv.Itoa(speaks()[1])
	body, _ := json.MarshalIndent(version.Info{Major: "1", Minor: minor, EmulationMajor: "1", EmulationMinor: minor,
		MinCompatibilityMajor: "1", MinCompatibilityMinor: strconv.Itoa(speaks()[1] - 1), GitVersion: gitVersion, GitTreeState: "clean",
		GoVersion: runtime.Version(), Compiler: runtime.Compiler, Platform: runtime.GOOS + "/" + runtime.GOARCH}, "", "  ")
	response.WriteJSON(w, r, http.StatusOK, body)
}

// ---- The command line ----

// program is apilet with its table of commands.
func program() *commandline.Program {
	return &commandline.Program{Name: "apilet", About: "Apilet is a Kubernetes-compatible API server in one program and one file.",
		Commands: func() []commandline.Command {
			return (&config{namespaceGrace: gc.NamespaceGrace, grace: stoppingGrace}).commands()
		}, Version: printVersion}
}

// commands are apilet's; flags write into c.
func (c *config) commands() []commandline.Command {
	return slices.Concat([]commandline.Command{
		{Name: "", Counts: []int{0}, What: "serve until told to stop", Groups: c.Groups(), Run: func(call commandline.Call) error { return c.serve(call.Errors) }},
	}, datacmd.Commands(newConsole), []commandline.Command{
		{Name: "envtest-assets", Args: "DIR", Counts: []int{1}, What: "create a folder of assets for envtest, and print the shell line that selects it",
			Groups: []commandline.FlagGroup{{Title: "Flags", Define: func(f *flag.FlagSet) {
				f.StringVar(&c.Base, "base", "", "a prepared data `file` with which each server begins: `apilet fork` makes one")
			}}},
			Run: func(call commandline.Call) error { return envtest.MakeAssets(call.Out, call.Args, c.Base) }},
	}, nodebootstrap.Commands(newConsole), torture.Commands(), logcmd.Commands())
}

// commandAs runs the program as what it was called: itself, or one of the two whose place it takes in tests.
func commandAs(called string, args []string, stdout, stderr io.Writer) int {
	var err error
	name := envtest.ProgramName(called)
	switch name {
	case logcmd.PluginName:
		return logcmd.Plugin(printVersion).Run(args, stdout, stderr)
	case "etcd":
		ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
		defer cancel()
		context.AfterFunc(ctx, cancel) // the second signal ends the process
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
			return program().Run(append(args, envtest.BaseBeside(called)...), stdout, stderr)
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

// outliveHangups keeps a hangup from ending the process: a terminal that is closed, or a logrotate that signals where no audit log is.
func outliveHangups() (stop func()) {
	heard := make(chan os.Signal, 1) // never read: what does not fit is dropped
	signal.Notify(heard, syscall.SIGHUP)
	return func() { signal.Stop(heard) }
}

// printVersion prints which apilet this is, the format of the data files that it writes, and the version of Kubernetes that it answers /version with.
func printVersion(out io.Writer) error {
	_, err := fmt.Fprintf(out, "%sdata file format %d\nKubernetes %s\n", commandline.ThisBuild().Lines("apilet"), store.Format, gitVersion)
	return err
}

// ---- Flags: names, meanings and defaults are kube-apiserver's where it has the flag ----

// newConfig returns the flags for serving with their defaults.
func newConfig(stderr io.Writer) (*config, *flag.FlagSet) {
	c, f := &config{namespaceGrace: gc.NamespaceGrace, grace: stoppingGrace}, flag.NewFlagSet("apilet", flag.ContinueOnError)
	f.SetOutput(stderr)
	for _, group := range c.Groups() {
		group.Define(f)
	}
	return c, f
}
