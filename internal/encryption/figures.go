package encryption

// This file collects the figures for /metrics and the health checks.

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
)

// figures are the metrics of kube-apiserver.
type figures struct {
	operations *prometheus.CounterVec
	durations  *prometheus.HistogramVec
	misses     prometheus.Counter
	reloads    *prometheus.CounterVec
	reloadedAt *prometheus.GaugeVec
	config     *prometheus.GaugeVec
	server     string // a hash of the host name
}

func newFigures() *figures {
	const alpha = "[ALPHA] "
	name, _ := os.Hostname()
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: alpha + help}, labels)
	}
	gauges := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: alpha + help}, labels)
	}
	return &figures{
		server: fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(name))),
		operations: counters("apiserver_storage_transformation_operations_total",
			"Total number of transformations. Successful transformation will have a status 'OK' and a varied status string when the transformation fails. The status, resource, and transformation_type fields can be used for alerting purposes. For example, you can monitor for encryption/decryption failures using the transformation_type (e.g., from_storage for decryption and to_storage for encryption). Additionally, these fields can be used to ensure that the correct transformers are applied to each resource.",
			"resource", "transformation_type", "transformer_prefix", "status"),
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "apiserver_storage_transformation_duration_seconds",
			Help: alpha + "Latencies in seconds of value transformation operations.", Buckets: prometheus.ExponentialBuckets(5e-6, 2, 25)},
			[]string{"transformation_type", "transformer_prefix"}),
		misses: prometheus.NewCounter(prometheus.CounterOpts{Name: "apiserver_storage_envelope_transformation_cache_misses_total",
			Help: alpha + "Total number of cache misses while accessing key decryption key(KEK)."}),
		reloads: counters("apiserver_encryption_config_controller_automatic_reloads_total",
			"Total number of reload successes and failures of encryption configuration split by apiserver identity.", "status", "apiserver_id_hash"),
		reloadedAt: gauges("apiserver_encryption_config_controller_automatic_reload_last_timestamp_seconds",
			"Timestamp of the last successful or failed automatic reload of encryption configuration split by apiserver identity.", "status", "apiserver_id_hash"),
		config: gauges("apiserver_encryption_config_controller_last_config_info",
			"Information about the last applied encryption configuration with hash as label, split by apiserver identity.", "apiserver_id_hash", "hash"),
	}
}

// Collectors returns the metrics, or nil if no file is configured.
func (p *Providers) Collectors() []prometheus.Collector {
	if !p.Enabled() {
		return nil
	}
	f := p.figures
	return []prometheus.Collector{f.operations, f.durations, f.misses, f.reloads, f.reloadedAt, f.config}
}

func (f *figures) transformed(resource, way, prefix string, took time.Duration, err error) {
	f.operations.WithLabelValues(resource, way, prefix, statusOf(err)).Inc()
	if err == nil {
		f.durations.WithLabelValues(way, prefix).Observe(took.Seconds())
	}
}

func statusOf(err error) string {
	var call *callError
	switch {
	case err == nil:
		return codes.OK.String()
	case errors.As(err, &call):
		return call.code.String()
	}
	return "unknown-non-grpc"
}

func (f *figures) reloaded(status string) {
	f.reloads.WithLabelValues(status, f.server).Inc()
	f.reloadedAt.WithLabelValues(status, f.server).SetToCurrentTime()
}

func (f *figures) loaded(hash string) {
	f.config.Reset()
	f.config.WithLabelValues(f.server, hash).Set(1)
}

// HasHealth reports whether a health check is needed, because plug-ins are configured or may be
// added by a reload.
func (p *Providers) HasHealth() bool {
	return p.Enabled() && (p.cfg.Reload || len(p.current.Load().plugins) > 0)
}

// Health is kube-apiserver's check kms-providers. It returns an error unless all plug-ins are
// healthy.
func (p *Providers) Health() error { return p.current.Load().health(context.Background()) }

func (f *configuration) health(ctx context.Context) error {
	var errs []error
	for i, plugin := range f.plugins {
		if err := plugin.check(ctx); err != nil {
			errs = append(errs, fmt.Errorf("kms-provider-%d: %w", i, err))
		}
	}
	return errors.Join(errs...)
}
