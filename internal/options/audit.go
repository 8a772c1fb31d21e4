package options

// This file defines the flags of the audit log.

import (
	"flag"
	"fmt"
	"strconv"
	"time"

	"apilet/internal/audit"
)

// Audit contains the flags of the audit log and the audit webhook. They are those of
// kube-apiserver.
type Audit struct {
	Path, Policy, Webhook     string // paths of files
	Format, Version, Mode     string // for the log
	Rotation                  audit.Rotation
	LogTruncate, HookTruncate audit.Truncate
	HookVersion, HookMode     string
	Batches, LogBatches       audit.Batches // for the webhook and for the log
}

const auditVersion = "audit.k8s.io/v1"

func (a *Audit) define(f *flag.FlagSet) {
	f.StringVar(&a.Path, "audit-log-path", "", "`file` for audit events, one line of JSON each; - is standard output")
	f.StringVar(&a.Policy, "audit-policy-file", "", "`file` with an audit Policy (default: level Metadata for all requests)")
	f.StringVar(&a.Format, "audit-log-format", "json", "`json|legacy`: legacy is a line of text")
	f.StringVar(&a.Version, "audit-log-version", auditVersion, "`version` of audit events")
	f.StringVar(&a.Mode, "audit-log-mode", "blocking", "`batch|blocking|blocking-strict`: batch does not delay requests, blocking waits until the event is written, blocking-strict also refuses requests whose events cannot be written")
	f.IntVar(&a.Rotation.MaxSize, "audit-log-maxsize", 0, "size in `mebibytes` at which the log is rotated; 0 leaves rotation to logrotate (kube-apiserver: 100)")
	f.IntVar(&a.Rotation.MaxAge, "audit-log-maxage", 366, "`days` to keep rotated logs; 0 keeps them forever")
	f.IntVar(&a.Rotation.MaxBackups, "audit-log-maxbackup", 100, "maximum number of rotated `logs`; 0 keeps all")
	f.BoolVar(&a.Rotation.Compress, "audit-log-compress", false, "compress rotated logs with gzip")
	a.LogBatches = audit.Batches{BufferSize: bufferSize, MaxSize: 1}
	defineBatches(f, "audit-log", &a.LogBatches)
	defineTruncate(f, "audit-log", &a.LogTruncate)
	f.StringVar(&a.Webhook, "audit-webhook-config-file", "", "kubeconfig `file` of a webhook that also receives audit events")
	f.StringVar(&a.HookVersion, "audit-webhook-version", auditVersion, "`version` of audit events for the webhook")
	f.StringVar(&a.HookMode, "audit-webhook-mode", "batch", "`batch|blocking|blocking-strict`: as --audit-log-mode, for the webhook")
	f.DurationVar(&a.Batches.Backoff, "audit-webhook-initial-backoff", 10*time.Second, "time to wait before the first retry of a batch")
	a.Batches = audit.Batches{BufferSize: bufferSize, MaxSize: 400, MaxWait: 30 * time.Second, Throttle: true, QPS: 10, Burst: 15, Backoff: a.Batches.Backoff}
	defineBatches(f, "audit-webhook", &a.Batches)
	defineTruncate(f, "audit-webhook", &a.HookTruncate)
}

const bufferSize = 10000 // for the log and for the webhook

// defineBatches defines the flags of the mode batch. b contains their defaults.
func defineBatches(f *flag.FlagSet, of string, b *audit.Batches) {
	f.IntVar(&b.BufferSize, of+"-batch-buffer-size", b.BufferSize, "in mode batch: maximum number of buffered `events`; events beyond that, or beyond 64 MiB, are dropped and counted")
	f.IntVar(&b.MaxSize, of+"-batch-max-size", b.MaxSize, "maximum number of `events` in a batch")
	f.DurationVar(&b.MaxWait, of+"-batch-max-wait", b.MaxWait, "maximum time to wait for a batch to fill")
	f.BoolVar(&b.Throttle, of+"-batch-throttle-enable", b.Throttle, "limit the rate of batches")
	f.Func(of+"-batch-throttle-qps", "average number of `batches` per second"+byDefault(b.QPS), func(text string) error {
		qps, err := strconv.ParseFloat(text, 32)
		b.QPS = qps
		return err
	})
	f.IntVar(&b.Burst, of+"-batch-throttle-burst", b.Burst, "maximum number of `batches` in a burst")
}

