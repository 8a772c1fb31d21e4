package e2e

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tidwall/gjson"
	"golang.org/x/tools/txtar"

	"apilet/internal/apitest"
	"apilet/internal/apitest/kubetest"
)

const emulationFile = "testdata/emulation.txtar"

// TestEmulatedVersions compares the types, /version and the treatment of new fields with
// kube-apiserver, for each --emulated-version. With -oracle URL -token TOKEN it compares an empty
// kube-apiserver that has this flag instead, and with -update it records its answers, one version at
// a time.
func TestEmulatedVersions(t *testing.T) {
	t.Parallel()
	archive, err := txtar.ParseFile(emulationFile)
	if err != nil {
		t.Fatal(err)
	}
	if *kubetest.OracleURL != "" {
		askOracle(t, archive)
		return
	}
	for _, version := range []string{"1.34", "1.35", "1.36", "1.37"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			compareEmulation(startTest(t, "--emulated-version=kube="+version), archive, version)
		})
	}
}

// compareEmulation compares the answers of a server with the recorded ones of a version.
func compareEmulation(s *testServer, archive *txtar.Archive, version string) {
	s.t.Helper()
	for i, got := range emulate(s, archive) {
		section := archive.Files[i]
		want := linesOf(string(section.Data), version)
		if text := strings.Join(got, "\n"); section.Name != "request" && text != strings.Join(want, "\n") {
			title := section.Name
			if i > 0 && archive.Files[i-1].Name == "request" {
				title = string(archive.Files[i-1].Data)
			}
			s.t.Errorf("%s: %s", title, apitest.FirstDifference(text, strings.Join(want, "\n")))
		}
	}
}

// askOracle compares the answers of the version that the kube-apiserver emulates, or records them.
func askOracle(t *testing.T, archive *txtar.Archive) {
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	s := &testServer{t: t, url: *kubetest.OracleURL, client: client, headers: []string{"Authorization: Bearer " + *kubetest.OracleToken}}
	emulated := s.send("GET", "/version", "")
	version := emulated.get("emulationMajor").String() + "." + emulated.get("emulationMinor").String()
	if !*update {
		compareEmulation(s, archive, version)
		return
	}
	for i, got := range emulate(s, archive) {
		if section := &archive.Files[i]; section.Name != "request" {
			section.Data = []byte(replaceLines(string(section.Data), version, got))
		}
	}
	if err := os.WriteFile(emulationFile, txtar.Format(archive), 0o644); err != nil {
		t.Fatal(err)
	}
}

// emulate sends the requests, and returns the answers by section.
func emulate(s *testServer, archive *txtar.Archive) [][]string {
	answers := make([][]string, len(archive.Files))
	for i, section := range archive.Files {
		switch section.Name {
		case "resources":
			answers[i] = servedResources(s)
		case "version":
			answers[i] = []string{reportedVersion(s.send("GET", "/version", ""))}
		case "request":
			head, body, _ := strings.Cut(string(section.Data), "\n")
			words := strings.Fields(head)
			answers[i+1] = []string{treatment(s.send(words[0], words[1], body, "Content-Type: "+map[string]string{
				"POST": "application/json", "PUT": "application/json", "DELETE": "application/json",
				"PATCH": "application/strategic-merge-patch+json"}[words[0]]), words[2])}
		}
	}
	return answers
}

// servedResources returns the resources and subresources in aggregated discovery, sorted.
func servedResources(s *testServer) (names []string) {
	for _, root := range []string{"/api", "/apis"} {
		groups := s.send("GET", root, "", "Accept: application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList").get("items")
		for _, group := range groups.Array() {
			for _, version := range group.Get("versions").Array() {
				for _, resource := range version.Get("resources").Array() {
					name := group.Get("metadata.name").String() + "/" + version.Get("version").String() + "/" + resource.Get("resource").String()
					names = append(names, name)
					for _, sub := range resource.Get("subresources.#.subresource").Array() {
						names = append(names, name+"/"+sub.String())
					}
				}
			}
		}
	}
	slices.Sort(names)
	return names
}

// reportedVersion returns /version without the fields that differ from build to build.
func reportedVersion(a answer) string {
	var fields map[string]string
	if err := json.Unmarshal(a.body, &fields); err != nil {
		return err.Error()
	}
	for _, name := range []string{"gitCommit", "gitTreeState", "buildDate", "goVersion", "compiler", "platform"} {
		delete(fields, name)
	}
	fields["gitVersion"] = strings.TrimSuffix(fields["gitVersion"], "+apilet")
	text, _ := json.Marshal(fields)
	return string(text)
}

var serverUID = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)

// treatment describes whether the field of a request is kept, dropped or refused.
func treatment(a answer, field string) string {
	switch value := a.get(field); {
	case a.code >= 300:
		text := a.get("message").String()
		if !gjson.ValidBytes(a.body) {
			text = string(a.body)
		}
		text = serverUID.ReplaceAllString(strings.TrimSpace(text), "UID")
		return fmt.Sprintf("refused %d %.200s", a.code, text)
	case value.Exists():
		return "kept " + value.Raw
	}
	return "dropped"
}

// linesOf returns the lines of a version, without the versions that each line begins with.
func linesOf(section, version string) (lines []string) {
	for line := range strings.Lines(section) {
		versions, text, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if slices.Contains(strings.Split(versions, ","), version) {
			lines = append(lines, text)
		}
	}
	slices.Sort(lines)
	return lines
}

// replaceLines replaces the lines of a version.
func replaceLines(section, version string, lines []string) string {
	versions := map[string][]string{} // by text
	for line := range strings.Lines(section) {
		of, text, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		versions[text] = slices.DeleteFunc(strings.Split(of, ","), func(v string) bool { return v == version })
	}
	for _, text := range lines {
		versions[text] = append(versions[text], version)
	}
	var out []string
	for text, of := range versions {
		if len(of) > 0 {
			slices.Sort(of)
			out = append(out, strings.Join(of, ",")+" "+text+"\n")
		}
	}
	slices.Sort(out)
	return strings.Join(out, "")
}
