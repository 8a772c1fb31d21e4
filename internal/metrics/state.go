package metrics

// This file contains metrics about the state of the server. Most are read at each scrape.

import (
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/component-base/featuregate"

	"apilet/internal/etcd"
	"apilet/internal/serving"
)

// GateCollector collects which feature gates are enabled. It reads them at each scrape, because the
// first read of each gate is expensive and would slow down the start.
type GateCollector struct {
	Gates featuregate.MutableFeatureGate
}

var gateEnabled = prometheus.NewDesc("kubernetes_feature_enabled",
	beta+"This metric records the data about the stage and enablement of a k8s feature.", []string{"name", "stage"}, nil)

// Describe implements prometheus.Collector.
func (c GateCollector) Describe(ch chan<- *prometheus.Desc) { ch <- gateEnabled }

// Collect implements prometheus.Collector.
func (c GateCollector) Collect(ch chan<- prometheus.Metric) {
	for name, spec := range c.Gates.GetAll() {
		ch <- prometheus.MustNewConstMetric(gateEnabled, prometheus.GaugeValue, oneIf(c.Gates.Enabled(name)),
			string(name), string(spec.PreRelease))
	}
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
