package findings

// This file connects the detector to the server. It converts the record of a request to an outcome,
// and publishes findings in the log, in /metrics and at GET /debug/findings. `apilet log
// --findings` reads the latter.

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"apilet/internal/apierror"
	"apilet/internal/request"
	"apilet/internal/response"
)

// Path is the path of the endpoint.
const Path = "/debug/findings"

// RecordRequest must be called after each request with its record and the status code of the
// response.
func (d *Detector) RecordRequest(rec *request.Request, code int, at time.Time) {
	info := &rec.Info
	if d == nil || !info.ResourceRequest {
		return
	}
	q := outcome{at: at, took: at.Sub(rec.Received), client: Client{rec.User.Name, rec.Agent, rec.Manager}, from: rec.Remote, verb: info.Verb, group: info.Group, resource: info.Resource,
		subresource: info.Subresource, namespace: info.Namespace, name: info.Name, code: code}
	switch info.Verb {
	case "list", "watch":
		options, _ := info.ListOptions()
		if options.Continue != "" { // a further chunk of a list
			return
		}
		if q.selector = options.LabelSelector; options.FieldSelector != "" {
			q.selector += " " + options.FieldSelector
		}
	case "create", "update", "patch", "delete":
		if w := &rec.Written; w.Done {
			q.wrote, q.old, q.new, q.was, q.is = true, w.Old, w.New, w.Before, w.After
			q.name = w.Key[strings.LastIndexByte(w.Key, '/')+1:]
		} else if q.name == "" {
			q.name = rec.Sent.Name
		}
		if code == http.StatusConflict {
			q.sent, _ = strconv.ParseInt(rec.Sent.ResourceVersion, 10, 64)
		}
	}
	d.observe(&q)
}

// Rights are the current authorization rules.
type Rights struct {
	Authorize  func(request.User, request.Info) bool // reports whether the user is authorized for the request
	MayListAny func(request.User) bool               // reports whether the user may list any resource

	// returns the time from which on the user may see the requested objects
	VisibleSince func(request.User, request.Info) time.Time
}

// Serve serves GET /debug/findings. It returns current findings first and then ended findings, both
// from newest to oldest. Only findings for resources that the user is allowed to list are returned.
func (d *Detector) Serve(w http.ResponseWriter, r *http.Request, rights Rights) {
	rec := request.From(r.Context())
	user, decision := rec.User, request.Allowed
	if !rights.MayListAny(user) {
		decision = request.Forbidden
	}
	rec.Decision, rec.Reason = decision, "of each finding, whoever may list what it is about"
	switch {
	case decision == request.Forbidden:
		_ = response.Refuse(w, r, apierrors.NewForbidden(schema.GroupResource{Resource: "findings"}, "", fmt.Errorf("User %q may not list anything", user.Name)))
		return
	case r.Method != http.MethodGet:
		_ = response.Refuse(w, r, apierror.MethodNotAllowed())
		return
	}
	list := slices.DeleteFunc(d.list(), func(f Finding) bool {
		info := request.Info{ResourceRequest: true, Verb: "list", APIPrefix: "apis", Group: f.Group, Resource: f.Resource, Namespace: f.Namespace}
		if f.Group == "" {
			info.APIPrefix = "api"
		}
		return !rights.Authorize(user, info) || f.Since.Before(rights.VisibleSince(user, info))
	})
	body, err := json.MarshalIndent(map[string]any{"items": list}, "", "  ")
	if err != nil {
		response.WriteError(w, r, err)
		return
	}
	response.WriteJSON(w, r, http.StatusOK, append(body, '\n'))
}

// ---- Metrics

var gauge = prometheus.NewDesc("apilet_findings", "Controllers that go in circles now, by kind: see /debug/findings.", []string{"kind"}, nil)

// Describe implements prometheus.Collector.
func (d *Detector) Describe(ch chan<- *prometheus.Desc) { ch <- gauge }

// Collect implements prometheus.Collector. It exports the number of current findings by kind.
func (d *Detector) Collect(ch chan<- prometheus.Metric) {
	for kind, n := range d.counts() {
		ch <- prometheus.MustNewConstMetric(gauge, prometheus.GaugeValue, float64(n), kind)
	}
}

// ---- Log

// LogTo returns a callback for New that logs findings.
func LogTo(log zerolog.Logger) func(Finding) {
	return func(f Finding) {
		if f.Ended != nil {
			log.Info().Str("kind", f.Kind).Int64("times", f.Times).Msg("resolved: " + f.String())
			return
		}
		log.Warn().Str("kind", f.Kind).Int64("times", f.Times).Ints64("revisions", f.copy().Revisions).Msg(f.String())
	}
}

// String returns the finding as a sentence. Names from clients are quoted if they contain
// characters that are not printable.
func (f Finding) String() string {
	first, second := "somebody", "somebody else"
	if len(f.Who) > 0 {
		first = f.Who[0].String()
	}
	if len(f.Who) > 1 {
		second = f.Who[1].String()
	}
	what := f.what()
	switch f.Kind {
	case Fight:
		if len(f.From) == 2 {
			return fmt.Sprintf("two of %s, at %s and %s, set %s of %s back and forth%s", first, printable(f.From[0]), printable(f.From[1]), printable(strings.Join(f.Paths, ", ")), what, f.values())
		}
		return fmt.Sprintf("%s and %s set %s of %s back and forth%s", first, second, printable(strings.Join(f.Paths, ", ")), what, f.values())
	case Recreate:
		return fmt.Sprintf("%s creates %s again, which %s deletes", first, what, second)
	case NoOp:
		return fmt.Sprintf("%s writes (%s) %s without changing anything", first, f.Verb, what)
	case Conflict:
		return fmt.Sprintf("%s is told again and again (%s) that %s has changed or is there", first, f.Verb, what)
	case Watch:
		return fmt.Sprintf("%s opens a watch of %s again and again", first, what)
	}
	return fmt.Sprintf("%s reads (%s) %s all the time", first, printable(f.Verb), what)
}

// what describes the affected objects, for example deployments.apps shop/web.
func (f *Finding) what() string {
	text := f.Resource
	if f.Group != "" {
		text += "." + f.Group
	}
	if f.Subresource != "" {
		text += "/" + f.Subresource
	}
	if len(f.Objects) > 0 {
		text += " " + strings.Join(f.Objects, ", ")
	}
	if f.Selector != "" {
		text += " (" + f.Selector + ")"
	}
	return printable(text)
}

func (f *Finding) values() string {
	if len(f.Values) != 2 {
		return ""
	}
	return printable(fmt.Sprintf(": %s, %s", f.Values[0], f.Values[1]))
}

// String returns the manager or the program, and the user.
func (w Client) String() string {
	program := w.Manager
	if program == "" {
		program, _, _ = strings.Cut(w.Agent, "/")
	}
	switch {
	case program == "":
		return printable(w.User)
	case w.User == "":
		return printable(program)
	}
	return printable(program) + " (" + printable(w.User) + ")"
}

func printable(text string) string {
	if strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(text)
	}
	return text
}
