// Package logging creates the log of a server, and passes the log lines of other packages to it.
// The Go standard library and Kubernetes' libraries write to global loggers. Many of these lines
// are caused by clients or other servers, and may contain text from them. Therefore the number of
// lines per minute and their length are limited.
//
//	log := logging.New(os.Stderr, "console")
//	defer logging.CaptureGlobal(log)()                   // Go's standard logger and klog
//	srv := &http.Server{ErrorLog: logging.HTTPErrors(log, handshakes.Inc)}
//
// Lines from other loggers have the level warning.
package logging

import (
	"bytes"
	"io"
	stdlog "log"
	"os"
	"sync"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/rs/zerolog"
	"k8s.io/klog/v2"
)

// New returns a log that writes JSON if format is "json", and lines for people otherwise. If out is
// a terminal, the lines are colored.
func New(out io.Writer, format string) zerolog.Logger {
	if format != "json" {
		file, ok := out.(*os.File)
		terminal := ok && isTerminal(file)
		out = zerolog.ConsoleWriter{Out: out, TimeFormat: time.RFC3339, NoColor: !terminal}
	}
	return zerolog.New(out).With().Timestamp().Logger()
}

// Console returns a log that writes lines for people.
func Console(out io.Writer) zerolog.Logger { return New(out, "console") }

func isTerminal(file *os.File) bool {
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// CaptureGlobal redirects Go's standard logger and klog to log until restore is called. It logs at
// most linesPerMinute lines per minute. The standard logger is used by net/http for errors of
// connections to other servers, and klog is used by the packages of Kubernetes.
func CaptureGlobal(log zerolog.Logger) (restore func()) {
	limited := &lineLimit{log: levelWriter{log}}
	out, flags := stdlog.Writer(), stdlog.Flags()
	stdlog.SetOutput(limited)
	stdlog.SetFlags(0)
	klog.SetLogger(funcr.New(func(_, line string) { _, _ = limited.Write([]byte(line)) }, funcr.Options{}))
	return func() {
		stdlog.SetOutput(out)
		stdlog.SetFlags(flags)
		klog.ClearLogger()
	}
}

// HTTPErrors returns a logger for http.Server.ErrorLog. It calls handshakeFailed for each failed TLS
// handshake, which net/http reports only there. The rate of handshake errors and the rate of other
// errors are limited separately.
func HTTPErrors(log zerolog.Logger, handshakeFailed func()) *stdlog.Logger {
	return stdlog.New(newErrorCounter(levelWriter{log}, handshakeFailed), "", 0)
}

// An errorCounter receives the error log of an http.Server.
type errorCounter struct {
	handshakeFailed    func()
	handshakes, others lineLimit
}

func newErrorCounter(log io.Writer, handshakeFailed func()) *errorCounter {
	return &errorCounter{handshakeFailed: handshakeFailed, handshakes: lineLimit{log: log}, others: lineLimit{log: log}}
}

func (c *errorCounter) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte("TLS handshake error from")) {
		c.handshakeFailed()
		return c.handshakes.Write(line)
	}
	return c.others.Write(line)
}

const (
	linesPerMinute = 10
	maxLine        = 1 << 10 // bytes; net/http quotes data from clients and servers
)

// A lineLimit limits the lines that are written to log to linesPerMinute per minute and to maxLine
// bytes per line. If there are more lines, it writes a note once.
type lineLimit struct {
	log io.Writer

	mu    sync.Mutex // guards the fields below
	since time.Time  // start of the minute
	lines int        // lines in this minute
}

func (l *lineLimit) Write(line []byte) (int, error) {
	switch n := l.count(time.Now()); {
	case n <= linesPerMinute:
		_, err := l.log.Write(line[:min(len(line), maxLine)])
		return len(line), err
	case n == linesPerMinute+1:
		_, err := io.WriteString(l.log, "further messages of this kind are not logged for a minute\n")
		return len(line), err
	}
	return len(line), nil
}

// count adds a line and returns the number of lines in this minute.
func (l *lineLimit) count(now time.Time) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.since) > time.Minute {
		l.since, l.lines = now, 0
	}
	l.lines++
	return l.lines
}

// levelWriter is an io.Writer that logs each line as a warning.
type levelWriter struct{ log zerolog.Logger }

func (w levelWriter) Write(line []byte) (int, error) {
	w.log.Warn().Msg(string(bytes.TrimSpace(line)))
	return len(line), nil
}
