package main

// This file registers the metrics of the server's state, which are read at each scrape of /metrics.
//
//	a request ends     internal/instrumentation makes one record of it for the log, the audit log and
//	                   the metrics; internal/metrics has the counters and histograms, under
//	                   kube-apiserver's names and labels, with a limit on the number of series
//	a scrape           Prometheus' client calls Collect of each collector that is registered here
//	                   or by its own package: flow control, aggregation, findings
//
// Metrics that kube-apiserver has keep its names. The names of others begin with apilet_.

import (
	"runtime"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"apilet/internal/datafile"
	"apilet/internal/etcd"
	"apilet/internal/metrics"
	"apilet/internal/options"
	"apilet/internal/scheme"
	"apilet/internal/serving"
)

// A serverState has the parts of a server that are read at each scrape.
type serverState struct {
	version      string // of /version
	data         *datafile.Collector
	cluster      *etcd.Cluster // nil without etcd
	certificates func() []serving.Certificate
	clockLag     func() time.Duration
	leads        func() bool
}

// register registers the collectors of the state, and others.
func (s *serverState) register(r prometheus.Registerer, others ...prometheus.Collector) {
	r.MustRegister(s.data, metrics.CertificateCollector(s.certificates), metrics.ClusterCollector{Cluster: s.cluster},
		metrics.GateCollector{Gates: options.FeatureGates()}, buildInfo(s.version),
		gauge("apilet_clock_behind_seconds",
			"How far the machine's clock is behind the newest time that is known to have passed. The server continues from that time.",
			func() float64 { return s.clockLag().Seconds() }),
		gauge("apilet_leader",
			"1 while this server does the work that only one of several servers may do, such as garbage collection. A server with its own file always does.",
			func() float64 {
				if s.leads() {
					return 1
				}
				return 0
			}))
	r.MustRegister(others...)
}

func gauge(name, help string, value func() float64) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value)
}

// buildInfo returns the metric with the version of Kubernetes that this server implements.
func buildInfo(version string) prometheus.Collector {
	info := prometheus.NewGauge(prometheus.GaugeOpts{Name: "kubernetes_build_info",
		Help: "[BETA] A metric with a constant '1' value labeled by major, minor, git version, git commit, git tree state, " +
			"build date, Go version, and compiler from which Kubernetes was built, and platform on which it is running.",
		ConstLabels: prometheus.Labels{"major": "1", "minor": strconv.Itoa(scheme.MinorVersion()[1]),
			"git_version": version, "go_version": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH}})
	info.Set(1)
	return info
}
