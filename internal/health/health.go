// Package health implements /livez, /readyz and /healthz. Each endpoint runs a list of named checks
// and returns the results in the format of kube-apiserver.
//
//	ready := health.Endpoint{Name: "readyz", Checks: []health.Check{health.Ping, health.Shutdown(stopping), {Name: "store", Err: st.Writable},
//		{Name: "disk", Err: st.HasRoom, WarnOnly: true}}}
//	mux.Handle("/readyz", &ready)  // ok, or 500; ?verbose prints a line for each check, ?exclude=NAME skips one
//	mux.Handle("/readyz/", &ready) // /readyz/store runs one check
//	go ready.Run(ctx, health.CheckInterval) // runs all checks regularly for ready.OnResult, even without requests
//
// If a check with WarnOnly fails, the server stays ready. Otherwise a load balancer would take the
// server out of service and keep administrators from fixing the problem. In the output such a check
// is shown as [!]disk warns: .... The page of the check, /readyz/disk, returns an error.
//
// Probes do not send credentials. The reason of a failure is only returned if the user is
// authorized to see it.
//
// systemd.go reports the state of the process to a service manager and serves its watchdog.
package health

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// CheckInterval is the interval of the regular checks. It is shorter than the usual interval of
// monitoring.
const CheckInterval = 10 * time.Second

// A Check is a condition for /livez, /readyz or /healthz. The name may contain slashes.
type Check struct {
	Name     string       // as in /readyz/NAME
	Err      func() error // nil means success; the error ends with advice
	WarnOnly bool         // a failure is reported, but does not fail the endpoint
}

// Ping always succeeds. It shows that the server responds.
var Ping = Check{Name: "ping", Err: func() error { return nil }}

// Shutdown returns a check that fails once stop is closed. Use it only for /readyz, so that the
// server does not receive new requests while it finishes running ones.
func Shutdown(stop <-chan struct{}) Check {
	return Check{Name: "shutdown", Err: func() error {
		select {
		case <-stop:
			return errors.New("process is shutting down")
		default:
			return nil
		}
	}}
}

// AlwaysHealthy returns checks that always succeed, for work that is done before the first request.
// They have the names of kube-apiserver's hooks, since some scripts wait for a single hook.
func AlwaysHealthy(names ...string) (checks []Check) {
	for _, name := range names {
		checks = append(checks, Check{Name: name, Err: Ping.Err})
	}
	return checks
}

// An Endpoint serves /NAME (all checks) and /NAME/CHECK (one check).
type Endpoint struct {
	Name   string  // livez, readyz or healthz
	Checks []Check // run and printed in this order
	// MayView reports whether the user may get the page of a check. In that case he may also see
	// the reason of its failure. If it is nil, no user may.
	MayView  func(r *http.Request, path string) bool
	OnResult func(check string, err error) // if not nil, called with the result of each check
}

// Run runs all checks immediately and then at the given interval, until ctx ends. The results go to
// OnResult.
func (h *Endpoint) Run(ctx context.Context, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		for _, c := range h.Checks {
			if ctx.Err() == nil {
				h.runCheck(c)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (h *Endpoint) runCheck(c Check) error {
	err := c.Err()
	if h.OnResult != nil {
		h.OnResult(c.Name, err)
	}
	return err
}

func (h *Endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(r.URL.Path, "/"+h.Name)
	if name == "" {
		h.serveAll(w, r)
		return
	}
	i := slices.IndexFunc(h.Checks, func(c Check) bool { return "/"+c.Name == name })
	if i < 0 {
		http.NotFound(w, r)
		return
	}
	// Like kube-apiserver, the page of a single check shows the reason.
	if err := h.runCheck(h.Checks[i]); err != nil {
		http.Error(w, fmt.Sprintf("internal server error: %v", err), http.StatusInternalServerError)
		return
	}
	fmt.Fprint(w, "ok")
}

// serveAll runs all checks except for those in ?exclude=. It prints details with ?verbose, and
// always if a check has failed.
func (h *Endpoint) serveAll(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	report, healthy := h.run(query["exclude"], func(check string) bool {
		return query.Has("verbose") && h.MayView != nil && h.MayView(r, "/"+h.Name+"/"+check)
	})
	if !healthy {
		http.Error(w, report+h.Name+" check failed", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if query.Has("verbose") {
		fmt.Fprintf(w, "%s%s check passed\n", report, h.Name)
		return
	}
	fmt.Fprint(w, "ok")
}

func (h *Endpoint) run(excluded []string, shown func(check string) bool) (report string, healthy bool) {
	var out bytes.Buffer
	unknown := map[string]bool{}
	for _, name := range excluded {
		unknown[name] = true
	}
	healthy = true
	for _, c := range h.Checks {
		if slices.Contains(excluded, c.Name) {
			delete(unknown, c.Name)
			fmt.Fprintf(&out, "[+]%s excluded: ok\n", c.Name)
			continue
		}
		err := h.runCheck(c)
		if err == nil {
			fmt.Fprintf(&out, "[+]%s ok\n", c.Name)
			continue
		}
		reason := "reason withheld"
		if shown(c.Name) {
			reason = strings.ReplaceAll(err.Error(), "\n", " ")
		}
		if c.WarnOnly {
			fmt.Fprintf(&out, "[!]%s warns: %s\n", c.Name, reason)
			continue
		}
		healthy = false
		fmt.Fprintf(&out, "[-]%s failed: %s\n", c.Name, reason)
	}
	if len(unknown) > 0 {
		names := make([]string, 0, len(unknown))
		for name := range unknown {
			names = append(names, strconv.Quote(name))
		}
		slices.Sort(names)
		fmt.Fprintf(&out, "warn: some health checks cannot be excluded: no matches for %s\n", strings.Join(names, ","))
	}
	return out.String(), healthy
}
