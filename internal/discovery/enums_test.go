package discovery

import (
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"apilet/internal/scheme"
)

var update = flag.Bool("update", false, "write openapi_enums.txt anew")

// A goEnum is a string type of Kubernetes' sources whose comment says that its constants are all its values.
type goEnum struct {
	declared bool
	values   map[string]string // and what their comments say
}

// add takes a constant. One value may have several: the longest comment is the value's.
func (e *goEnum) add(name, value, comment string) {
	comment = strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(comment), name))
	comment = strings.Join(strings.Fields(comment), " ")
	if known, ok := e.values[value]; !ok || len(comment) > len(known) {
		e.values[value] = comment
	}
}

// sourceEnums reads them off the Go files of a package. known has the constants by name.
func sourceEnums(t *testing.T, dir string, known map[string]string) map[string]*goEnum {
	found := map[string]*goEnum{}
	of := func(name string) *goEnum {
		if found[name] == nil {
			found[name] = &goEnum{values: map[string]string{}}
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
						doc := spec.Doc
						if doc == nil && !group.Lparen.IsValid() {
							doc = group.Doc
						}
						noteConstant(spec, doc.Text(), of, known)
					}
				}
			}
		}
	}
	return found
}

// noteConstant takes the three ways in which a constant has a type: X T = "a", X = T("a"), and X = T(other.Y), with a Y noted before.
func noteConstant(spec *ast.ValueSpec, comment string, of func(string) *goEnum, known map[string]string) {
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
		of(typeName.Name).add(spec.Names[0].Name, text, comment)
	case *ast.SelectorExpr:
		if text, ok := known[value.Sel.Name]; ok {
			of(typeName.Name).add(spec.Names[0].Name, text, comment)
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
				var rows strings.Builder
				for _, value := range slices.Sorted(maps.Keys(e.values)) {
					rows.WriteString(strings.TrimRight("\t"+value+"\t"+e.values[value], "\t") + "\n")
				}
				want[name+"."+typeName] = rows.String()
			}
		}
	}
	if len(want) < 70 {
		t.Errorf("only %d enumerations", len(want))
	}
	var table []string
	for _, name := range slices.Sorted(maps.Keys(want)) {
		table = append(table, name+":\n"+want[name])
	}
	whole := strings.Join(table, "\n")
	if *update {
		if err := os.WriteFile("openapi_enums.txt", []byte(whole), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if openAPIEnums != whole {
		t.Error("openapi_enums.txt is not what the sources say: go test -run Enumerations ./internal/discovery -update")
	}
}

// kubectl explain shows what the values of a field mean: kube-apiserver says so behind the field's description.
func TestFieldsSayWhatTheirValuesMean(t *testing.T) {
	t.Parallel()
	reg := scheme.NewRegistry()
	for path, schemas := range map[string]string{"/openapi/v3/apis/apps/v1": "components.schemas", "/openapi/v2": "definitions"} {
		got := gjson.Get(askDiscovery(t, reg, path).Body.String(), schemas+`.io\.k8s\.api\.apps\.v1\.DeploymentStrategy.properties.type.description`).String()
		want := "Type of deployment. Can be \"Recreate\" or \"RollingUpdate\". Default is RollingUpdate.\n\nPossible enum values:\n" +
			" - `\"Recreate\"` Kill all existing pods before creating new ones.\n" +
			" - `\"RollingUpdate\"` Replace the old ReplicaSets by new one using rolling update i.e gradually scale down the old ReplicaSets and scale up the new one."
		if got != want {
			t.Errorf("%s: %s", path, got)
		}
	}
}
