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
// first byte of the body. The second part handles deprecated API versions: the text of the warning,
// and the error under --deny-deprecated. Package deprecations records who uses them. See
// warnings.ForObject for warnings about valid but suspicious objects.
//
// Invariant: the text in the headers of a response is limited to about 4096 runes. If a warning
// would exceed this limit, every text is cut to 256 runes, and texts beyond the limit are dropped.

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/warning"

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

	mu   sync.Mutex  // guards said and header, since webhooks warn concurrently
	said *warningSet // nil before the first warning
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
	if rec.said == nil {
		rec.said = &warningSet{header: rec.header, limits: kubernetesWarningLimits, seen: map[string]bool{}}
	}
	rec.said.add(message{agent, text})
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

var errBadWarning = errors.New("a warning is UTF-8 without control characters, its agent has no spaces, quotes or backslashes either, its code three digits")

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
	server [2]int                                                            // the version of Kubernetes that this server implements
	denied bool                                                              // --deny-deprecated
	used   func(r *http.Request, rec *request.Request, res *scheme.Resource) // records the use
}

// note adds a warning if the version is deprecated, and records the use. It returns an error if
// deprecated versions are denied.
func (d *deprecatedVersions) note(r *http.Request, rec *request.Request, res *scheme.Resource) error {
	if res.Deprecation == nil || !deprecatedIn(res.Deprecation, d.server) {
		return nil
	}
	text := deprecationWarning(res.Group, res.Version, res.Kind, res.Deprecation)
	if res.Custom != nil {
		text = res.Custom.Deprecation
	}
	warning.AddWarning(r.Context(), "", text)
	rec.Annotate("k8s.io/deprecated", "true")
	if release := removedRelease(res.Deprecation); release != "" {
		rec.Annotate("k8s.io/removed-release", release)
	}
	d.used(r, rec, res)
	if d.denied {
		return denyDeprecated(res.Group, res.Plural, rec.Info.Name, text)
	}
	return nil
}

// deprecatedIn reports whether d is deprecated in the given version of Kubernetes, {major, minor}.
// The version {0, 0} means unknown and counts as the newest.
func deprecatedIn(d *scheme.Deprecation, server [2]int) bool {
	if d == nil || d.Deprecated == [2]int{} {
		return false
	}
	return server == [2]int{} || slices.Compare(d.Deprecated[:], server[:]) <= 0
}

// serverVersion parses the version fields of /version. It ignores the suffix of a minor version
// such as "36+".
func serverVersion(major, minor string) [2]int {
	digits := strings.IndexFunc(minor, func(r rune) bool { return r < '0' || r > '9' })
	if digits >= 0 {
		minor = minor[:digits]
	}
	a, errMajor := strconv.Atoi(major)
	b, errMinor := strconv.Atoi(minor)
	if errMajor != nil || errMinor != nil {
		return [2]int{}
	}
	return [2]int{a, b}
}

// removedRelease returns the first release without the version, such as "1.25", or "" if it is
// unknown.
func removedRelease(d *scheme.Deprecation) string {
	if d.Removed == [2]int{} {
		return ""
	}
	return fmt.Sprintf("%d.%d", d.Removed[0], d.Removed[1])
}

// deprecationWarning returns the warning for a deprecated version. For lists, kind is the kind of
// an item; for subresources, it is the kind of the subresource's object.
func deprecationWarning(group, version, kind string, d *scheme.Deprecation) string {
	text := fmt.Sprintf("%s %s is deprecated in v%d.%d+", scheme.GroupVersionString(group, version), kind, d.Deprecated[0], d.Deprecated[1])
	if release := removedRelease(d); release != "" {
		text += ", unavailable in v" + release + "+"
	}
	if d.Replaced != "" {
		text += "; use " + replacementOf(d)
	}
	return text
}

// replacementOf returns the API to use instead, or "" if it is unknown.
func replacementOf(d *scheme.Deprecation) string {
	if d.Replaced == "" {
		return ""
	}
	return scheme.GroupVersionString(d.ReplacementGroup, d.ReplacementVersion) + " " + d.Replaced
}

// denyDeprecated returns the error for --deny-deprecated. text is the text of the warning.
func denyDeprecated(group, resource, name, text string) error {
	return apierrors.NewForbidden(schema.GroupResource{Group: group, Resource: resource}, name,
		fmt.Errorf("%s (this server runs with --deny-deprecated)", text))
}
