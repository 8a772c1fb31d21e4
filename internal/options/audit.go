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
	f.StringVar(&a.Path, "audit-log-path", "", "`file` for audit.k8s.io/v1 events, one JSON line each; - is standard output")
	f.StringVar(&a.Policy, "audit-policy-file", "", "`file` with a Policy (audit.k8s.io/v1): of which requests what is written; without one each request has a line, without bodies")
	f.StringVar(&a.Format, "audit-log-format", "json", "`json|legacy`: legacy is a line for people")
	f.StringVar(&a.Version, "audit-log-version", auditVersion, "the `version` of events: "+auditVersion)
	f.StringVar(&a.Mode, "audit-log-mode", "blocking", "`batch|blocking|blocking-strict`: requests wait until their events are in the log; not in batch; in the last one they are refused where they cannot be")
	f.IntVar(&a.Rotation.MaxSize, "audit-log-maxsize", 0, "`mebibytes` from which the log is moved aside and begun anew; 0 leaves that to logrotate (kube-apiserver: 100)")
	f.IntVar(&a.Rotation.MaxAge, "audit-log-maxage", 366, "`days` for which logs that were moved aside are kept; 0 is for ever")
	f.IntVar(&a.Rotation.MaxBackups, "audit-log-maxbackup", 100, "how many `logs` that were moved aside are kept; 0 is all")
	f.BoolVar(&a.Rotation.Compress, "audit-log-compress", false, "compress logs that were moved aside with gzip")
	a.LogBatches = audit.Batches{BufferSize: bufferSize, MaxSize: 1}
	defineBatches(f, "audit-log", &a.LogBatches)
	defineTruncate(f, "audit-log", &a.LogTruncate)
	f.StringVar(&a.Webhook, "audit-webhook-config-file", "", "kubeconfig `file` that says where events are sent besides")
	f.StringVar(&a.HookVersion, "audit-webhook-version", auditVersion, "the `version` of events that are sent: "+auditVersion)
	f.StringVar(&a.HookMode, "audit-webhook-mode", "batch", "`batch|blocking|blocking-strict`: no request waits for the webhook in batch; as for the log in the others")
	f.DurationVar(&a.Batches.Backoff, "audit-webhook-initial-backoff", 10*time.Second, "how long to wait before a batch is sent again")
	a.Batches = audit.Batches{BufferSize: bufferSize, MaxSize: 400, MaxWait: 30 * time.Second, Throttle: true, QPS: 10, Burst: 15, Backoff: a.Batches.Backoff}
	defineBatches(f, "audit-webhook", &a.Batches)
	defineTruncate(f, "audit-webhook", &a.HookTruncate)
}

const bufferSize = 10000 // for the log and for the webhook

// defineBatches defines the flags of the mode batch. b contains their defaults.
func defineBatches(f *flag.FlagSet, of string, b *audit.Batches) {
	f.IntVar(&b.BufferSize, of+"-batch-buffer-size", b.BufferSize, "in mode batch: how many `events` wait; what is beyond that, or beyond 64 MiB, is lost and counted")
	f.IntVar(&b.MaxSize, of+"-batch-max-size", b.MaxSize, "how many `events` a batch has at most")
	f.DurationVar(&b.MaxWait, of+"-batch-max-wait", b.MaxWait, "how long a batch that does not fill waits")
	f.BoolVar(&b.Throttle, of+"-batch-throttle-enable", b.Throttle, "bound the batches of a second")
	f.Func(of+"-batch-throttle-qps", "batches a second, in the long `run`"+byDefault(b.QPS), func(text string) error {
		qps, err := strconv.ParseFloat(text, 32)
		b.QPS = qps
		return err
	})
	f.IntVar(&b.Burst, of+"-batch-throttle-burst", b.Burst, "how many `batches` may go at once when few went before")
}

func byDefault(qps float64) string {
	if qps == 0 {
		return ""
	}
	return fmt.Sprintf(" (default %g)", qps)
}

func defineTruncate(f *flag.FlagSet, of string, t *audit.Truncate) {
	f.BoolVar(&t.Enabled, of+"-truncate-enabled", false, "shorten events that are too long: the bodies go first, then the event")
	f.Int64Var(&t.MaxEventSize, of+"-truncate-max-event-size", 100<<10, "how many `bytes` an event may have")
	f.Int64Var(&t.MaxBatch, of+"-truncate-max-batch-size", 10<<20, "how many `bytes` a batch may have, about")
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