func byDefault(qps float64) string {
	if qps == 0 {
		return ""
	}
	return fmt.Sprintf(" (default %g)", qps)
}

func defineTruncate(f *flag.FlagSet, of string, t *audit.Truncate) {
	f.BoolVar(&t.Enabled, of+"-truncate-enabled", false, "truncate events that are too large: remove the bodies, or drop the event if that is not enough")
	f.Int64Var(&t.MaxEventSize, of+"-truncate-max-event-size", 100<<10, "maximum size of an event in `bytes`")
	f.Int64Var(&t.MaxBatch, of+"-truncate-max-batch-size", 10<<20, "approximate maximum size of a batch in `bytes`")
}

// finish validates the flags. The error messages are those of kube-apiserver.
func (a *Audit) finish() error {
	if a.Path != "" {
		if err := a.finishLog(); err != nil {
			return err
		}
	}
	if a.Webhook == "" {
		return nil
	}
	if err := finishMode("webhook", a.HookMode, &a.Batches); err != nil {
		return err
	}
	return finishSink("webhook", a.HookTruncate, a.HookVersion)
}

func (a *Audit) finishLog() error {
	if err := finishMode("log", a.Mode, &a.LogBatches); err != nil {
		return err
	}
	switch {
	case a.Format != "json" && a.Format != "legacy":
		return fmt.Errorf("invalid audit log format %s, allowed formats are %q", a.Format, "legacy,json")
	case a.Rotation.MaxAge < 0:
		return fmt.Errorf("--audit-log-maxage %v can't be a negative number", a.Rotation.MaxAge)
	case a.Rotation.MaxBackups < 0:
		return fmt.Errorf("--audit-log-maxbackup %v can't be a negative number", a.Rotation.MaxBackups)
	case a.Rotation.MaxSize < 0:
		return fmt.Errorf("--audit-log-maxsize %v can't be a negative number", a.Rotation.MaxSize)
	}
	return finishSink("log", a.LogTruncate, a.Version)
}

// finishMode validates the mode and its batches.
func finishMode(name, mode string, b *audit.Batches) error {
	switch {
	case mode == string(audit.ModeBlocking) || mode == string(audit.ModeStrict):
		return nil
	case mode != string(audit.ModeBatch):
		return fmt.Errorf("invalid audit %s mode %s, allowed modes are %q", name, mode, "batch,blocking,blocking-strict")
	case b.BufferSize <= 0:
		return fmt.Errorf("invalid audit batch %s buffer size %v, must be a positive number", name, b.BufferSize)
	case b.MaxSize <= 0:
		return fmt.Errorf("invalid audit batch %s max batch size %v, must be a positive number", name, b.MaxSize)
	case b.Throttle && !(b.QPS > 0):
		return fmt.Errorf("invalid audit batch %s throttle QPS %v, must be a positive number", name, b.QPS)
	case b.Throttle && b.Burst <= 0:
		return fmt.Errorf("invalid audit batch %s throttle burst %v, must be a positive number", name, b.Burst)
	}
	return nil
}

func finishSink(name string, t audit.Truncate, version string) error {
	switch {
	case t.MaxEventSize <= 0:
		return fmt.Errorf("invalid audit truncate %s max event size %v, must be a positive number", name, t.MaxEventSize)
	case t.MaxBatch < t.MaxEventSize:
		return fmt.Errorf("invalid audit truncate %s max batch size %v, must be greater than max event size (%v)", name, t.MaxBatch, t.MaxEventSize)
	case version != auditVersion:
		return fmt.Errorf("invalid group version, allowed versions are %q", []string{auditVersion})
	}
	return nil
}
