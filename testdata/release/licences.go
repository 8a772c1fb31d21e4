package main

// This file collects the notices that must accompany a program. It looks for license files in the
// directory of each package and in its parent directories within the module. The release fails if a
// module has no license or if its license is not known.

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	classifier "github.com/google/licenseclassifier/v2"
	"github.com/google/licenseclassifier/v2/assets"
)

// known lists the accepted licenses by their SPDX names. They have no conditions except that the
// text must be included.
var known = []string{"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT"}

var noticeFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents)(\.(txt|md|[a-z]*libyaml))?$`)

// notices contains all modules of a release's programs, including Go's standard library.
type notices struct {
	modules map[string]*module // by path@version
	reader  *classifier.Classifier
	told    map[string][]string // licenses by text, because most modules use the same text
}

// A module contains the license files of a module.
type module struct {
	name     string            // path@version
	texts    map[string]string // by file name in the module
	licences []string          // SPDX names
}

// findNotices collects the notices of all programs.
func (r *release) findNotices(ctx context.Context) error {
	reader, err := assets.DefaultClassifier()
	if err != nil {
		return err
	}
	r.notices = &notices{modules: map[string]*module{}, reader: reader, told: map[string][]string{}}
	const columns = "{{with .Module}}{{if not .Main}}{{.Path}}@{{.Version}}\t{{.Dir}}\t{{$.Dir}}{{end}}{{end}}"
	for _, b := range r.builds {
		listed, err := r.goCommand(ctx, b.target, "list", "-deps", "-tags="+b.tags, "-f", columns, ".")
		if err != nil {
			return err
		}
		for line := range strings.Lines(listed) {
			column := strings.Split(strings.TrimSpace(line), "\t")
			if len(column) != 3 {
				continue
			}
			if err := r.notices.add(column[0], column[1], column[2]); err != nil {
				return err
			}
		}
	}
	root, err := r.goCommand(ctx, r.targets[0], "env", "GOROOT")
	if err != nil {
		return err
	}
	if err := r.notices.add(standard(r.builds[0]), root, root); err != nil {
		return err
	}
	return r.notices.check()
}

// standard returns the name of Go's standard library as a module.
func standard(b build) string { return "std@" + strings.TrimPrefix(b.info.GoVersion, "go") }

// add adds the notices that apply to a directory of a module.
func (n *notices) add(name, root, folder string) error {
	m := n.modules[name]
	if m == nil {
		m = &module{name: name, texts: map[string]string{}}
		n.modules[name] = m
	}
	for ; len(folder) >= len(root); folder = filepath.Dir(folder) {
		entries, err := os.ReadDir(folder)
		if err != nil {
			return err
		}
		for _, e := range entries {
			rel, err := filepath.Rel(root, filepath.Join(folder, e.Name()))
			if err != nil {
				return err
			}
			rel = filepath.ToSlash(rel)
			if e.IsDir() || m.texts[rel] != "" || !noticeFile.MatchString(e.Name()) {
				continue
			}
			text, err := os.ReadFile(filepath.Join(folder, e.Name()))
			if err != nil {
				return err
			}
			m.texts[rel] = strings.ReplaceAll(strings.TrimSpace(string(text)), "\r\n", "\n")
			m.licences = append(m.licences, n.licencesIn(m.texts[rel])...)
		}
	}
	return nil
}

// licencesIn returns the licenses in a text. A NOTICE file that only refers to a license is
// ignored.
func (n *notices) licencesIn(text string) []string {
	names, ok := n.told[text]
	if ok {
		return names
	}
	for _, match := range n.reader.Match([]byte(text)).Matches {
		if match.MatchType == "License" {
			names = append(names, match.Name)
		}
	}
	n.told[text] = names
	return names
}

// check checks that each module has a known license.
func (n *notices) check() error {
	for _, m := range n.sorted() {
		slices.Sort(m.licences)
		m.licences = slices.Compact(m.licences)
		if len(m.licences) == 0 {
			return fmt.Errorf("%s has no licence that can be told", m.name)
		}
		for _, name := range m.licences {
			if !slices.Contains(known, name) {
				return fmt.Errorf("%s has the licence %s: see what it asks for", m.name, name)
			}
		}
	}
	return nil
}

func (n *notices) sorted() []*module {
	return slices.SortedFunc(maps.Values(n.modules), func(a, b *module) int { return cmp.Compare(a.name, b.name) })
}

// text returns the content of the file, which contains a table of modules and the texts of the
// licenses.
func (n *notices) text(own string) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "apilet: %s\n\nIt contains the following modules, each under the licences beside it. Their texts and notices follow.\n\n", own)
	users := map[string][]string{}
	for _, m := range n.sorted() {
		fmt.Fprintf(&b, "  %-90s %s\n", m.name, strings.Join(m.licences, " AND "))
		for _, name := range slices.Sorted(maps.Keys(m.texts)) {
			users[m.texts[name]] = append(users[m.texts[name]], m.name+" "+name)
		}
	}
	texts := slices.SortedFunc(maps.Keys(users), func(a, b string) int { return cmp.Compare(users[a][0], users[b][0]) })
	for _, text := range texts {
		fmt.Fprintf(&b, "\n%s\n%s\n\n%s\n", strings.Repeat("=", 80), strings.Join(users[text], "\n"), text)
	}
	return []byte(b.String())
}

// ownLicence returns apilet's license from the file LICENSE, if it exists.
func (r *release) ownLicence() string {
	text, err := os.ReadFile(filepath.Join(r.source, "LICENSE"))
	if err != nil {
		return "no licence has been chosen yet, so that for the time being nobody but its owner may distribute it."
	}
	return "its own licence is this.\n\n" + strings.TrimSpace(string(text))
}
