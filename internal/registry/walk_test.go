package registry

import (
	"context"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"apilet/internal/auth"
	"apilet/internal/auth/serviceaccount"
	"apilet/internal/request"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

// A tableStep is a row of the table in the head of registry.go.
type tableStep struct {
	name, file, verbs string
}

// readTable reads the table.
func readTable(t *testing.T) (steps []tableStep) {
	t.Helper()
	text, err := os.ReadFile("registry.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range regexp.MustCompile(`(?m)^//\t(\S+) +(\S+\.go) +([cupasxd.](?: [cupasxd.]){6})`).FindAllStringSubmatch(string(text), -1) {
		steps = append(steps, tableStep{row[1], row[2], row[3]})
	}
	if len(steps) < 40 {
		t.Fatalf("the table has %d steps", len(steps))
	}
	return steps
}

// calls says whether an expression calls a step: by its name, behind the writer, plan, target or view whose method it is; where the name has an
// argument, with that as the first.
func (s *tableStep) calls(call *ast.CallExpr) bool {
	var text strings.Builder
	if format.Node(&text, token.NewFileSet(), call.Fun) != nil {
		return false
	}
	name, argument, _ := strings.Cut(strings.TrimSuffix(s.name, ")"), "(")
	if argument != "" {
		if len(call.Args) == 0 {
			return false
		}
		if first, ok := call.Args[0].(*ast.Ident); !ok || first.Name != argument {
			return false
		}
	}
	callee := text.String()
	if receiver, rest, ok := strings.Cut(callee, "."); ok && slices.Contains([]string{"wr", "p", "t", "v"}, receiver) {
		callee = rest
	}
	return callee == name
}

// instrument writes each step's name to stderr before the statement that calls it.
func instrument(file *ast.File, steps []tableStep) {
	ast.Inspect(file, func(n ast.Node) bool {
		switch block := n.(type) {
		case *ast.BlockStmt:
			block.List = noted(block.List, steps)
		case *ast.CaseClause:
			block.Body = noted(block.Body, steps)
		}
		return true
	})
}

func noted(list []ast.Stmt, steps []tableStep) (out []ast.Stmt) {
	for _, stmt := range list {
		ast.Inspect(stmt, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.BlockStmt, *ast.FuncLit: // has statements of its own
				return false
			case *ast.CaseClause:
				return false
			case *ast.CallExpr:
				for i := range steps {
					if steps[i].calls(n) {
						text := &ast.BasicLit{Kind: token.STRING, Value: fmt.Sprintf("%q", "step "+steps[i].name)}
						out = append(out, &ast.ExprStmt{X: &ast.CallExpr{Fun: ast.NewIdent("println"), Args: []ast.Expr{text}}})
					}
				}
			}
			return true
		})
		out = append(out, stmt)
	}
	return out
}

