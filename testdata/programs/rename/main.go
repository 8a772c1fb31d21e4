// Rename changes the path of apilet's modules. A module can be downloaded only if its path starts
// with a host name, and the owner of apilet has not chosen one yet.
//
//	go run ./testdata/programs/rename example.com/apilet    # in the folder of the main module
//
// The program changes
//
//   - the modules, requirements and replacements in all go.mod files,
//   - the imports in Go files and in patches,
//   - the path of apilettest in documents and comments,
//   - the places in the table elsewhere, each of which must exist.
//
// It reads the old path from go.mod, so it can be run more than once. The program is still called
// apilet.
package main

import (
	"bytes"
	"fmt"
	"go/format"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// elsewhere lists the occurrences of the path that are not covered by a rule. PATH stands for the
// path.
var elsewhere = []struct{ file, text string }{
	{"internal/startgc/startgc.go", `import "PATH/internal/startgc"`},
	{"testdata/programs/flows/main.go", `modulePath = "PATH"`},
	{"testdata/programs/siege/main.go", `*binary, "PATH")`},
	{"testdata/programs/siege/siege_test.go", `*binary, "PATH")`},
	{"testdata/programs/soak/drift.go", `to, "PATH")`},
	{"testdata/programs/soak/main.go", `*binary, "PATH")`},
	{"testdata/programs/weight/main.go", `return "PATH"`},
	{"testdata/programs/weight/main_test.go", `"main.(*server).routes":                                   "PATH"`},
	{"testdata/release/sbom.go", "pkg:golang/PATH@"},
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: rename PATH")
		os.Exit(2)
	}
	changed, err := rename(".", os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, "rename:", err)
		os.Exit(1)
	}
	fmt.Println(changed, "files changed")
}

// A renaming replaces the path from by the path to in the files of a folder.
type renaming struct {
	root, from, to string
	mention        *regexp.Regexp // apilettest's old path in a text
	changed        int
}

func newRenaming(root, from, to string) *renaming {
	return &renaming{root: root, from: from, to: to, mention: regexp.MustCompile(`(^|[\s"'(` + "`" + `])` + regexp.QuoteMeta(from) + `/apilettest\b`)}
}

// rename changes the paths of the module in a folder and of its nested modules. It returns the
// number of changed files.
func rename(root, to string) (changed int, err error) {
	from, err := modulePath(root)
	if err != nil {
		return 0, err
	}
	if !regexp.MustCompile(`^[a-z0-9][\w.~-]*(/[\w.~-]+)*$`).MatchString(to) {
		return 0, fmt.Errorf("%q is not a module path", to)
	}
	r := newRenaming(root, from, to)
	if err := r.changeElsewhere(); err != nil {
		return r.changed, err
	}
	err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && entry.Name() == ".git" {
			return fs.SkipDir
		}
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		return r.change(path)
	})
	return r.changed, err
}

// modulePath returns the path of the module in a folder.
func modulePath(folder string) (string, error) {
	text, err := os.ReadFile(filepath.Join(folder, "go.mod"))
	if err != nil {
		return "", err
	}
	line, _, _ := strings.Cut(string(text), "\n")
	path, ok := strings.CutPrefix(line, "module ")
	if !ok {
		return "", fmt.Errorf("%s/go.mod does not begin with the module's path", folder)
	}
	return path, nil
}

// changeElsewhere changes the places of the table.
func (r *renaming) changeElsewhere() error {
	for _, place := range elsewhere {
		path := filepath.Join(r.root, place.file)
		old := strings.ReplaceAll(place.text, "PATH", r.from)
		found := false
		err := r.edit(path, func(text []byte) ([]byte, error) {
			found = bytes.Contains(text, []byte(old))
			return bytes.ReplaceAll(text, []byte(old), []byte(strings.ReplaceAll(place.text, "PATH", r.to))), nil
		})
		if err != nil {
			return err
		}
		if !found {
			return fmt.Errorf("%s does not contain %q; correct the table in testdata/programs/rename", place.file, old)
		}
	}
	return nil
}

// change applies the rule for the kind of a file.
func (r *renaming) change(path string) error {
	switch {
	case filepath.Base(path) == "go.mod":
		return r.edit(path, r.inModuleFile)
	case strings.HasSuffix(path, ".go"):
		return r.edit(path, r.inSource)
	case strings.HasSuffix(path, ".patch"):
		return r.edit(path, r.inPatch)
	case strings.HasSuffix(path, ".md"):
		return r.edit(path, func(text []byte) ([]byte, error) { return r.inText(text), nil })
	}
	return nil
}

// edit writes a file if a function changes its text. The file keeps its mode.
func (r *renaming) edit(path string, f func([]byte) ([]byte, error)) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	changed, err := f(text)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if bytes.Equal(text, changed) {
		return nil
	}
	r.changed++
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	return os.WriteFile(path, changed, info.Mode().Perm())
}

// ---- Rules ----

// renamed returns the new path of a module or package, or the same path if it is not one of
// apilet's.
func (r *renaming) renamed(path string) string {
	if rest, ok := strings.CutPrefix(path, r.from); ok && (rest == "" || rest[0] == '/') {
		return r.to + rest
	}
	return path
}

var word = regexp.MustCompile(`\S+`)

// inModuleFile changes the module paths of a go.mod file.
func (r *renaming) inModuleFile(text []byte) ([]byte, error) {
	return word.ReplaceAllFunc(text, func(w []byte) []byte { return []byte(r.renamed(string(w))) }), nil
}

// inSource changes the imports of a Go file. It also changes references to apilettest in comments.
func (r *renaming) inSource(text []byte) ([]byte, error) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, "", text, parser.ImportsOnly)
	if err != nil {
		return text, nil // a file of test data need not compile
	}
	changed, offset := []byte(nil), 0
	for _, spec := range file.Imports {
		path, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return nil, err
		}
		if to := r.renamed(path); to != path {
			changed = append(changed, text[offset:files.Position(spec.Path.Pos()).Offset]...)
			changed = strconv.AppendQuote(changed, to)
			offset = files.Position(spec.Path.End()).Offset
		}
	}
	changed = r.inText(append(changed, text[offset:]...))
	if bytes.Equal(text, changed) {
		return text, nil
	}
	return format.Source(changed) // the order of imports depends on the path
}

// inPatch changes the imports in a patch of Go files.
func (r *renaming) inPatch(text []byte) ([]byte, error) {
	old := regexp.MustCompile(`(?m)^([ +-]\t(?:\w+ )?")` + regexp.QuoteMeta(r.from) + `(/[\w/]+"$)`)
	return old.ReplaceAll(text, []byte("${1}"+r.to+"${2}")), nil
}

// inText changes the mentions of apilettest.
func (r *renaming) inText(text []byte) []byte {
	return r.mention.ReplaceAll(text, []byte("${1}"+r.to+"/apilettest"))
}
