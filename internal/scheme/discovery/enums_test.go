package discovery

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"apilet/internal/scheme"
)

// A goEnum is a string type of Kubernetes' sources whose comment says that its constants are all its values.
type goEnum struct {
	declared bool
	values   []string
}

// sourceEnums reads them off the Go files of a package. known has the constants by name.
func sourceEnums(t *testing.T, dir string, known map[string]string) map[string]*goEnum {
	found := map[string]*goEnum{}
	of := func(name string) *goEnum {
		if found[name] == nil {
			found[name] = &goEnum{}
		}
		return found[name]
	}
	packages, err := parser.ParseDir(token.NewFileSet(), dir, func(file fs.FileInfo) bool { return strings.HasPrefix(file.Name(), "types") }, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range packages {
		for _, file := range p.Files {
			for _, decl := range file.Decls {
				group, ok := decl.(*ast.GenDecl)
				if !ok {
					continue
				}
				for _, spec := range group.Specs {
					switch spec := spec.(type) {
					case *ast.TypeSpec:
						for _, doc := range []*ast.CommentGroup{group.Doc, spec.Doc} {
							if doc != nil && slices.ContainsFunc(doc.List, func(c *ast.Comment) bool { return c.Text == "// +enum" }) {
								of(spec.Name.Name).declared = true
							}
						}
					case *ast.ValueSpec:
						noteConstant(spec, of, known)
					}
				}
			}
		}
	}
	return found
}

// noteConstant takes the three ways in which a constant has a type: X T = "a", X = T("a"), and X = T(other.Y), with a Y noted before.
func noteConstant(spec *ast.ValueSpec, of func(string) *goEnum, known map[string]string) {
	if len(spec.Values) != 1 {
		return
	}
	name, value := spec.Type, spec.Values[0]
	if call, ok := value.(*ast.CallExpr); ok && name == nil && len(call.Args) == 1 {
		name, value = call.Fun, call.Args[0]
	}
	typeName, ok := name.(*ast.Ident)
	if !ok {
		return
	}
	switch value := value.(type) {
	case *ast.BasicLit:
		text, _ := strconv.Unquote(value.Value)
		known[spec.Names[0].Name] = text
		of(typeName.Name).values = append(of(typeName.Name).values, text)
	case *ast.SelectorExpr:
		if text, ok := known[value.Sel.Name]; ok {
			of(typeName.Name).values = append(of(typeName.Name).values, text)
		}
	}
}

// moduleDir is where a module that this program is built of has its sources.
func moduleDir(t *testing.T, module string) string {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		t.Skipf("no sources of %s: %v", module, err)
	}
	return strings.TrimSpace(string(out))
}

func TestEnumerationsAreThoseOfTheSources(t *testing.T) {
	t.Parallel()
	want := map[string]string{}
	dirs := map[string]string{"apiextensions/v1": filepath.Join(moduleDir(t, "k8s.io/apiextensions-apiserver"), "pkg/apis/apiextensions/v1")}
	api := moduleDir(t, "k8s.io/api")
	for _, res := range scheme.Builtins {
		if dir, ok := strings.CutPrefix(res.GoType.PkgPath(), "k8s.io/api/"); ok {
			dirs[dir] = filepath.Join(api, dir)
		}
	}
	known := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(dirs)) { // core before discovery, which refers to it
		for typeName, e := range sourceEnums(t, dirs[name], known) {
			if e.declared && len(e.values) > 0 {
				slices.Sort(e.values)
				want[name+"."+typeName] = strings.Join(slices.Compact(e.values), "|")
			}
		}
	}
	for name, values := range readEnums() {
		if got := strings.Join(values, "|"); got != want[name] {
			t.Errorf("%s: %s, and in the sources %s", name, got, want[name])
		}
		delete(want, name)
	}
	for name, values := range want {
		t.Errorf("missing: %s: %s", name, values)
	}
	if len(readEnums()) < 70 {
		t.Errorf("only %d enumerations", len(readEnums()))
	}
}
