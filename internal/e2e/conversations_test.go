package e2e

// This file replays recorded conversations with kube-apiserver.

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"apilet/internal/apitest"
	"apilet/internal/apitest/kubetest"
)

// TestConversations replays testdata/conversations/*.txtar. A file is a sequence of "request" and
// "response" sections. A request consists of the first line, the headers, an empty line and the
// body. A response consists of the status code, the significant headers and the indented body.
// Values that vary between runs are replaced by names, which later requests may use. rev1 is the
// first resourceVersion in the file, uid1 is the first UID, and token1 the first continue token.
//
// The responses were recorded from a new kube-apiserver 1.37 with -update -oracle URL -token TOKEN.
// The responses in differences.txtar are from apilet, which deliberately differs. The first lines
// of a file can set flags for both servers:
//
//   - "plugins: A,B" is --enable-admission-plugins.
//   - "gates: A=true,B=true" is --feature-gates.
//   - "authorization: RBAC" is --authorization-mode.
//   - "services: CIDR,CIDR" is --service-cluster-ip-range. It also gives names to the addresses that
//     the server has chosen: four1 and six1.
//   - "managedFields: shown" keeps the managedFields of the responses.
//
// A section "configuration" is the file of --admission-control-config-file.
func TestConversations(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/conversations/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal("no conversations", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			if *kubetest.OracleURL == "" { // there is only one server to record from
				t.Parallel()
			}
			replayFile(t, file)
		})
	}
}

func replayFile(t *testing.T, file string) {
	archive, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	talk := &conversation{s: interlocutor(t, file, archive), names: map[string]string{}, values: map[string]string{}, counts: map[string]int{}}
	if bytes.Contains(archive.Comment, []byte("\nservices: ")) {
		talk.asked = requestsOf(archive)
	}
	talk.owners = bytes.Contains(archive.Comment, []byte("\nmanagedFields: shown\n"))
	var out []txtar.File
	for _, section := range archive.Files {
		if section.Name == "configuration" {
			out = append(out, section)
		}
		if section.Name != "request" {
			continue
		}
		got := talk.exchange(string(section.Data))
		out = append(out, section, txtar.File{Name: "response", Data: []byte(got)})
	}
	got := txtar.Format(&txtar.Archive{Comment: archive.Comment, Files: out})
	want, _ := os.ReadFile(file)
	switch {
	case bytes.Equal(got, want):
	case *update:
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s differs (-update rewrites it); got:\n%s", file, apitest.FirstDifference(string(got), string(want)))
	}
}