// overlay has the package's files as they are to be compiled instead.
func overlay(t *testing.T, steps []tableStep) (path string) {
	t.Helper()
	dir, replace := t.TempDir(), map[string]string{}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		instrument(file, steps)
		var text strings.Builder
		if err := format.Node(&text, token.NewFileSet(), file); err != nil { // positions mean nothing any more
			t.Fatal(err)
		}
		real, _ := filepath.Abs(name)
		replace[real] = filepath.Join(dir, name)
		if err := os.WriteFile(replace[real], []byte(text.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	doc, _ := json.Marshal(map[string]any{"Replace": replace})
	path = filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(path, doc, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// record compiles this package so that it tells of its steps, makes one write of each verb, and returns which steps it took, each once, in the order
// in which they were first taken.
func record(t *testing.T, steps []tableStep) map[string][]string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "walks.test.exe")
	if out, err := exec.Command("go", "test", "-c", "-vet=off", "-overlay", overlay(t, steps), "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var said strings.Builder
	cmd := exec.Command(binary, "-test.run=^TestWalksOfAChild$")
	cmd.Env, cmd.Stderr = append(os.Environ(), "APILET_WALKS=1"), &said
	if out, err := cmd.Output(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	walks, verb := map[string][]string{}, ""
	for line := range strings.Lines(said.String()) {
		what, name, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch {
		case what == "verb":
			verb = name
		case what == "step" && verb != "" && !slices.Contains(walks[verb], name):
			walks[verb] = append(walks[verb], name)
		}
	}
	return walks
}

// TestWritesGoByTheTable: each verb takes the steps that the table in the head of registry.go has for it, in its order.
func TestWritesGoByTheTable(t *testing.T) {
	t.Parallel()
	steps := readTable(t)
	walks := record(t, steps)
	for _, verb := range []string{"create", "update", "patch", "apply", "status", "xscale", "delete"} {
		var want []string
		for _, step := range steps {
			if strings.Contains(step.verbs, verb[:1]) {
				want = append(want, step.name)
			}
		}
		if got := walks[verb]; !slices.Equal(got, want) {
			t.Errorf("%s:\nrecorded %q\nthe table %q", verb, got, want)
		}
	}
}

// TestTableOfStepsNamesTheirFiles: each step is written where the table says.
func TestTableOfStepsNamesTheirFiles(t *testing.T) {
	t.Parallel()
	for _, step := range readTable(t) {
		name, _, _ := strings.Cut(step.name, "(")
		name = name[strings.LastIndex(name, ".")+1:]
		text, err := os.ReadFile(step.file)
		if err != nil {
			text, err = os.ReadFile("../" + step.file)
		}
		if err != nil {
			t.Errorf("%s: %v", step.name, err)
		}
		if !regexp.MustCompile(`(?m)^func (\(.*?\) )?` + name + `\(|, ` + name + ` ChangeFunc\b`).Match(text) {
			t.Errorf("%s is not in %s", name, step.file)
		}
	}
}

// TestWalksOfAChild makes one write of each verb, for record.
func TestWalksOfAChild(t *testing.T) {
	if os.Getenv("APILET_WALKS") == "" {
		t.Skip("for other tests")
	}
	st, err := store.Open("", store.Options{Ephemeral: true})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	reg := scheme.NewRegistry()
	wr := &Writer{Store: st, Types: reg, Auth: &auth.Authenticator{Accounts: &serviceaccount.Tokens{}}, ManagedFields: true, Validating: true}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	if _, err := wr.Insert(t.Context(), reg.Lookup("", "v1", "namespaces"), ns, Options{Trusted: true}); err != nil {
		t.Fatal(err)
	}
	res := reg.Lookup(appsv1.GroupName, "v1", "deployments")
	const spec = `"spec":{"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"%s"}]}}}}`
	object := func(image, meta string) string {
		return `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{` + meta + `},` + fmt.Sprintf(spec, image)
	}
	name := "web"
	ask := func(verb, method, sub, contentType, body string) {
		t.Helper()
		println("verb " + verb)
		r := httptest.NewRequest(method, "/?fieldManager=m", strings.NewReader(body))
		r.Header.Set("Content-Type", contentType)
		info := request.Info{ResourceRequest: true, Verb: verb, Group: res.Group, Version: res.Version, Resource: res.Plural,
			Namespace: "default", Name: name, Subresource: sub}
		rec := &request.Request{Info: info}
		r = r.WithContext(context.WithValue(r.Context(), request.Key{}, rec))
		w := httptest.NewRecorder()
		answer := map[string]func() error{
			"POST": func() error { return wr.Create(w, r, rec, res) }, "PUT": func() error { return wr.Update(w, r, rec, res) },
			"PATCH": func() error { return wr.Patch(w, r, rec, res) }, "DELETE": func() error { return wr.Remove(w, r, rec, res) }}[method]
		if sub == "scale" {
			answer = func() error { return ServeScale(wr, w, r, rec, res) }
		}
		if err := answer(); err != nil || w.Code >= 300 {
			t.Fatalf("%s: %v, %d", verb, err, w.Code)
		}
		if method == "POST" {
			var made metav1.PartialObjectMetadata
			if err := json.Unmarshal(w.Body.Bytes(), &made); err != nil {
				t.Fatal(err)
			}
			name = made.Name
		}
	}
	named := func() string { return fmt.Sprintf(`"name":%q`, name) }
	ask("create", "POST", "", "application/json", object("1", `"generateName":"web-"`))
	ask("update", "PUT", "", "application/json", object("2", named()))
	ask("patch", "PATCH", "", "application/merge-patch+json", `{"metadata":{"labels":{"x":"y"}}}`)
	ask("apply", "PATCH", "", "application/apply-patch+yaml", `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"annotations":{"z":"1"}}}`)
	ask("status", "PUT", "status", "application/json", strings.TrimSuffix(object("2", named()), "}")+`,"status":{"replicas":1}}`)
	ask("xscale", "PUT", "scale", "application/json", `{"apiVersion":"autoscaling/v1","kind":"Scale","metadata":{`+named()+`},"spec":{"replicas":3}}`)
	ask("delete", "DELETE", "", "application/json", "")
}
