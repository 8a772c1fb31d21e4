package main

// This file sends warnings to clients. Every response may have warnings, even an error. Each
// warning is a header:
//
//	Warning: 299 - "batch/v1beta1 CronJob is deprecated in v1.21+, unavailable in v1.25+; use batch/v1 CronJob"
//
// For example, kubectl prints the warnings on stderr and client-go logs them. Warnings do not
// change the status or the body of a response.
//
// The file has two parts. The recorder is stored in the context of the request. Any package can
// call warning.AddWarning, which writes the header immediately, so it must be called before the
// first byte of the body. The second part handles deprecated API versions: it adds the warning, or
// returns an error under --deny-deprecated. Package deprecations has the text of the warning and
// records the clients that use such versions. See warnings.ForObject for warnings about valid but
// suspicious objects.
//
// Invariant: the text in the headers of a response is limited to about 4096 runes. If a warning
// would exceed this limit, every text is cut to 256 runes, and texts beyond the limit are dropped.

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/warning"

	"apilet/internal/deprecations"
	"apilet/internal/request"
	"apilet/internal/scheme"
)

// --- The recorder

// warningLimits are in runes of text. The other parts of a header are not counted.
type warningLimits struct{ total, each int }

var kubernetesWarningLimits = warningLimits{total: 4096, each: 256}

// A warningRecorder adds warnings to the headers of a response. It implements the Recorder of
// k8s.io/apiserver, so that callers of warning.AddWarning do not depend on this package.
type warningRecorder struct {
	header http.Header // of the response

	mu  sync.Mutex  // guards set and header, since webhooks warn concurrently
	set *warningSet // nil before the first warning
}

func newWarningRecorder(header http.Header) warning.Recorder { return &warningRecorder{header: header} }

// A warningSet holds the warnings of a response, and writes the headers.
type warningSet struct {
	header  http.Header
	limits  warningLimits
	seen    map[string]bool
	ordered []message
	written int  // runes of text in header
	cutting bool // the total limit was exceeded, so that texts are cut
}

// A message is one warning.
type message struct{ agent, text string }

// AddWarning adds a Warning header with the text. It ignores duplicates and, like Kubernetes, texts
// with a control character. Calls after the first byte of the response have no effect.
func (rec *warningRecorder) AddWarning(agent, text string) {
	if text == "" {
		return
	}
	rec.mu.Lock()
	defer rec.mu.Unlock()
	if rec.set == nil {
		rec.set = &warningSet{header: rec.header, limits: kubernetesWarningLimits, seen: map[string]bool{}}
	}
	rec.set.add(message{agent, text})
}

// add follows kube-apiserver exactly, because the order of these checks determines which texts are
// kept.
func (set *warningSet) add(w message) {
	full := set.cutting && set.written >= set.limits.total
	if w.text == "" || full || set.seen[w.text] {
		return
	}
	set.seen[w.text] = true
	set.ordered = append(set.ordered, w)

	if set.cutting || set.written+utf8.RuneCountInString(w.text) <= set.limits.total {
		set.send(w)
		return
	}
	if _, err := warningHeader(299, w.agent, w.text); err != nil {
		return // an invalid text does not count against the limit
	}
	// Write all headers again with cut texts. Like kube-apiserver, this loop does not check the
	// limit.
	set.cutting, set.written = true, 0
	set.header.Del("Warning")
	for _, earlier := range set.ordered {
		set.send(earlier)
	}
}

func (set *warningSet) send(w message) {
	if set.cutting {
		w.text = cutRunes(w.text, set.limits.each)
	}
	line, err := warningHeader(299, w.agent, w.text)
	if err != nil {
		return
	}
	set.written += utf8.RuneCountInString(w.text)
	set.header.Add("Warning", line)
}

// cutRunes returns at most the first n runes of s.
func cutRunes(s string, n int) string {
	for i := range s {
		if n--; n < 0 {
			return s[:i]
		}
	}
	return s
}

var errBadWarning = errors.New("a warning is UTF-8 without control characters, its agent has no spaces, quotes or " +
	"backslashes either, its code three digits")

// warningHeader returns the value of a header, such as `299 - "text"`. It escapes only quotes and
// backslashes. Other runes are sent as UTF-8.
func warningHeader(code int, agent, text string) (string, error) {
	if agent == "" {
		agent = "-"
	}
	badInAgent := func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) || r == '"' || r == '\\' }
	if code < 0 || code > 999 ||
		!utf8.ValidString(agent) || strings.ContainsFunc(agent, badInAgent) ||
		!utf8.ValidString(text) || strings.ContainsFunc(text, unicode.IsControl) {
		return "", errBadWarning
	}
	return fmt.Sprintf(`%03d %s "%s"`, code, agent, quoteEscaper.Replace(text)), nil
}

var quoteEscaper = strings.NewReplacer(`"`, `\"`, `\`, `\\`)

// --- Deprecated API versions

// A deprecatedVersions handles requests for deprecated API versions.
type deprecatedVersions struct {
	// the version of Kubernetes that this server implements
	server [2]int
	denied bool                                                              // --deny-deprecated
	used   func(r *http.Request, rec *request.Request, res *scheme.Resource) // records the use
}

// note adds a warning if the version is deprecated, and records the use. It returns an error if
// deprecated versions are denied.
func (d *deprecatedVersions) note(r *http.Request, rec *request.Request, res *scheme.Resource) error {
	if res.Deprecation == nil || !deprecations.InEffect(res.Deprecation, d.server) {
		return nil
	}
	text := deprecations.Warning(res.Group, res.Version, res.Kind, res.Deprecation)
	if res.Custom != nil {
		text = res.Custom.Deprecation
	}
	warning.AddWarning(r.Context(), "", text)
	rec.Annotate("k8s.io/deprecated", "true")
	if release := deprecations.RemovedRelease(res.Deprecation); release != "" {
		rec.Annotate("k8s.io/removed-release", release)
	}
	d.used(r, rec, res)
	if d.denied {
		return denyDeprecated(res.Group, res.Plural, rec.Info.Name, text)
	}
	return nil
}

// denyDeprecated returns the error for --deny-deprecated. text is the text of the warning.
func denyDeprecated(group, resource, name, text string) error {
	return apierrors.NewForbidden(schema.GroupResource{Group: group, Resource: resource}, name,
		fmt.Errorf("%s (this server runs with --deny-deprecated)", text))
}