// interlocutor returns a new server, or the kube-apiserver to record from.
func interlocutor(t *testing.T, file string, archive *txtar.Archive) *testServer {
	if *kubetest.OracleURL == "" {
		var flags []string
		plugins := ""
		if strings.Contains(file, "plugin-") {
			plugins = "StorageObjectInUseProtection"
		}
		for _, flag := range conversationFlag.FindAllStringSubmatch(string(archive.Comment), -1) {
			switch flag[1] {
			case "plugins":
				plugins = flag[2]
			case "gates":
				flags = append(flags, "--feature-gates="+flag[2])
			case "authorization":
				flags = append(flags, "--authorization-mode="+flag[2])
			case "services":
				flags = append(flags, "--service-cluster-ip-range="+flag[2])
				if strings.HasPrefix(flag[2], "fd00:") {
					flags = append(flags, "--advertise-address=fd00::1")
				}
			}
		}
		for _, section := range archive.Files {
			if section.Name == "configuration" {
				flags = append(flags, "--admission-control-config-file="+apitest.TempFile(t, "admission.yaml", string(section.Data)))
			}
		}
		if strings.Contains(file, "plugin-serviceaccount") { // recorded without a controller that creates accounts
			flags = append(flags, "--disable-admission-plugins=", "--namespace-defaults=false")
		}
		return startTest(t, append(flags, "--enable-admission-plugins="+plugins)...)
	}
	if strings.Contains(file, "differences") {
		t.Skip("has answers of apilet's own")
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	return &testServer{t: t, url: *kubetest.OracleURL, client: client, headers: []string{"Authorization: Bearer " + *kubetest.OracleToken}}
}

// A conversation remembers the names of varying values.
type conversation struct {
	s      *testServer
	names  map[string]string // by value
	values map[string]string // by name
	counts map[string]int    // of names, by kind
	// asked has the text of all requests if cluster IPs that are not in it get names. Otherwise it
	// is empty.
	asked  string
	owners bool // whether to keep managedFields
}

var (
	conversationFlag = regexp.MustCompile(`(?m)^(\w+): (\S+)$`)

	placeholder = regexp.MustCompile(`\$\{(\w+)\}`)
	volatile    = regexp.MustCompile(`"(uid|resourceVersion|continue)": "([^"R][^"]*)"`)
	timestamp   = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`)
	currentRev  = regexp.MustCompile(`(current: |in record \(|resourceVersion\\+":\\+")\d+`)
	listRev     = regexp.MustCompile(`(?s)^(\{\n  "kind": "(?:\w+List|Table)",.*?\n    "resourceVersion": )"\d+"`)
	clusterIP   = regexp.MustCompile(`(10\.96\.\d+|fd00:10:)[.:][0-9a-f:]*[0-9a-f]`)
	ownPort     = regexp.MustCompile(`("port": 443,\s+"targetPort": )\d+`)
	tokenVolume = regexp.MustCompile(`kube-api-access-[bcdfghjklmnpqrstvwxz2456789]{5}`)
	generated   = regexp.MustCompile(`gen-[bcdfghjklmnpqrstvwxz2456789]{5}`)
	// The submatches are the first line, the indentation and the entries.
	managedFieldsBlock = regexp.MustCompile(`(?s)(( +)"managedFields": \[\n)(.*?)\n +\]`)

	ageCell = regexp.MustCompile(`"\d+m?s"`)
)

// exchange sends the request of a section and returns the text of the response section.
func (talk *conversation) exchange(section string) string {
	section = placeholder.ReplaceAllStringFunc(section, func(name string) string { return talk.values[name[2:len(name)-1]] })
	head, body, _ := strings.Cut(section, "\n\n")
	lines := strings.Split(strings.TrimSpace(head), "\n")
	method, path, _ := strings.Cut(lines[0], " ")
	a := talk.s.send(method, path, strings.TrimSpace(body), lines[1:]...)
	out := fmt.Sprintln(a.code)
	for _, key := range []string{"Content-Type", "Warning", "Retry-After"} {
		for _, value := range a.header[key] {
			if value != "application/json" {
				out += key + ": " + value + "\n"
			}
		}
	}
	return out + "\n" + talk.normal(a.body) + "\n"
}

// normal returns a body with names in place of its varying values.
func (talk *conversation) normal(body []byte) string {
	var indented bytes.Buffer
	text := strings.TrimSpace(string(body))
	if json.Indent(&indented, body, "", "  ") == nil {
		text = strings.TrimSpace(indented.String())
		if talk.owners {
			text = sortManagedFields(text)
		} else {
			text = withoutManagedFields(text)
		}
	}
	text = generated.ReplaceAllString(text, "gen-XXXXX")
	text = tokenVolume.ReplaceAllString(text, "kube-api-access-XXXXX")
	text = listRev.ReplaceAllString(text, `$1"LISTREV"`)
	text = volatile.ReplaceAllStringFunc(text, func(pair string) string {
		m := volatile.FindStringSubmatch(pair)
		kind := map[string]string{"uid": "uid", "resourceVersion": "rev", "continue": "token"}[m[1]]
		return `"` + m[1] + `": "` + talk.nameOf(kind, m[2]) + `"`
	})
	if talk.asked != "" {
		text = ownPort.ReplaceAllString(clusterIP.ReplaceAllStringFunc(text, talk.nameOfAddress), "${1}PORT")
	}
	for value, name := range talk.names {
		if len(value) > 20 {
			text = strings.ReplaceAll(text, value, name)
		}
	}
	text = currentRev.ReplaceAllString(timestamp.ReplaceAllString(text, "TIME"), "${1}REV")
	return ageCell.ReplaceAllString(text, `"AGE"`)
}

// sortManagedFields sorts the entries of managedFields in indented objects by their text. The
// server first sorts them by time in seconds. Therefore, the order may change if a second passes
// between two requests.
func sortManagedFields(text string) string {
	return managedFieldsBlock.ReplaceAllStringFunc(text, func(block string) string {
		m := managedFieldsBlock.FindStringSubmatch(block)
		entries := strings.Split(m[3], ",\n"+m[2]+"  {")
		entries[0] = strings.TrimPrefix(entries[0], m[2]+"  {")
		slices.Sort(entries)
		return m[1] + m[2] + "  {" + strings.Join(entries, ",\n"+m[2]+"  {") + "\n" + m[2] + "]"
	})
}

// withoutManagedFields removes the managedFields of indented objects. Other tests check them, and
// they would make the files hard to read.
func withoutManagedFields(text string) string {
	var out []string
	end := ""
	for line := range strings.SplitSeq(text, "\n") {
		indent := line[:len(line)-len(strings.TrimLeft(line, " "))]
		switch closing := strings.TrimSuffix(line, ","); {
		case end != "" && closing == end:
			if n := len(out) - 1; closing == line {
				out[n] = strings.TrimSuffix(out[n], ",")
			}
			end = ""
		case end == "" && strings.HasPrefix(line, indent+`"managedFields": [`):
			end = indent + "]"
		case end == "":
			out = append(out, line)
		}
	}
	return strings.ReplaceAll(strings.Join(out, "\n"), "{\n  }", "{}")
}

// nameOfAddress returns a name for an address that the server has chosen. It returns any other
// address unchanged.
func (talk *conversation) nameOfAddress(address string) string {
	switch {
	case strings.HasSuffix(address, ".0.0") || strings.HasSuffix(address, ".0.1") || strings.HasSuffix(address, "::1") || strings.Contains(talk.asked, address):
		return address
	case strings.HasPrefix(address, "fd00"):
		return talk.nameOf("six", address)
	}
	return talk.nameOf("four", address)
}

// requestsOf returns the text of all requests in a file.
func requestsOf(archive *txtar.Archive) (text string) {
	for _, section := range archive.Files {
		if section.Name == "request" {
			text += string(section.Data)
		}
	}
	return text
}

func (talk *conversation) nameOf(kind, value string) string {
	if talk.names[value] == "" {
		talk.counts[kind]++
		name := kind + strconv.Itoa(talk.counts[kind])
		talk.names[value], talk.values[name] = name, value
	}
	return talk.names[value]
}
