package health

// This file informs the service manager that has started the process, for a unit with Type=notify
// and WatchdogSec=. It sends datagrams to the socket that $NOTIFY_SOCKET names (sd_notify(3)), and
// serves the watchdog of $WATCHDOG_USEC (sd_watchdog_enabled(3)).
//
//	manager := health.FindServiceManager(os.Getenv) // sends nothing if no service manager has started the process
//	err := manager.NotifyReady("serving on :6443")  // systemctl start returns, and systemctl status shows the text
//	go manager.RunWatchdog(ctx, alive, failed)      // sends WATCHDOG=1 twice in each WatchdogSec, as long as alive succeeds
//	err = manager.NotifyStopping()
//
// Each WATCHDOG=1 follows a successful call of alive. While alive fails or does not return, nothing
// is sent. Then systemd ends the process with SIGABRT, so that Go prints the stack of each
// goroutine, and starts the process again.

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A ServiceManager receives the state of this process. The zero value sends nothing.
type ServiceManager struct {
	socket   string        // a path, or an abstract name after @; "" means no service manager
	watchdog time.Duration // timeout of the watchdog; 0 if there is no watchdog
}

// FindServiceManager returns the manager that the variables of sd_notify(3) name. It ignores a
// watchdog that is meant for another process.
func FindServiceManager(getenv func(string) string) ServiceManager {
	m := ServiceManager{socket: getenv("NOTIFY_SOCKET")}
	usec, err := strconv.ParseInt(getenv("WATCHDOG_USEC"), 10, 64)
	pid := getenv("WATCHDOG_PID")
	if m.socket != "" && err == nil && usec > 0 && usec < int64(maxWatchdog/time.Microsecond) && (pid == "" || pid == strconv.Itoa(os.Getpid())) {
		m.watchdog = time.Duration(usec) * time.Microsecond
	}
	return m
}

// maxWatchdog is longer than any real timeout. WatchdogSec=infinity exceeds it and means no
// watchdog.
const maxWatchdog = 10 * 365 * 24 * time.Hour

// NotifyReady reports that the process serves, after the start or after a reload. systemctl status
// shows the text.
func (m *ServiceManager) NotifyReady(status string) error {
	return m.notify("READY=1", "STATUS="+strings.ReplaceAll(status, "\n", " "))
}

// NotifyReloading reports that the process is reloading its configuration or reopening its log.
// NotifyReady must follow.
func (m *ServiceManager) NotifyReloading() error { return m.notify("RELOADING=1") }

// NotifyStopping reports that the process is about to end.
func (m *ServiceManager) NotifyStopping() error { return m.notify("STOPPING=1", "STATUS=stopping") }

// RunWatchdog calls alive twice per timeout until ctx ends. If alive returns nil, RunWatchdog
// notifies the watchdog. If alive returns an error, RunWatchdog calls failed and tries again after
// a tenth of the timeout. The context of alive ends after half of the timeout. If alive never
// returns, the watchdog ends the process.
func (m *ServiceManager) RunWatchdog(ctx context.Context, alive func(context.Context) error, failed func(error)) {
	if m.watchdog == 0 {
		return
	}
	for {
		wait := m.watchdog / 2
		if err := m.notifyWatchdog(ctx, alive); err != nil && ctx.Err() == nil {
			failed(err)
			wait = m.watchdog / 10
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// ReloadOnHangup calls reload at each SIGHUP until ctx ends, and notifies the service manager, which
// may wait for the reload. status is the text of NotifyReady. failed receives the result of each
// notification.
func (m *ServiceManager) ReloadOnHangup(ctx context.Context, status string, reload func(), failed func(error)) {
	hangup := make(chan os.Signal, 1) // one reload is enough for several signals
	signal.Notify(hangup, syscall.SIGHUP)
	defer signal.Stop(hangup)
	for {
		select {
		case <-ctx.Done():
			return
		case <-hangup:
		}
		failed(m.NotifyReloading())
		reload()
		failed(m.NotifyReady(status))
	}
}

func (m *ServiceManager) notifyWatchdog(ctx context.Context, alive func(context.Context) error) error {
	proof, cancel := context.WithTimeout(ctx, m.watchdog/2)
	defer cancel()
	if err := alive(proof); err != nil {
		return err
	}
	return m.notify("WATCHDOG=1")
}

// notify sends variables in one datagram. Both net and systemd use a leading @ for the abstract
// namespace.
func (m *ServiceManager) notify(variables ...string) error {
	if m.socket == "" {
		return nil
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: m.socket, Net: "unixgram"})
	if err == nil {
		defer conn.Close()
		_ = conn.SetWriteDeadline(time.Now().Add(notifyTimeout))
		_, err = conn.Write([]byte(strings.Join(variables, "\n")))
	}
	if err != nil {
		return fmt.Errorf("notifying the service manager %s: %w", variables[0], err)
	}
	return nil
}

// notifyTimeout limits the wait for a service manager that does not read.
const notifyTimeout = 5 * time.Second
