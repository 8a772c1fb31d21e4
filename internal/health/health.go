// Package health answers /livez, /readyz and /healthz: each runs a list of named checks, and tells how they went in kube-apiserver's words.
//
//	ready := health.Endpoint{Name: "readyz", Checks: []health.Check{health.Ping, health.Shutdown(stopping), {Name: "store", Err: st.Writable},
//		{Name: "disk", Err: st.HasRoom, Warns: true}}}
//	mux.Handle("/readyz", &ready)  // ok, or 500; ?verbose has a line for each check, ?exclude=NAME leaves one out
//	mux.Handle("/readyz/", &ready) // /readyz/store is one check alone
//	go ready.Run(ctx, health.LookEvery) // asks all checks now and then, for ready.Observed, also where no probe asks
//
// A check that warns does not make the server unready: a load balancer that took it out of service would keep away those who can help. Its line is
// [!]disk warns: ..., and its own page, /readyz/disk, fails.
//
// Probes ask without credentials, so why a check fails is told to those alone who may see it.
//
// systemd.go reports the state of the process to a service manager, and feeds its watchdog.
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

// LookEvery is between two looks at the checks that nobody has asked for. A monitor that asks each half minute misses nothing that lasts.
const LookEvery = 10 * time.Second

// A Check is one condition of /livez, /readyz or /healthz; names may contain slashes.
type Check struct {
	Name  string       // as in /readyz/NAME
	Err   func() error // nil: well. It ends with what there is to do
	Warns bool         // a failure is told, and leaves the whole well
}

// Ping is always well: it answers, so it lives.
var Ping = Check{Name: "ping", Err: func() error { return nil }}

// Shutdown fails once stop is closed; it belongs in /readyz alone, so that no new work is sent here while the old is finished.
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

// Done are checks of what was done before the first request is answered, under the names of kube-apiserver's hooks: scripts wait for single ones.
func Done(names ...string) (checks []Check) {
	for _, name := range names {
		checks = append(checks, Check{Name: name, Err: Ping.Err})
	}
	return checks
}

// An Endpoint serves /NAME (all checks) and /NAME/CHECK (one of them).
type Endpoint struct {
	Name     string                                  // livez, readyz or healthz
	Checks   []Check                                 // in the order in which they are run and told
	Shows    func(r *http.Request, path string) bool // whether who asks may see the cause on a check's own page, and so here; nil: nobody
	Observed func(check string, err error)           // told how each check went, each time; may be nil
}

// Run asks all checks at once and then every so often, until ctx ends, for Observed.
func (h *Endpoint) Run(ctx context.Context, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		for _, c := range h.Checks {
			if ctx.Err() == nil {
				h.ask(c)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (h *Endpoint) ask(c Check) error {
	err := c.Err()
	if h.Observed != nil {
		h.Observed(c.Name, err)
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
	// kube-apiserver shows the cause here, on the page of a single check.
	if err := h.ask(h.Checks[i]); err != nil {
		http.Error(w, fmt.Sprintf("internal server error: %v", err), http.StatusInternalServerError)
		return
	}
	fmt.Fprint(w, "ok")
}

// serveAll runs all checks but those that ?exclude= names. Details are printed when asked for, and always on failure.
func (h *Endpoint) serveAll(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	report, healthy := h.run(query["exclude"], func(check string) bool {
		return query.Has("verbose") && h.Shows != nil && h.Shows(r, "/"+h.Name+"/"+check)
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
		err := h.ask(c)
		if err == nil {
			fmt.Fprintf(&out, "[+]%s ok\n", c.Name)
			continue
		}
		reason := "reason withheld"
		if shown(c.Name) {
			reason = strings.ReplaceAll(err.Error(), "\n", " ")
		}
		if c.Warns {
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
