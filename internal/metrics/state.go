package metrics

// This file contains metrics about the state of the server. Most are read at each scrape.

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/component-base/featuregate"

	"apilet/internal/etcd"
	"apilet/internal/serving"
)

// BuildInfo registers a gauge with the version of Kubernetes that this server implements.
func (m *Metrics) BuildInfo(labels map[string]string) {
	g := prometheus.NewGauge(prometheus.GaugeOpts{Name: "kubernetes_build_info", ConstLabels: labels,
		Help: beta + "A metric with a constant '1' value labeled by major, minor, git version, git commit, git tree state, build date, Go version, and compiler from which Kubernetes was built, and platform on which it is running."})
	g.Set(1)
	m.Registry.MustRegister(g)
}

// FeatureGates reports which feature gates are enabled. They do not change while the server runs.
func (m *Metrics) FeatureGates(gates featuregate.MutableFeatureGate) {
	m.Registry.MustRegister(&gateCollector{gates, prometheus.NewDesc("kubernetes_feature_enabled",
		beta+"This metric records the data about the stage and enablement of a k8s feature.", []string{"name", "stage"}, nil)})
}

// A gateCollector reads the feature gates at each scrape. The first read of each gate is expensive
// and would slow down the start.
type gateCollector struct {
	gates featuregate.MutableFeatureGate
	desc  *prometheus.Desc
}

func (c *gateCollector) Describe(descs chan<- *prometheus.Desc) { descs <- c.desc }

func (c *gateCollector) Collect(out chan<- prometheus.Metric) {
	for name, spec := range c.gates.GetAll() {
		out <- prometheus.MustNewConstMetric(c.desc, prometheus.GaugeValue, oneIf(c.gates.Enabled(name)), string(name), string(spec.PreRelease))
	}
}

// ClockBehind registers a gauge with the lag of the machine's clock.
func (m *Metrics) ClockBehind(behind func() time.Duration) {
	m.Registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "apilet_clock_behind_seconds",
		Help: "How far the machine's clock lies behind the newest moment that is known to have passed. The server goes on from that moment."},
		func() float64 { return behind().Seconds() }))
}

// Leader registers a gauge that reports whether this server is the leader.
func (m *Metrics) Leader(leads func() bool) {
	m.Registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "apilet_leader",
		Help: "1 while this server is the one that does what only one of several may do: garbage collection, tokens, statuses. A server on a file of its own always is."},
		func() float64 { return oneIf(leads()) }))
}

// HealthChecked records the result of a check of /livez, /readyz or /healthz. kube-apiserver
// exposes this metric at /metrics/slis.
func (m *Metrics) HealthChecked(endpoint, check string, well bool) {
	m.health.WithLabelValues(check, endpoint).Set(oneIf(well))
}

func oneIf(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// CertificateCollector collects the expiration times of the current certificates.
type CertificateCollector func() []serving.Certificate

var certificateEnds = prometheus.NewDesc("apilet_certificate_expiration_timestamp_seconds",
	"When a certificate that the server or its administrator depends on ends: serving, authority or admin.", []string{"certificate"}, nil)

// Describe implements prometheus.Collector.
func (c CertificateCollector) Describe(ch chan<- *prometheus.Desc) { ch <- certificateEnds }

// Collect implements prometheus.Collector.
func (c CertificateCollector) Collect(ch chan<- prometheus.Metric) {
	for _, one := range c() {
		ch <- prometheus.MustNewConstMetric(certificateEnds, prometheus.GaugeValue, float64(one.Cert.NotAfter.Unix()), one.Name)
	}
}

// ClusterCollector collects the state of the etcd cluster. Without a cluster it collects nothing.
type ClusterCollector struct{ Cluster *etcd.Cluster }

var (
	etcdReachable = prometheus.NewDesc("apilet_etcd_reachable", "1 if etcd answered a linearizable read when it was last asked, which is every ten seconds at least.", nil, nil)
	etcdNoSpace   = prometheus.NewDesc("apilet_etcd_space_exceeded", "1 if etcd has refused the last write because its own quota is exceeded.", nil, nil)
	lagRevisions  = prometheus.NewDesc("apilet_replica_lag_revisions", "Revisions that etcd was seen to have and that this server's replica does not show yet.", nil, nil)
	lagSeconds    = prometheus.NewDesc("apilet_replica_lag_seconds", "Since when this server's replica lacks what etcd was seen to have; 0 while it lacks nothing.", nil, nil)
)

// Describe implements prometheus.Collector.
func (c ClusterCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- etcdReachable
	ch <- etcdNoSpace
	ch <- lagRevisions
	ch <- lagSeconds
}

// Collect implements prometheus.Collector.
func (c ClusterCollector) Collect(ch chan<- prometheus.Metric) {
	if c.Cluster == nil {
		return
	}
	state := c.Cluster.State()
	for d, v := range map[*prometheus.Desc]float64{etcdReachable: oneIf(state.Reachable), etcdNoSpace: oneIf(state.NoSpace),
		lagRevisions: float64(state.LagRevisions), lagSeconds: state.Lag.Seconds()} {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v)
	}
}
