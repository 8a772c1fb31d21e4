package rules

// This file sends a request to both sides and compares the responses.

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/warning"

	"apilet/internal/scheme"
)

// The user of all requests.
const userName, groupName = "tester", "system:masters"

// A call is a request.
type call struct {
	row         *scheme.Resource
	method      string
	name, sub   string // both "" for a create
	contentType string
	body        []byte
	creates     bool // the object does not exist yet
}

func (c *call) namespace() string {
	switch {
	case c.row.Namespaced:
		return "default"
	case c.row.Plural == "namespaces":
		return c.name
	}
	return ""
}

func (c *call) verb() string {
	return map[string]string{http.MethodPost: "create", http.MethodPut: "update", http.MethodPatch: "patch"}[c.method]
}

// path returns the path of the request.
func (c *call) path() string {
	path := "/apis/" + c.row.Group + "/" + c.row.Version
	if c.row.Group == "" {
		path = "/api/" + c.row.Version
	}
	if c.row.Namespaced {
		path += "/namespaces/default"
	}
	path += "/" + c.row.Plural
	if c.name != "" {
		path += "/" + url.PathEscape(c.name)
	}
	if c.sub != "" {
		path += "/" + c.sub
	}
	return path
}

// request returns the HTTP request and the record of its warnings.
func (c *call) request() (*http.Request, *notes) {
	r := httptest.NewRequest(c.method, c.path(), bytes.NewReader(c.body))
	r.Header.Set("Content-Type", c.contentType)
	r.Header.Set("Accept", "application/json")
	n := &notes{}
	return r.WithContext(warning.WithWarningRecorder(r.Context(), n)), n
}

// operation names the kind of request in the report.
func (c *call) operation() string {
	name := c.verb()
	switch {
	case c.method == http.MethodPatch:
		name, _, _ = strings.Cut(c.contentType[len("application/"):], "+")
	case c.method == http.MethodPut && c.creates:
		name = "create by update"
	}
	if c.sub != "" {
		name += " of " + c.sub
	}
	return name
}

// An answer contains the response of one side.
type answer struct {
	code     int
	body     []byte
	warnings []string
	panicked string // the reference's panic
}

func (a *answer) accepted() bool { return a.code/100 == 2 }

// differences compares the answers of both sides. Each difference starts with the path or field
// that is different.
func differences(ours, theirs answer) (all []string) {
	switch {
	case ours.code == 0:
		return []string{"apilet panics: " + ours.panicked}
	case theirs.panicked != "" && ours.code >= 400:
		return nil // kube-apiserver closes the connection
	case theirs.panicked != "":
		return []string{fmt.Sprintf("apilet answers %d where Kubernetes panics: %s", ours.code, theirs.panicked)}
	case ours.accepted() && !theirs.accepted():
		return []string{"refused by Kubernetes alone: " + causes(theirs.body)[0]}
	case !ours.accepted() && theirs.accepted():
		return []string{"refused by apilet alone: " + causes(ours.body)[0]}
	case ours.accepted():
		all = objectDifferences(parse(ours.body), parse(theirs.body))
	default:
		all = statusDifferences(ours.body, theirs.body)
	}
	if ours.accepted() && theirs.accepted() && !slices.Equal(ours.warnings, theirs.warnings) {
		all = append(all, listDifferences("warning ", ours.warnings, theirs.warnings)...)
	}
	return all
}

// causes returns the causes of a Status. If there are no causes, it returns the message.
func causes(body []byte) (all []string) {
	var status metav1.Status
	if err := json.Unmarshal(changes.ReplaceAll(body, nil), &status); err != nil {
		return []string{"no Status: " + string(body)}
	}
	if status.Details == nil || len(status.Details.Causes) == 0 {
		return []string{fmt.Sprintf("%s: %s", status.Reason, status.Message)}
	}
	for _, c := range status.Details.Causes {
		// the message contains the patch, and some of its entries may have been removed when it was
		// applied
		if c.Field == "patch" {
			c.Message = c.Message[strings.LastIndex(c.Message, `": `)+1:]
		}
		all = append(all, fmt.Sprintf("%s: %s: %s", c.Field, c.Type, c.Message))
	}
	return all
}

func statusDifferences(ours, theirs []byte) (all []string) {
	all = listDifferences("", ordered(causes(ours)), ordered(causes(theirs)))
	if !slices.Equal(causes(ours), causes(theirs)) || strings.HasPrefix(causes(ours)[0], "patch: ") {
		return all
	}
	a, b := parse(changes.ReplaceAll(ours, nil)), parse(changes.ReplaceAll(theirs, nil))
	if len(all) == 0 && !reflect.DeepEqual(a, b) {
		all = objectDifferences(a, b)
	}
	return all
}

// inMap finds the key of a map or the end of the field name in a cause.
var inMap = regexp.MustCompile(`\[[^\]]*[^0-9\]][^\]]*\]|` +
	`(?i:data|hard|used|limits|requests|capacity|allocatable|max|min|default|defaultRequest|ratio|labels|annotations|nodeSelector)(\[|\.|: )|: `)

