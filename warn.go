package main

// This file: advice that travels beside an answer. Whatever goes well can still come with warnings, each a header of the response:
//
//	Warning: 299 - "batch/v1beta1 CronJob is deprecated in v1.21+, unavailable in v1.25+; use batch/v1 CronJob"
//
// kubectl prints them on stderr, client-go logs them. They never change status or body, and they come with errors too.
//
// Three parts, in the order in which a request meets them. The recorder lies in the request's context; warning.AddWarning reaches it from
// anywhere below and writes the header at once, so whoever warns must do so before the first byte of the body. The deprecation of
// API versions: the text, and the refusal under --deny-deprecated (who still uses what is remembered by package deprecations). And warnings.ForObject:
// what is odd, though valid, about an object that is being written.
//
// Invariant: the headers of one response hold at most 4096 runes of text, or about that: once it would be more, every text is cut to
// 256 runes and what does not fit is dropped.

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

// warningLimits are in runes of text, headers' other parts not counted.
type warningLimits struct{ total, each int }

var kubernetesWarningLimits = warningLimits{total: 4096, each: 256}

// A warningRecorder turns warnings into headers of one response, whose head is not out yet. It is k8s.io/apiserver's Recorder: whoever
// warns calls warning.AddWarning with the request's context, and imports nothing of this package.
type warningRecorder struct {
	header http.Header // of the response

	mu   sync.Mutex  // guards said, what it points to, and header; webhooks warn in parallel
	said *warningSet // nil before the first warning
}

// A warningSet is what a recorder has been told, and as which headers it is sent.
type warningSet struct {
	header  http.Header
	limits  warningLimits
	seen    map[string]bool
	ordered []message
	written int  // runes of text in header
	cutting bool // the total has been exceeded: texts are cut
}

// A message is one warning.
type message struct{ agent, text string }

// AddWarning sends text to the client as a Warning header, once per request. It has no effect once the response's first byte is out. A text
// with a control character in it is lost, as in Kubernetes.
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

// add follows kube-apiserver step by step: which texts survive depends on the order of these checks.
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
		return // what cannot be sent does not use up the limit either
	}
	// Start over with every text cut. This replay does not stop at the limit.
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

// warningHeader builds a header's value, `299 - "text"`. Only quotes and backslashes are escaped; other runes travel as UTF-8.
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

// deprecatedVersions is how a server takes it that somebody uses a deprecated version.
type deprecatedVersions struct {
	server [2]int                                                            // Kubernetes' version that it speaks as
	denied bool                                                              // --deny-deprecated
	used   func(r *http.Request, rec *request.Request, res *scheme.Resource) // remembers who did
}

// note warns whoever uses a deprecated version, and remembers who did.
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

// deprecatedIn says whether a server of a version {major, minor} warns of d; the unknown version {0, 0} always does.
func deprecatedIn(d *scheme.Deprecation, server [2]int) bool {
	if d == nil || d.Deprecated == [2]int{} {
		return false
	}
	return server == [2]int{} || slices.Compare(d.Deprecated[:], server[:]) <= 0
}

// serverVersion reads the version of /version; of a minor like "36+" the leading digits count.
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

// removedRelease is the release that no longer has the version, like "1.25"; "" when none is known.
func removedRelease(d *scheme.Deprecation) string {
	if d.Removed == [2]int{} {
		return ""
	}
	return fmt.Sprintf("%d.%d", d.Removed[0], d.Removed[1])
}

// deprecationWarning is the text for whoever uses a deprecated version. kind is that of one item, for lists too, and that of the
// subresource's object for subresources.
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

// replacementOf names what to use instead, "" when nothing is known.
func replacementOf(d *scheme.Deprecation) string {
	if d.Replaced == "" {
		return ""
	}
	return scheme.GroupVersionString(d.ReplacementGroup, d.ReplacementVersion) + " " + d.Replaced
}

// denyDeprecated is the refusal under --deny-deprecated; text is the warning that would have been sent.
func denyDeprecated(group, resource, name, text string) error {
	return apierrors.NewForbidden(schema.GroupResource{Group: group, Resource: resource}, name,
		fmt.Errorf("%s (this server runs with --deny-deprecated)", text))
}
