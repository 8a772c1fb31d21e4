package logging

import (
	"bytes"
	"fmt"
	stdlog "log"
	"strings"
	"testing"
	"time"

	"k8s.io/klog/v2"
)

// TestServerErrorsAreLoggedTenTimesAMinute: failed handshakes do not hide other errors, and neither kind floods the log.
func TestServerErrorsAreLoggedTenTimesAMinute(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	counted := 0
	log := newErrorCounter(&out, func() { counted++ })
	for range 500 {
		fmt.Fprintln(log, "http: TLS handshake error from 192.0.2.1:1234: EOF")
	}
	fmt.Fprintln(log, "http: something else", strings.Repeat("x", 1<<20))
	for range 500 {
		fmt.Fprintln(log, "http: response.WriteHeader on hijacked connection")
	}
	text := out.String()
	if shakes := strings.Count(text, "handshake"); shakes != linesPerMinute || counted != 500 {
		t.Errorf("%d failed handshakes are logged, %d are counted", shakes, counted)
	}
	others := strings.Count(text, "http: something else") + strings.Count(text, "hijacked")
	if others != linesPerMinute || !strings.Contains(text, "something else") {
		t.Errorf("%d other lines are logged", others)
	}
	if hints := strings.Count(text, "not logged for a minute"); hints != 2 || len(text) > 3*maxLine {
		t.Errorf("%d hints, %d bytes", hints, len(text))
	}
	if n := log.handshakes.count(time.Now().Add(2 * time.Minute)); n != 1 {
		t.Errorf("the next minute begins with %d lines", n)
	}
}

// TestOtherLogsAreLimited must not run in parallel, because the loggers are global.
func TestOtherLogsAreLimited(t *testing.T) {
	var out bytes.Buffer
	restore := CaptureGlobal(New(&out, "json"))
	klog.Warning("from Kubernetes")
	for range 100 {
		stdlog.Printf("Unsolicited response received on idle HTTP channel starting with %q", strings.Repeat("\x1b[31m", 1000))
	}
	restore()
	if !strings.Contains(out.String(), "from Kubernetes") {
		t.Errorf("klog: %.300q", out.String())
	}
	lines := strings.Count(out.String(), "Unsolicited")
	if lines != linesPerMinute-1 || out.Len() > 2*linesPerMinute*maxLine || strings.Contains(out.String(), "\x1b") {
		t.Errorf("%d lines, %d bytes: %.300q", lines, out.Len(), out.String())
	}
	if _, limited := stdlog.Writer().(*lineLimit); limited {
		t.Error("the log is still limited")
	}
}

// TestConsoleHasNoColorsInAFile: only a terminal shows colors.
func TestConsoleHasNoColorsInAFile(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log := Console(&out)
	log.Warn().Str("key", "value").Msg("text")
	if got := out.String(); !strings.HasSuffix(got, " WRN text key=value\n") || strings.Contains(got, "\x1b") {
		t.Errorf("got %q", got)
	}
}
