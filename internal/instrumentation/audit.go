package instrumentation

// This file opens the audit log with the settings of the flags.

import (
	"context"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"apilet/internal/audit"
	"apilet/internal/kubeconfig"
	"apilet/internal/logonce"
	"apilet/internal/metrics"
	"apilet/internal/options"
	"apilet/internal/response"
	"apilet/internal/scheme"
)

// OpenAudit opens the audit log and the audit webhook. It returns nil if neither is configured.
func OpenAudit(flags *options.Audit, types *scheme.Registry, m *metrics.Metrics, trouble *logonce.Log, log zerolog.Logger) (*audit.Log, error) {
	cfg := audit.Config{Path: flags.Path, Legacy: flags.Format == "legacy", Rotation: flags.Rotation, Truncate: flags.LogTruncate,
		Mode: audit.Mode(flags.Mode), Batches: flags.LogBatches, Unseal: func(sealed []byte) ([]byte, error) { return response.ProtobufToJSON(types, sealed) }}
	var err error
	if flags.Policy != "" {
		if cfg.Policy, err = audit.LoadPolicy(flags.Policy); err != nil {
			return nil, fmt.Errorf("--audit-policy-file: %w", err)
		}
	}
	if flags.Path == "" && flags.Webhook == "" {
		return nil, nil
	}
	if flags.Webhook != "" {
		if cfg.Webhook, err = auditWebhook(flags, m.AuditErrors, trouble); err != nil {
			return nil, fmt.Errorf("--audit-webhook-config-file: initializing audit webhook: %w", err)
		}
	}
	opened, err := audit.Open(cfg, auditHooks(m, log))
	if err != nil {
		return nil, fmt.Errorf("--audit-log-path: %w", err)
	}
	if cfg.Webhook != nil {
		cfg.Webhook.Start()
	}
	return opened, nil
}

// auditWebhook returns a sender of events to the audit webhook.
func auditWebhook(flags *options.Audit, unsent *prometheus.CounterVec, trouble *logonce.Log) (*audit.Sender, error) {
	client, err := kubeconfig.NewWebhookClient(flags.Webhook, "apilet")
	if err != nil {
		return nil, err
	}
	const what = "sending audit events to the webhook"
	return &audit.Sender{Batches: flags.Batches, Mode: audit.Mode(flags.HookMode), Truncate: flags.HookTruncate, Sent: func(int) { trouble.Report(what, nil) },
		Lost: func(plugin string, n int, why error) {
			unsent.WithLabelValues(plugin).Add(float64(n))
			if why != nil {
				trouble.Report(what, why)
			}
		},
		Post: func(ctx context.Context, body []byte) error {
			code, _, err := client.Post(ctx, body, 64<<10)
			if err == nil && (code < 200 || code > 206) {
				err = fmt.Errorf("the webhook responded with status %d", code)
			}
			return err
		}}, nil
}

// auditHooks returns hooks that count audit events and log when the audit log cannot be written.
func auditHooks(m *metrics.Metrics, log zerolog.Logger) audit.Hooks {
	return audit.Hooks{
		Written: func(n int) { m.AuditEvents.Add(float64(n)) },
		Dropped: func(plugin string, n int) { m.AuditErrors.WithLabelValues(plugin).Add(float64(n)) },
		Leveled: func(level string) { m.AuditLevels.WithLabelValues(level).Inc() },
		Failing: func(err error) {
			if err != nil {
				m.AuditFailing.Set(1)
				log.Error().Err(err).Msg("cannot write the audit log; up to 1 MiB of events is kept in memory: free disk space, or fix the permissions")
				return
			}
			m.AuditFailing.Set(0)
			log.Info().Msg("the audit log is writable again")
		},
	}
}