// ordered sorts neighboring causes of the same field or the same map, whose order is random in Go.
// This includes the sources of a metric in the validation of Kubernetes.
func ordered(all []string) []string {
	of := func(text string) string {
		if strings.Contains(text, "must populate the given metric source only") {
			return "source"
		}
		return text[:inMap.FindStringIndex(text)[0]]
	}
	for from := 0; from < len(all); {
		to := from + 1
		for to < len(all) && of(all[to]) == of(all[from]) {
			to++
		}
		slices.Sort(all[from:to])
		from = to
	}
	return all
}

// listDifferences returns the members that are only in one of the lists, or a message if the order
// is different.
func listDifferences(prefix string, ours, theirs []string) (all []string) {
	for _, text := range ours {
		if !slices.Contains(theirs, text) {
			all = append(all, prefix+"only apilet: "+text)
		}
	}
	for _, text := range theirs {
		if !slices.Contains(ours, text) {
			all = append(all, prefix+"only Kubernetes: "+text)
		}
	}
	if len(all) == 0 && !slices.Equal(ours, theirs) {
		i := 0
		for i < len(ours) && i < len(theirs) && ours[i] == theirs[i] {
			i++
		}
		all = append(all, fmt.Sprintf("%sorder of %d and %d entries from %s", prefix, len(ours), len(theirs), strings.Join(append(ours[i:], theirs[i:]...)[:1], "")))
	}
	return all
}

func parse(body []byte) any {
	var v any
	if err := json.Unmarshal(body, &v); err != nil {
		return string(body)
	}
	return v
}

// changing are the values that differ from one request or server to the next.
var changing = map[string]bool{"metadata.uid": true, "metadata.creationTimestamp": true, "metadata.resourceVersion": true, "metadata.managedFields": true}

// objectDifferences lists the paths at which two documents differ.
func objectDifferences(ours, theirs any) (all []string) {
	var walk func(path string, a, b any)
	walk = func(path string, a, b any) {
		// the name of a LimitRange without a name is a UID
		if changing[path] || path == "metadata.name" && isUID(a) && isUID(b) {
			return
		}
		switch x := a.(type) {
		case map[string]any:
			if y, ok := b.(map[string]any); ok {
				keys := maps.Clone(x)
				maps.Copy(keys, y)
				for _, key := range slices.Sorted(maps.Keys(keys)) {
					walk(strings.TrimPrefix(path+"."+key, "."), member(x, key), member(y, key))
				}
				return
			}
		case []any:
			if y, ok := b.([]any); ok && len(x) == len(y) {
				for i := range x {
					walk(fmt.Sprintf("%s[%d]", path, i), x[i], y[i])
				}
				return
			}
		}
		if !reflect.DeepEqual(a, b) && !(isNow(a) && isNow(b)) {
			all = append(all, fmt.Sprintf("%s: apilet %s, Kubernetes %s", path, short(a), short(b)))
		}
	}
	walk("", ours, theirs)
	return all
}

var uid = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f-]{27}$`)

func isUID(v any) bool {
	text, _ := v.(string)
	return uid.MatchString(text)
}

// isNow reports whether a value is a timestamp that was set by a server recently.
func isNow(v any) bool {
	text, _ := v.(string)
	moment, err := time.Parse(time.RFC3339Nano, text)
	return err == nil && time.Since(moment).Abs() < time.Hour
}

// missing represents a member that does not exist in a document.
type missing struct{}

func (missing) MarshalText() ([]byte, error) { return []byte("nothing"), nil }

func member(m map[string]any, key string) any {
	if v, ok := m[key]; ok {
		return v
	}
	return missing{}
}

func short(v any) string {
	text := string(must(json.Marshal(v)))
	return text[:min(len(text), 200)]
}

var (
	numbers = regexp.MustCompile(`[0-9]+`)
	// texts of errors that depend on the server
	changes = regexp.MustCompile(`Key: [^,]*,|template\.spec\.volumes\[[0-9]+\]|failed to allocate IP [^:]+: [^"\\]*|resourceVersion\\*":\\*"[0-9]+|creationTimestamp\\*":\\*"[-0-9:TZ]+|[0-9a-f]{8}-[0-9a-f-]{27}|3[0-2][0-9]{3}`)
	keys    = regexp.MustCompile(`\[[^\]]*\]`)
	values  = regexp.MustCompile(`(Invalid value|Unsupported value|Duplicate value|Too long|Too many): .*?: `)
)

// kindOf removes all names and numbers from a difference.
func kindOf(difference string) string {
	difference = keys.ReplaceAllString(difference, "[*]")
	difference = values.ReplaceAllString(difference, "$1: ")
	difference = numbers.ReplaceAllString(difference, "0")
	return difference[:min(len(difference), 160)]
}
