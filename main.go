// Apilet is a Kubernetes-compatible API server: one program, one bbolt file, no etcd, no cluster. Unmodified kubectl, client-go and
// controller-runtime talk to it. A request meets the parts in this order; what stands without .go is a package under internal/:
//
//	         ┌───────────────────────────── main.go ─────────────────────────────┐
//	request ─▶ record · warn.go · deadline ──▶ auth ──▶ apf.go, flowcontrol ──▶ route │
//	         └──────────────────────────────────────────────────────────────┬────┘
//	                         ┌──────────────────────────────────────────────┤
//	                         ▼ reads                                        ▼ writes
//	                  list.go, watch.go        registry ──▶ patch, fieldmanager, defaults, strategy, admission, validation
//	                         │                                    │
//	                         └──────────▶ store ◀─────────────────┘ ◀── gc, which works off what was deleted
//
// This file puts the parts together, and serves until it is told to stop: the command line comes last, the server's start,
// the chain of steps that every request goes through, and the one list of routes before them. The outermost step makes the record of a
// request when it comes, and writes log line, metrics and audit event from it when it is over; a panic ends its request and nothing else.
package main

import (
	"cmp"
	"context"
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
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation/path"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"

	"apilet/internal/admission"
	"apilet/internal/admission/plugins"
	"apilet/internal/admission/policy"
	"apilet/internal/admission/quota"
	"apilet/internal/audit"
	"apilet/internal/auth"
	"apilet/internal/auth/certs"
	"apilet/internal/auth/node"
	"apilet/internal/auth/rbac"
	"apilet/internal/auth/serviceaccount"
	"apilet/internal/bootstrap"
	"apilet/internal/clock"
	"apilet/internal/commandline"
	"apilet/internal/crd"
	"apilet/internal/dashboard"
	"apilet/internal/datafile"
	"apilet/internal/datafile/datacmd"
	"apilet/internal/deprecations"
	"apilet/internal/drain"
	"apilet/internal/envtest"
	"apilet/internal/etcd"
	"apilet/internal/findings"
	"apilet/internal/footprint"
	"apilet/internal/gc"
	"apilet/internal/health"
	"apilet/internal/history"
	"apilet/internal/history/logcmd"
	"apilet/internal/kubeconfig"
	"apilet/internal/notify"
	"apilet/internal/options"
	"apilet/internal/registry"
	"apilet/internal/registry/allocator"
	"apilet/internal/request"
	"apilet/internal/response"
	"apilet/internal/routing"
	"apilet/internal/scheme"
	"apilet/internal/scheme/discovery"
	"apilet/internal/serving"
	"apilet/internal/shares"
	"apilet/internal/store"
	"apilet/internal/systemd"
	"apilet/internal/torture"
	"apilet/internal/troubles"
	"apilet/internal/unreadable"
	"apilet/internal/webhook"
)

const (
	minorVersion  = "36"
	gitVersion    = "v1.36.0+apilet"
	bookmarkEvery = time.Minute
	stoppingGrace = 20 * time.Second // for requests that run when the server is told to stop; the work beside them has a fifth of it
	closingGrace  = 4 * time.Second  // for the files and etcd, after that
	lateAnswer    = 5 * time.Second  // for a refusal to be written once the time of its request is over
	stopWithin    = 30 * time.Second // for the process, from the end of --shutdown-delay-duration on, whatever it is doing: as long as Kubernetes gives a pod
)

// config is how a server is to be: what the flags say, and what none says.
type config struct {
	options.Options
	namespaceGrace time.Duration
	grace          time.Duration    // stoppingGrace
	starting       context.Context  // ends a start; nil: nothing does
	clock          func() time.Time // in place of the machine's clock; nil: that one
	log            zerolog.Logger
	manager        systemd.Manager // is told how it goes
}

func main() {
	uuid.EnableRandPool() // a system call for sixteen: ids are to be unlike each other, and keep no secret
	os.Exit(commandAs(os.Args[0], os.Args[1:], os.Stdout, os.Stderr))
}

