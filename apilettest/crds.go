package apilettest

// This file installs CustomResourceDefinitions. The standard library has no YAML parser, so the
// documents are sent to apilet unchanged. The response contains the name of the object.

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// A manifest is the text of one CustomResourceDefinition, in YAML or JSON.
type manifest struct {
	file string
	text []byte
}

var (
	// separator is the line between two YAML documents.
	separator = regexp.MustCompile(`(?m)^---([ \t].*)?\r?$`)
	// isDefinition matches the kind at the top of a YAML document.
	isDefinition = regexp.MustCompile(`(?m)^kind:[ \t]*["']?CustomResourceDefinition["']?[ \t]*(#.*)?\r?$`)
)

// readCRDs returns the CustomResourceDefinitions of files and folders. No definition in a path is
// an error.
func readCRDs(paths []string) ([]manifest, error) {
	var all []manifest
	for _, path := range paths {
		files, err := manifestFiles(path)
		if err != nil {
			return nil, err
		}
		before := len(all)
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				return nil, err
			}
			for _, document := range definitions(text) {
				all = append(all, manifest{file, document})
			}
		}
		if len(all) == before {
			return nil, fmt.Errorf("%s has no CustomResourceDefinition", path)
		}
	}
	return all, nil
}

// manifestFiles returns the file itself, or the manifests in a folder.
func manifestFiles(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	var files []string
	for _, entry := range entries {
		if !entry.IsDir() && slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(entry.Name())) {
			files = append(files, filepath.Join(path, entry.Name()))
		}
	}
	return files, nil
}

// definitions returns the CustomResourceDefinitions in a file: one JSON object, or YAML documents.
func definitions(text []byte) [][]byte {
	var object struct{ Kind string }
	if json.Unmarshal(text, &object) == nil {
		if object.Kind == "CustomResourceDefinition" {
			return [][]byte{text}
		}
		return nil
	}
	var found [][]byte
	for _, document := range separator.Split(string(text), -1) {
		if isDefinition.MatchString(document) {
			found = append(found, []byte(document))
		}
	}
	return found
}

// ---- Install ----

const definitionsPath = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

// install creates or updates the CustomResourceDefinitions and waits until they are established.
func (s *Server) install(ctx context.Context, p *Process) error {
	config, err := readKubeconfig(s.KubeconfigFile)
	if err != nil {
		return err
	}
	client, err := config.client()
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	in := installer{ctx: ctx, client: client, url: config.server + definitionsPath}
	var names []string
	for _, m := range s.manifests {
		name, err := in.apply(m.text)
		if err != nil {
			return fmt.Errorf("%s: %w", m.file, err)
		}
		names = append(names, name)
	}
	for _, name := range names {
		if err := poll(ctx, p.Done, func() error { return in.established(name) }); err != nil {
			return fmt.Errorf("CustomResourceDefinition %s: %w", name, err)
		}
	}
	return nil
}

// An installer sends requests about CustomResourceDefinitions.
type installer struct {
	ctx    context.Context
	client *http.Client
	url    string
}

// definition contains the fields that this file reads from a CustomResourceDefinition or a Status.
type definition struct {
	Metadata struct{ Name string }
	Status   json.RawMessage // an object in a CustomResourceDefinition, a string in a Status
	Message  string
	Details  struct{ Name string }
}

// apply creates or updates the definition and returns its name.
func (in installer) apply(text []byte) (name string, err error) {
	created, code, err := in.do(http.MethodPost, "?fieldManager=apilettest", "application/yaml", text)
	if code != http.StatusConflict {
		return created.Metadata.Name, err
	}
	name = created.Details.Name
	_, _, err = in.do(http.MethodPatch, "/"+name+"?fieldManager=apilettest&force=true", "application/apply-patch+yaml", text)
	return name, err
}

// established returns nil if the server serves the definition's resources.
func (in installer) established(name string) error {
	stored, _, err := in.do(http.MethodGet, "/"+name, "", nil)
	if err != nil {
		return err
	}
	var status struct {
		Conditions []struct{ Type, Status, Message string }
	}
	if err := json.Unmarshal(stored.Status, &status); err != nil {
		return err
	}
	var missing []string
	for _, c := range status.Conditions {
		if c.Type == "Established" && c.Status == "True" {
			return nil
		}
		missing = append(missing, fmt.Sprintf("%s is %s: %s", c.Type, c.Status, c.Message))
	}
	return errors.New("it is not established; " + strings.Join(missing, ", "))
}

// do sends a request. A code other than 2xx is an error with the server's message.
func (in installer) do(method, path, contentType string, body []byte) (answer definition, code int, err error) {
	request, err := http.NewRequestWithContext(in.ctx, method, in.url+path, bytes.NewReader(body))
	if err != nil {
		return answer, 0, err
	}
	request.Header.Set("Accept", "application/json")
	if contentType != "" {
		request.Header.Set("Content-Type", contentType)
	}
	response, err := in.client.Do(request)
	if err != nil {
		return answer, 0, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return answer, 0, err
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return answer, 0, fmt.Errorf("%s: %w", response.Status, err)
	}
	if response.StatusCode/100 != 2 {
		err = errors.New(answer.Message)
	}
	return answer, response.StatusCode, err
}