// serve runs the server until SIGTERM or SIGINT. The second of these ends the process at once.
func (c *config) serve(stderr io.Writer) error {
	defer outliveHangups()()
	c.log = newLogger(stderr, c.LogFormat)
	stop, forget := drain.Told(stopWithin+c.ShutdownDelay, func(why string) {
		c.log.Error().Msg(why + ": the process ends now, and gives up what still runs. Every write that was answered is kept")
		os.Exit(1)
	}, syscall.SIGTERM, syscall.SIGINT)
	defer forget()
	c.starting = stop
	c.manager = systemd.FromEnvironment(os.Getenv)
	context.AfterFunc(stop, func() { c.toldManager(c.manager.Stopping()) })
	var serving atomic.Pointer[server] // nil while one starts or stops
	watched, unwatch := context.WithCancel(context.Background())
	defer unwatch()
	go c.manager.Watch(watched, func(ctx context.Context) error { return serving.Load().alive(ctx) }, func(err error) {
		c.log.Error().Err(err).Msg("the server does not prove that it lives; the service manager's watchdog is not fed")
	})
	for again := false; ; {
		own := *c // the start completes it
		s, err := startServer(&own)
		if !again && c.replicaFailed(err) {
			c.log.Error().Err(err).Msg("starting anew")
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
		select {
		case <-stop.Done():
			c.log.Info().Stringer("serves-for", c.ShutdownDelay).Msg("stopping")
			s.sendAway(c.ShutdownDelay)
		case err = <-s.failed:
		case why := <-s.cluster.Lost():
			c.log.Error().Err(why).Msg("starting anew")
			serving.Store(nil)
			c.Listen = s.listening // the port that it has now
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
		c.log.Warn().Err(err).Msg("the service manager does not listen")
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

// A server is a running apilet.
type server struct {
	cfg         *config
	log         zerolog.Logger
	clock       *clock.Clock
	clockSet    chan struct{} // a token when the machine's clock has been set
	endpoint    serving.Endpoint
	url         string
	st          *store.Store
	cluster     *etcd.Cluster // nil without --etcd-servers
	leads       atomic.Bool   // this server is the leader of those on the cluster
	upkeep      *store.Maintenance
	reg         *scheme.Registry
	rd          *reads
	wr          *registry.Writer
	webhooks    *admission.Webhooks
	policies    *policy.Policies
	endpoints   *bootstrap.Endpoints
	namespaces  *bootstrap.NamespaceReconciler // nil without --namespace-defaults, or --controllers
	types       *crd.Definitions
	apiServices *bootstrap.APIServiceReconciler
	auth        *auth.Authenticator
	metrics     *metrics
	usage       *deprecations.Tracker
	watches     dashboard.Watches         // that are served
	audit       *audit.Log                // nil without --audit-log-path
	auditFails  atomic.Pointer[error]     // why the audit log cannot be written; nil: it can, or there is none
	fc          *flowControl              // nil without flow control
	flows       *bootstrap.FlowReconciler // its configuration's
	scrub       *datafile.Scrub
	lost        *unreadable.Unreadables
	troubles    *troubles.Log
	http        *http.Server
	listening   string
	findings    *findings.Detector
	instruments *instrumentation
	probe       health.Probe // of itself
	founded     error        // why a part of what every cluster has is missing; nil: it is there
	resting     drain.Conns
	leaving     chan struct{}      // closed when the server is told to stop: /readyz fails, connections end with their next answer
	leaveOnce   sync.Once          // closes it
	stopping    chan struct{}      // closed when the server ends serving: watches end
	idle        context.CancelFunc // ends the background work
	work        drain.Work         // in the background
	failed      chan error         // what ended the server, if it was not told to stop
}

// startServer opens the store, listens, and serves in the background. The caller stops it.
func startServer(c *config) (*server, error) {
	if err := c.Finish(); err != nil {
		return nil, err
	}
	if c.starting == nil {
		c.starting = context.Background()
	}
	now := clock.New(c.clock)
	c.Auth.Log, c.Auth.Now = c.log, now.Now
	s := &server{cfg: c, log: c.log, clock: now, clockSet: make(chan struct{}, 1), endpoint: serving.Endpoint{Options: &c.Options, Log: c.log, Now: now.Now},
		reg: scheme.NewRegistry(), metrics: newMetrics(), usage: deprecations.NewTracker(), troubles: troubles.New(c.log),
		leaving: make(chan struct{}), stopping: make(chan struct{}), failed: make(chan error, 1)}
	if err := kubeconfig.CheckOwn(c.Kubeconfig); err != nil {
		return nil, err
	}
	listener, err := s.endpoint.Listen() // before any file is made: a port in use leaves none behind
	if err != nil {
		return nil, err
	}
	if err := s.open(listener); err != nil {
		return nil, errors.Join(s.giveUp(err), listener.Close())
	}
	return s, nil
}

// open opens all files, then the server on a listener. When there is an error, these are the caller's to close.
func (s *server) open(listener net.Listener) error {
	c := s.cfg
	err := s.reachEtcd()
	if err != nil {
		return err
	}
	if err = s.endpoint.Open(s.authorityShared()); err != nil {
		return fmt.Errorf("--cert-dir: %w", err)
	}
	if s.auth, err = auth.New(c.Auth); err != nil {
		return err
	}
	if c.AuditPath != "" {
		if s.audit, err = audit.Open(c.AuditPath, s.auditHooks()); err != nil {
			return fmt.Errorf("--audit-log-path: %w", err)
		}
	}
	if err := s.openStore(); err != nil {
		return err
	}
	s.clock.Passed(s.st.TimeOf(s.st.Revision()))
	datafile.RemoveLeftovers(s.st.Path)
	if err := s.preflight(); err != nil {
		return err
	}
	s.guardSecrets()
	s.listening = listener.Addr().String()
	return s.start(listener)
}

// preflight reads what the start cannot do without, beside the keys, which opening has read. The start writes, too (what every server has, keys),
// and a file that will be refused has to stay as it is: so this comes before all of it. Objects it can do without, whichever they are.
func (s *server) preflight() error {
	_, err := store.NewMaintenance(s.st)
	return err
}

// guardSecrets sees to who may read the files with secrets; package certs does for those that it makes.
func (s *server) guardSecrets() {
	if !s.cfg.Ephemeral {
		if _, err := certs.Hide(s.log, s.st.Path); err != nil {
			s.log.Error().Err(err).Msg("the data file is not for the server alone")
		}
	}
	certs.TellExposed(s.log, append([]string{s.cfg.Auth.TokenFile, s.cfg.TLSKey, s.cfg.ContinueKeyFile, s.cfg.Accounts.SigningKeyFile}, s.cfg.Accounts.KeyFiles...)...)
}

func (s *server) start(listener net.Listener) error {
	if err := kubeconfig.Clear(s.cfg.Kubeconfig); err != nil {
		return err
	}
	if err := s.assemble(); err != nil {
		return err
	}
	ctx := s.cfg.starting
	if err := s.populate(ctx); err != nil {
		return err
	}
	url, secured, err := s.endpoint.Secure(listener, s.auth.ClientCAs)
	if err != nil {
		return err
	}
	s.url = url
	initializer, at := bootstrap.Initializer{Writer: s.wr, Types: s.reg}, listener.Addr().(*net.TCPAddr).AddrPort()
	s.endpoints = &bootstrap.Endpoints{Initializer: initializer, Etcd: s.cluster, Reconciler: s.cfg.EndpointReconciler, Advertised: s.cfg.Advertised}
	if s.founded = errors.Join(initializer.Cluster(ctx, s.wr.Allocator.Block, int(at.Port())), s.endpoints.Start(ctx, at)); s.founded != nil {
		s.log.Error().Err(s.founded).Msg("a part of the cluster is missing")
	}
	if err := s.publishAuthorities(ctx); err != nil {
		s.log.Error().Err(err).Msg("who vouches for clients is not published")
	}
	s.http = &http.Server{
		Handler:           s.handler(),
		TLSConfig:         secured,
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       s.cfg.RequestTimeout + 5*time.Second,
		WriteTimeout:      s.cfg.RequestTimeout + 10*time.Second,
		IdleTimeout:       3 * time.Minute,
		HTTP2:             &http.HTTP2Config{WriteByteTimeout: s.cfg.RequestTimeout}, // a stream's deadline is of no use on a connection that is stuck
		MaxHeaderBytes:    64 << 10,
		ConnContext:       withConn,
		ConnState:         s.resting.Note,
		ErrorLog:          stdlog.New(s.metrics.countHandshakeErrors(levelWriter{s.log}), "", 0),
	}
	if err := s.endpoint.WriteKubeconfig(); err != nil {
		return err
	}
	s.probe = health.NewProbe(at, secured != nil)
	s.startWorkers()
	go s.rd.news.Run(s.stopping)
	go s.accept(listener)
	s.log.Info().Str("url", s.url).Str("data", s.st.Path).Int64("revision", s.st.Revision()).Msg("serving")
	s.cfg.toldManager(s.cfg.manager.Ready("serving " + s.url))
	return nil
}

// alive proves that the server lives, for a watchdog: it answers /livez at its own port, and the writer of its data file answers. What a restart would
// not cure (a full disk, damage, an etcd that is away) is no lack of life. A proof that hangs lasts longer than ctx.
func (s *server) alive(ctx context.Context) error {
	if s == nil {
		return nil
	}
	return errors.Join(s.probe.Ask(ctx, "/livez"), s.st.WriterAnswers(ctx))
}

// publishAuthorities tells programs beside this server whose client certificates it takes. They learn of a changed file at the next start.
func (s *server) publishAuthorities(ctx context.Context) error {
	pem, err := s.cfg.Auth.Authorities()
	if err != nil || len(pem) == 0 {
		return err
	}
	return bootstrap.Initializer{Writer: s.wr, Types: s.reg}.ClientAuthorities(ctx, pem)
}

// assemble makes the parts that work on the store, and puts them together.
func (s *server) assemble() error {
	var err error
	if s.upkeep, err = store.NewMaintenance(s.st); err != nil {
		return err
	}
	s.upkeep.Yields = s.cfg.History == nil // what was asked for is kept
	s.scrub = &datafile.Scrub{Store: s.st, Maintenance: s.upkeep, Log: s.log}
	s.cfg.Accounts.RootCA = s.cfg.Auth.OwnCA
	if s.auth.Accounts, err = serviceaccount.New(s.st, s.cfg.Accounts); err != nil {
		return err
	}
	if len(s.cfg.Auth.Modes) > 0 {
		s.auth.Nodes = node.New(s.st, s.reg, func(err error) { s.troubles.Tell("reading what the pods of nodes refer to", err) })
	}
	keys, err := s.continueKeys()
	if err != nil {
		return err
	}
	s.lost = unreadable.NewUnreadables(s.st, s.log)
	s.rd = &reads{st: s.st, past: history.Reach{Store: s.st, May: s.may}, lost: s.lost, tokens: newTokenCodec(keys), chunking: s.cfg.Chunking, minTimeout: s.cfg.MinTimeout,
		storage: s.backing().check, bookmarks: bookmarkEvery, patience: s.cfg.RequestTimeout, shuttingDown: s.stopping, news: notify.New(s.st),
		readSlots: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2))}
	alloc, err := allocator.New(s.st, s.cfg.ServiceRange)
	if err != nil {
		return err
	}
	alloc.Shared = s.cluster != nil
	if alloc.Failed = s.stands("cluster IPs and node ports"); s.cfg.ManagedFields {
		alloc.Manager = "apilet"
	}
	s.wr = &registry.Writer{Store: s.st, Types: s.reg, Auth: s.auth, Allocator: alloc, Unreadable: s.lost, Validating: s.cfg.Validate, ManagedFields: s.cfg.ManagedFields}
	if err := s.admit(); err != nil {
		return err
	}
	s.findings = findings.New(findings.Logged(s.log))
	s.metrics.registry.MustRegister(s.findings)
	s.instruments = &instrumentation{reg: s.reg, metrics: s.metrics, audit: s.audit, findings: s.findings, log: s.log, verbosity: s.cfg.Verbosity, timeout: s.cfg.RequestTimeout,
		bytes: shares.NewBytes(s.cfg.RequestTimeout / 4)}
	s.metrics.registry.MustRegister(&datafile.Collector{Store: s.st, Types: s.reg, Scrub: s.scrub, Unreadable: s.lost, Tracked: &s.wr.Tracked})
	s.metrics.clockBehind(s.clock.Behind)
	s.metrics.leader(s.leads.Load)
	s.metrics.registry.MustRegister(certificateFigures(s.endpoint.Certificates))
	s.metrics.registry.MustRegister(clusterFigures{s.cluster})
	s.metrics.buildInfo(map[string]string{"major": "1", "minor": minorVersion, "git_version": gitVersion, "go_version": runtime.Version(),
		"platform": runtime.GOOS + "/" + runtime.GOARCH})
	s.types = crd.NewDefinitions(s.st, s.reg, s.wr, s.log)
	s.types.Stands = s.stands("definitions of custom resources")
	return nil
}

// populate brings what is stored into force (definitions, flow control, roles) and adds what every server has.
func (s *server) populate(ctx context.Context) error {
	if err := errors.Join(bootstrap.Initializer{Writer: s.wr, Types: s.reg}.Namespaces(ctx), s.types.Sync(ctx)); err != nil {
		return err
	}
	if s.cfg.Controllers && s.cfg.NamespaceDefaults {
		s.namespaces = bootstrap.NewNamespaceReconciler(s.st, s.reg, s.wr, s.cfg.Auth.OwnCA, s.log)
		if err := s.namespaces.ReconcileAll(ctx, bootstrap.FirstNamespaces); err != nil {
			return err
		}
		s.wr.NamespaceCreated = s.namespaces.NamespaceCreated
	}
	if s.cfg.FlowControl {
		s.fc = newFlowControl(s.cfg.Seats(), s.cfg.RequestTimeout, s.stored)
		s.flows = bootstrap.NewFlowReconciler(s.st, s.reg, s.wr, s.fc.configure)
		s.metrics.registry.MustRegister(s.fc.dispatcher)
		s.followMachine()
		if err := s.flows.Start(ctx); err != nil {
			return err
		}
	}
	s.apiServices = bootstrap.NewAPIServiceReconciler(s.st, s.reg, s.wr)
	if err := s.apiServices.Reconcile(ctx, true); err != nil {
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

// admit puts the chain of plug-ins together that every write passes.
func (s *server) admit() error {
	s.webhooks = &admission.Webhooks{Store: s.st, Types: s.reg, Services: &webhook.ServiceResolver{Store: s.st, Types: s.reg}, Called: s.metrics.webhookCalled, Log: s.log,
		May: s.auth.Decide, Defaults: registry.FillDefaults, Unreadable: s.lost, Stands: s.troubles.Tell}
	s.webhooks.Reload()
	configuration, err := plugins.ReadConfiguration(s.cfg.AdmissionConfig)
	if err != nil {
		return fmt.Errorf("--admission-control-config-file: %w", err)
	}
	s.policies = &policy.Policies{Store: s.st, Types: s.reg, Unreadable: s.lost, Log: s.log, May: s.auth.Decide, Defaults: registry.FillDefaults,
		Fields: s.wr.FieldManager, Convert: admission.MovedTo, Checked: s.metrics.policyChecked}
	s.policies.Reload()
	mutating, validating := plugins.Policies(s.policies)
	table := plugins.Table(plugins.Config{Store: s.st, Types: s.reg, May: s.auth.Decide, CreateNamespace: s.createNamespace, Webhooks: s.webhooks, MutatingPolicy: mutating, ValidatingPolicy: validating,
		Configuration: *configuration, PodChecked: s.metrics.podChecked, ControllerManager: !s.cfg.Controllers, Tolerations: s.cfg.Tolerations, Clock: s.cfg.clock})
	on, err := configuration.Select(table, s.cfg.EnabledPlugins, s.cfg.DisabledPlugins)
	if err != nil {
		return err
	}
	s.wr.Admission, s.wr.ProvisionsNamespaces = admission.NewChain(table, on), on["NamespaceAutoProvision"]
	s.wr.Committed = append(s.wr.Committed, s.webhooks.Committed, s.policies.Committed)
	if on["ResourceQuota"] {
		if s.wr.Quotas, err = quota.New(s.st, s.reg); err != nil {
			s.log.Error().Err(err).Msg("reading ResourceQuotas: not all of them hold")
		}
	}
	return nil
}

// createNamespace makes a namespace for those who create something in one that is missing, where the server is told to.
func (s *server) createNamespace(ctx context.Context, name string) error {
	ctx = context.WithValue(ctx, request.Key{}, (*request.Request)(nil)) // nobody's: who asks need not have the right
	_, err := s.wr.Insert(ctx, s.reg.Lookup("", "v1", "namespaces"), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, registry.Options{Manager: "apilet"})
	return err
}

// typeChecker keeps the status of admission policies.
func (s *server) typeChecker() *policy.TypeChecker {
	row := s.reg.Lookup(admissionv1.GroupName, "v1", "validatingadmissionpolicies")
	return &policy.TypeChecker{Store: s.st, Types: s.reg, Schemas: discovery.KindSchemas,
		Tell: s.stands("checking the types of admission policies"),
		Write: func(ctx context.Context, name string, change func(*admissionv1.ValidatingAdmissionPolicy)) error {
			t := registry.Target{Resource: row, Name: name, Subresource: "status"}
			_, _, err := s.wr.Modify(ctx, t, registry.Options{Manager: "apilet", Trusted: true}, func(old scheme.Object, _ *store.Record) (scheme.Object, error) {
				next := old.DeepCopyObject().(*admissionv1.ValidatingAdmissionPolicy)
				change(next)
				return next, nil
			})
			if apierrors.IsNotFound(err) || errors.Is(err, store.ErrNotFound) {
				return nil
			}
			return err
		}}
}

// startWorkers runs what goes on beside requests: what kube-apiserver does in the background, and what kube-controller-manager would do.
// stop ends it.
func (s *server) startWorkers() {
	ctx, cancel := context.WithCancel(context.Background())
	s.idle = cancel
	gc := &gc.Collector{Store: s.st, Maintenance: s.upkeep, Types: s.reg, Writer: s.wr, EventTTL: s.cfg.EventTTL, Grace: s.cfg.namespaceGrace, Stands: s.troubles.Tell,
		Begin: s.instruments.own}
	work := &s.work
	work.Go("the controllers", func() { s.lead(ctx, func(ctx context.Context) { s.workOff(ctx, gc) }) })
	if s.cluster != nil {
		work.Go("following what other servers write", func() { s.wr.FollowOthers(ctx) })
	}
	work.Go("following what pods refer to", func() { s.auth.Nodes.Run(ctx) })
	work.Go("following definitions of types", func() { s.types.Run(ctx) })
	work.Go("following admission policies", func() { s.policies.Run(ctx) })
	work.Go("the scrub of the data file", func() { s.scrub.Run(ctx) })
	work.Go("the findings", func() { s.findings.Run(ctx) })
	work.Go("the search for objects that cannot be read", func() {
		if err := s.lost.Survey(ctx, unreadable.NewDecodeCheck(s.reg)); err != nil && ctx.Err() == nil {
			s.log.Error().Err(err).Msg("looking for objects that cannot be read")
		}
	})
	work.Go("giving pages back", func() { footprint.Run(ctx) })
	work.Go("heeding hangups", func() { s.heedHangups(ctx) })
	ready := health.Endpoint{Name: "readyz", Checks: s.readiness(), Observed: s.observed("readyz")}
	work.Go("the checks of /readyz", func() { ready.Run(ctx, health.LookEvery) })
	work.Go("watching the clock", func() { s.clock.Run(ctx, clock.LookEvery, s.noteClockSet) })
	work.Go("renewing certificates", func() { s.endpoint.Run(ctx, s.clockSet) })
	work.Go("telling where this server is", func() { s.endpoints.Run(ctx, s.leaving) })
	work.Go("compaction", func() {
		s.upkeep.Run(ctx, s.cfg.CompactionInterval, s.cfg.Kept(), func(_ store.Compaction, err error) { s.afterCompaction(ctx, gc, err) })
	})
	if s.flows != nil {
		work.Go("flow control", func() { s.fc.run(ctx) })
		work.Go("following flow schemas", func() {
			s.flows.Run(ctx, s.flows.Apply, s.stands("reading flow schemas and priority levels"))
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
				s.log.Error().Err(err).Msg("reopening the audit log")
			}
		}
		s.cfg.toldManager(s.cfg.manager.Ready("serving " + s.url))
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
	case s.clockSet <- struct{}{}:
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
		tokens := bootstrap.NewTokenReconciler(s.st, s.reg, s.wr, s.log)
		running.Go(func() {
			gc.KeepUp(ctx, "filling Secrets with tokens", func(ctx context.Context) error { return tokens.Run(ctx, s.stands("tokens for Secrets")) })
		})
	}
	if s.namespaces != nil {
		running.Go(func() {
			gc.KeepUp(ctx, "reconciling namespaces", s.namespaces.Run)
		})
	}
	running.Go(func() { s.wr.Allocator.Run(ctx) })
	running.Go(func() {
		s.wr.WriteQuotas(ctx, s.stands("writing what is used into the status of ResourceQuotas"))
	})
	running.Go(func() {
		s.apiServices.Run(ctx, s.stands("keeping the APIServices of custom resources"))
	})
}

// auditHooks count audit events, and tell the log when they cannot be written.
func (s *server) auditHooks() audit.Hooks {
	return audit.Hooks{
		Written: func(n int) { s.metrics.auditEvents.Add(float64(n)) },
		Dropped: func(n int) { s.metrics.auditErrors.Add(float64(n)) },
		Failing: func(err error) {
			if err != nil {
				s.auditFails.Store(&err)
				s.metrics.auditFailing.Set(1)
				s.log.Error().Err(err).Msg("the audit log cannot be written; events wait in memory, the first mebibyte of them: make room for it, or see who may write there")
				return
			}
			s.auditFails.Store(nil)
			s.metrics.auditFailing.Set(0)
			s.log.Info().Msg("the audit log is written again")
		},
	}
}

// accept serves until the listener is closed.
func (s *server) accept(listener net.Listener) {
	if err := serving.Accept(s.http, listener); !errors.Is(err, http.ErrServerClosed) {
		s.failed <- err
	}
}

// sendAway goes on serving for a while, and has clients and load balancers go elsewhere meanwhile.
func (s *server) sendAway(delay time.Duration) {
	s.leaveOnce.Do(func() { close(s.leaving) })
	if delay <= 0 {
		return
	}
	select {
	case <-time.After(delay):
	case err := <-s.failed:
		s.failed <- err
	case <-s.cluster.Lost():
	}
}

// closing ends connections with their answers once the server leaves: who asks again connects anew, and a load balancer knows where. In HTTP/2 the
// header becomes a GOAWAY, after which what runs on the connection goes on.
func (s *server) closing(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-s.leaving:
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
	s.http.RegisterOnShutdown(func() { close(s.stopping) }) // behind the closed door: whose watch ends comes back at once
	ctx, cancel := context.WithTimeout(context.Background(), s.cfg.grace)
	defer cancel()
	time.AfterFunc(drain.Delay, s.resting.Close)
	err := s.http.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		s.log.Warn().Int("connections", s.resting.Busy()).Stringer("waited", s.cfg.grace).Msg("the server gives up requests that do not end: it cuts their connections")
		err = s.http.Close()
	}
	s.idle()
	if unfinished := s.work.Wait(s.cfg.grace / 5); unfinished != nil {
		s.log.Warn().Err(unfinished).Msg("the server gives up work in the background")
	}
	return errors.Join(err, s.close())
}

// close closes what a server has open, when nobody uses it any more, or is waited for.
func (s *server) close() error {
	var closing drain.Work
	var stored, audited error
	closing.Go("closing the data file", func() {
		s.rd.news.Close()
		s.webhooks.Close()
		stored = s.closeStore()
	})
	if s.audit != nil {
		closing.Go("closing the audit log", func() { audited = s.audit.Close() })
	}
	if err := closing.Wait(closingGrace); err != nil {
		return err
	}
	return errors.Join(stored, audited)
}

// ---- The chain and the routes ----

// handler is the way of every request: what is done for all of them, from the outside in, then the route.
func (s *server) handler() http.Handler {
	return s.closing(s.instruments.record(s.instruments.deadline(s.auth.Authenticate(s.auth.Impersonate(s.withPriorityAndFairness(s.throughTime(s.routes())))))))
}

// liveness lists what is looked at in /livez and /healthz. Storage that is away is told, but a restart would not bring it back.
func (s *server) liveness() []health.Check {
	return append([]health.Check{health.Ping, {Name: "etcd", Err: s.backing().seen, Warns: true}}, s.started()...)
}

// started lists what is done when the server listens, by the names of kube-apiserver's hooks. What kube-apiserver does and this server does not, such
// as aggregation, is not there.
func (s *server) started() []health.Check {
	const hook = "poststarthook/"
	checks := health.Done(hook+"start-apiserver-admission-initializer", hook+"generic-apiserver-start-informers", hook+"start-apiextensions-informers",
		hook+"start-apiextensions-controllers", hook+"crd-informer-synced", hook+"start-system-namespaces-controller", hook+"storage-readiness",
		hook+"apiservice-registration-controller", hook+"kube-apiserver-autoregistration", "autoregister-completion")
	if s.auth.Enforcing() {
		checks = append(checks, health.Done(hook+"rbac/bootstrap-roles")...)
	}
	if s.flows != nil {
		checks = append(checks, health.Done(hook+"priority-and-fairness-config-consumer", hook+"priority-and-fairness-config-producer", hook+"priority-and-fairness-filter")...)
	}
	for _, name := range []string{"scheduling/bootstrap-system-priority-classes", "bootstrap-controller", "start-kubernetes-service-cidr-controller"} {
		checks = append(checks, health.Check{Name: hook + name, Err: func() error { return s.founded }, Warns: true})
	}
	return checks
}

// readiness lists what is looked at in /readyz. What fails makes the server unready: another one, or none, would answer better. What warns leaves it
// ready, since it answers reads and deletes, and whoever is to help must get at it.
func (s *server) readiness() []health.Check {
	checks := []health.Check{health.Ping, health.Shutdown(s.leaving), {Name: "store", Err: s.st.Writable}, {Name: "damage", Err: s.scrub.Whole},
		{Name: "scrub", Err: s.scrub.Intact}, {Name: "unreadable", Err: s.lost.Check}, {Name: "disk", Err: s.st.HasRoom, Warns: true},
		{Name: "certificates", Err: s.endpoint.Valid, Warns: true}, {Name: "clock", Err: s.clockRight, Warns: true}}
	if s.audit != nil {
		checks = append(checks, health.Check{Name: "audit", Err: s.auditWorks, Warns: true})
	}
	holds := s.backing() // under the names that kube-apiserver's checks of its storage have
	checks = append(checks, health.Check{Name: "quota", Err: holds.quota, Warns: true}, health.Check{Name: "etcd", Err: holds.check},
		health.Check{Name: "etcd-readiness", Err: holds.seen})
	return slices.Concat(checks, health.Done("informer-sync"), s.started())
}

// clockRight is the check that shows whether the machine's clock is believed.
func (s *server) clockRight() error {
	if by := s.clock.Behind(); by > 0 {
		return fmt.Errorf("the machine's clock is behind what is known to have passed, by %s: it is not believed until a time server or somebody sets it (timedatectl)",
			by.Round(time.Second))
	}
	return nil
}

// auditWorks is the check that shows whether the audit log is written.
func (s *server) auditWorks() error {
	if err := s.auditFails.Load(); err != nil {
		return fmt.Errorf("the audit log cannot be written, and what does not fit in memory is lost: %w", *err)
	}
	return nil
}

// observed counts how a check went, and has the log hear of those that nobody else tells it of.
func (s *server) observed(endpoint string) func(check string, err error) {
	return func(check string, err error) {
		s.metrics.checked(endpoint, check, err == nil)
		told := append([]string{"damage", "scrub", "unreadable", "certificates", "clock"}, s.backing().told...)
		if endpoint == "readyz" && slices.Contains(told, check) {
			s.troubles.Tell("/readyz/"+check, err)
		}
	}
}

// routes lists everything that is served.
func (s *server) routes() http.Handler {
	r := chi.NewRouter()
	var checked []string
	for name, checks := range map[string][]health.Check{"livez": s.liveness(), "healthz": s.liveness(), "readyz": s.readiness()} {
		for _, check := range checks {
			checked = append(checked, "/"+name+"/"+check.Name)
		}
		endpoint := &health.Endpoint{Name: name, Checks: checks, Shows: s.maySee, Observed: s.observed(name)}
		r.Handle("/"+name, s.withAuthorization(endpoint.ServeHTTP))
		r.Handle("/"+name+"/*", s.withAuthorization(endpoint.ServeHTTP))
	}
	r.Handle("/version", s.withAuthorization(s.serveVersion))
	r.Handle("/version/", s.withAuthorization(s.serveVersion))
	if config, ok := s.auth.Accounts.OpenIDConfiguration(cmp.Or(s.cfg.JWKSURI, s.url+"/openid/v1/jwks")); ok {
		r.Handle("/.well-known/openid-configuration", s.withAuthorization(document("application/json", config)))
		r.Handle("/openid/v1/jwks", s.withAuthorization(document("application/jwk-set+json", s.auth.Accounts.KeySet())))
	}
	r.Handle("/metrics", s.withAuthorization(s.metrics.handler().ServeHTTP))
	r.Handle("/openapi/v2", s.withAuthorization(s.serveSwagger))
	r.Handle("/openapi/v3", s.withAuthorization(s.serveOpenAPI))
	r.Handle("/openapi/v3/*", s.withAuthorization(s.serveOpenAPI))
	r.Handle("/debug/deprecations", s.withAuthorization(s.usage.ServeHTTP))
	r.Handle(history.Path, s.history()) // which asks for each object that it tells of
	r.HandleFunc(findings.Path, func(w http.ResponseWriter, r *http.Request) {
		s.findings.Serve(w, r, findings.Rights{May: s.may, MayAnything: s.auth.MayListAnything, Since: s.timeSince})
	})
	if s.flows != nil {
		pages := []string{"dump_priority_levels", "dump_queues", "dump_requests"}
		if s.fc.auto != nil {
			pages = append(pages, "dump_seats")
		}
		for _, page := range pages {
			r.Handle("/debug/api_priority_and_fairness/"+page, s.withAuthorization(s.fc.serveDump))
		}
	}
	backups := datafile.Backups{Store: s.st, Maintenance: s.upkeep, Ephemeral: s.cfg.Ephemeral, At: s.moments().Named, Fail: s.fail}
	r.Handle(rbac.PathBackup, s.withAuthorization(backups.ServeHTTP))
	page := s.page()
	r.Handle("/debug/ui", http.RedirectHandler(rbac.PathUI, http.StatusMovedPermanently))
	r.HandleFunc(rbac.PathUI+"*", page.ServePage) // for anybody: nothing of the server is in it
	r.Handle(dashboard.DataPath, s.withAuthorization(page.ServeData))
	r.Handle("/api", s.withAuthorization(s.serveDiscovery))
	r.Handle("/apis", s.withAuthorization(s.serveDiscovery))
	r.Handle("/api/*", s.withAuthorization(s.serveAPI))
	r.Handle("/apis/*", s.withAuthorization(s.serveAPI))
	r.Handle("/", s.withAuthorization(routing.Index(r, s.reg, checked...)))
	r.NotFound(s.withAuthorization(http.NotFound))
	r.MethodNotAllowed(routing.WhateverMethod(r))
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

// withAuthorization authorizes a request before it is handled.
func (s *server) withAuthorization(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := s.auth.Authorize(request.From(r.Context())); err != nil {
			s.fail(w, r, err)
			return
		}
		next(w, r)
	}
}

// throughTime answers what asks about a moment (/at/MOMENT/...) as of then, and leaves the rest to now.
func (s *server) throughTime(now http.Handler) http.Handler {
	past := history.Past{Moments: s.moments(), Has: hadAnswer, Types: s.types.At, Show: s.serveThen, Fail: s.fail}
	then := s.withAuthorization(past.ServeHTTP) // by the rules of now
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if request.From(r.Context()).At == "" {
			now.ServeHTTP(w, r)
			return
		}
		then(w, r)
	})
}

func (s *server) moments() history.Moments {
	return history.Moments{Store: s.st, Maintenance: s.upkeep}
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

// serveThen answers with what this server showed at a revision, by another that is enough of one to be read.
func (s *server) serveThen(w http.ResponseWriter, r *http.Request, types *scheme.Registry, rev int64) {
	if types == nil {
		s.serveVersion(w, r)
		return
	}
	rd := &reads{st: s.st, tokens: s.rd.tokens, chunking: s.rd.chunking, patience: s.rd.patience, readSlots: s.rd.readSlots, past: s.rd.past, at: rev}
	then := &server{cfg: s.cfg, log: s.log, st: s.st, reg: types, auth: s.auth, metrics: s.metrics, usage: s.usage, instruments: s.instruments, rd: rd}
	switch asked := request.From(r.Context()).Info.Path; {
	case asked == "/openapi/v2":
		then.serveSwagger(w, r)
	case strings.HasPrefix(asked, "/openapi/"):
		discovery.ServeOpenAPI(types, history.PathThen+strconv.FormatInt(rev, 10), w, r) // where it may be kept for a year
	default:
		then.serveAPI(w, r)
	}
}

// history answers what has changed, to those who may list what it was.
func (s *server) history() *history.Log {
	return history.New(history.Config{Store: s.st, Maintenance: s.upkeep, Types: s.reg, MayAnything: s.auth.MayListAnything, Begun: watchBegun, Fail: s.fail,
		Reach:    s.rd.past,
		Patience: s.cfg.RequestTimeout, Lifetime: s.cfg.MinTimeout, ShuttingDown: s.stopping})
}

// timeSince is from when on somebody may know of what a request is about.
func (s *server) timeSince(u request.User, info request.Info) time.Time {
	switch rev, err := s.rd.past.Since(u, info, ""); {
	case err != nil: // damage, of which a scrub tells
		return time.Now()
	case rev > 0:
		return s.st.TimeOf(rev)
	}
	return time.Time{}
}

// may tells whether somebody may do something, by the rules of now.
func (s *server) may(u request.User, info request.Info) bool {
	allowed, _ := s.auth.Decide(u, info)
	return allowed
}

func (s *server) serveDiscovery(w http.ResponseWriter, r *http.Request) {
	discovery.ServeDiscovery(s.reg, w, r)
}
func (s *server) serveOpenAPI(w http.ResponseWriter, r *http.Request) {
	discovery.ServeOpenAPI(s.reg, "", w, r)
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
	if r.Context().Err() != nil { // a computation may have gone on for longer than the connection was to be written to
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(lateAnswer))
	}
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
	if res.GoType == nil && !routing.HasPath(res, info) {
		http.NotFound(w, r)
		return nil
	}
	routed := routing.Routed(res, info, r.Method)
	if routed != nil && res.Custom == nil {
		return routed
	}
	if problems := path.IsValidPathSegmentName(info.Name); info.Form.Named && len(problems) > 0 {
		return apierrors.NewBadRequest(fmt.Sprintf("Name parameter invalid: %q: %s", info.Name, strings.Join(problems, ";")))
	}
	if err := cmp.Or(s.noteDeprecation(r, res), routed); err != nil { // of a custom resource's version also where it has no such part
		return err
	}
	if info.Name != "" && request.IsMutating(info) && !res.Virtual { // before anything is done: afterwards nothing can be refused
		_, size, _ := s.st.GetUpTo(res.Key(scheme.ScopeOf(res, info), info.Name), 0)
		if err := shares.Hold(r.Context(), w, size); err != nil {
			return err
		}
	}
	if err := s.rd.begun(r.Context(), res); err != nil {
		return err
	}
	if info.Subresource != "" {
		return s.serveSubresource(w, r, res)
	}
	if res.Virtual && info.Verb != "create" {
		return s.rd.components(w, r, res)
	}
	switch info.Verb {
	case "get":
		return s.rd.get(w, r, res)
	case "list":
		return s.rd.list(w, r, res)
	case "watch":
		defer s.instruments.watching(info)()
		hooks, done := s.watchHooks(r, res)
		defer done()
		return serveWatch(s.rd, w, r, res, hooks)
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
		if _, err := parseQuery(res, info); err != nil { // told before what is wrong with the body
			return err
		}
		removeEach, err := s.wr.RemoveEach(w, r, res)
		if err != nil {
			return err
		}
		return s.rd.listAnd(w, r, res, removeEach)
	}
	return response.ErrMethodNotAllowed()
}

// watchHooks connect a watch with flow control, the metrics and the page. done is to be called when it is over.
func (s *server) watchHooks(r *http.Request, res *scheme.Resource) (hooks watchHooks, done func()) {
	rec := request.From(r.Context())
	labels := s.instruments.watchLabels(&rec.Info)
	options, _ := rec.Info.ListOptions() // those that are wrong are refused further on
	shown := &dashboard.Watch{User: rec.User.Name, Agent: r.UserAgent(), Group: res.Group, Resource: res.Plural, Namespace: rec.Info.Namespace,
		LabelSelector: options.LabelSelector, FieldSelector: options.FieldSelector, Base: res.KeyPrefix(""), Started: rec.Received}
	s.watches.Begin(shown)
	return watchHooks{
		begun:  func() { watchBegun(r.Context()) },
		listed: func() { s.metrics.watchListDone(labels, time.Since(rec.Received)) },
		sent:   s.metrics.longRunning(labels).sent,
		opened: shown.Follow,
	}, func() { s.watches.End(shown) }
}

// page is what /debug/ui/ shows.
func (s *server) page() *dashboard.Page {
	p := &dashboard.Page{Store: s.st, Types: s.reg, Watches: &s.watches, Version: gitVersion, Kept: s.cfg.Kept(),
		Deprecations: func(most int) any { return s.usage.List(most) }}
	if s.fc != nil {
		p.Flows = s.fc.dispatcher
	}
	return p
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
		return registry.NoPodsRun(s.rd.newest, res, info, r.URL.Query())
	case "scale":
		if info.Verb == "get" {
			return registry.ShowScale(s.rd.newest, w, r, res)
		}
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

// maySee tells whether who asks may get another path, too.
func (s *server) maySee(r *http.Request, path string) bool {
	return s.auth.Check(request.From(r.Context()).User, request.Info{Verb: "get", Path: path}) == nil
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
		{Name: "envtest-assets", Args: "DIR", Counts: []int{1}, What: "fill a folder with what envtest looks for, and print the line that leads it there",
			Groups: []commandline.FlagGroup{{Title: "Flags", Define: func(f *flag.FlagSet) {
				f.StringVar(&c.Base, "base", "", "a prepared data `file` with which each server begins: `apilet fork` makes one")
			}}},
			Run: func(call commandline.Call) error { return envtest.MakeAssets(call.Out, call.Args, c.Base) }},
	}, torture.Commands(), logcmd.Commands())
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
