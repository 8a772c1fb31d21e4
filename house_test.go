package main

// This file holds the top level to what makes it readable from top to bottom: no struct is large, no type's methods are spread over files, and no two
// files use each other.

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const mostFields = 15

// topLevel parses the files of this folder that are no tests, by name.
func topLevel(t *testing.T) (*token.FileSet, map[string]*ast.File) {
	t.Helper()
	set, files := token.NewFileSet(), map[string]*ast.File{}
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		if files[name], err = parser.ParseFile(set, name, nil, parser.SkipObjectResolution); err != nil {
			t.Fatal(err)
		}
	}
	return set, files
}

func TestStructsAreSmallAndMethodsTogether(t *testing.T) {
	t.Parallel()
	_, files := topLevel(t)
	home := map[string]string{} // of a type's methods
	for name, file := range files {
		for _, decl := range file.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv != nil {
				typ := strings.TrimSuffix(receiver(fn), ".")
				if first := home[typ]; first != "" && first != name {
					t.Errorf("methods of %s stand in %s and in %s", typ, first, name)
				}
				home[typ] = name
			}
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if spec, ok := n.(*ast.TypeSpec); ok {
				if s, ok := spec.Type.(*ast.StructType); ok && fieldsOf(s) > mostFields {
					t.Errorf("%s: %s has %d fields, and may have %d", name, spec.Name.Name, fieldsOf(s), mostFields)
				}
			}
			return true
		})
	}
	if len(home) < 20 {
		t.Errorf("%d types with methods: has the test seen the files?", len(home))
	}
}

// fieldsOf counts fields; one that is embedded is one.
func fieldsOf(s *ast.StructType) (n int) {
	for _, field := range s.Fields.List {
		n += max(1, len(field.Names))
	}
	return n
}

func TestNoTwoFilesUseEachOther(t *testing.T) {
	t.Parallel()
	set, files := topLevel(t)
	var parsed []*ast.File
	for _, file := range files {
		parsed = append(parsed, file)
	}
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	conf := types.Config{Importer: nothing{}, Error: func(error) {}} // what others declare is unknown, and so are types that stand on it
	pkg, _ := conf.Check("main", set, parsed, info)
	uses := map[[2]string]string{} // a name for which one file uses another
	for id, obj := range info.Uses {
		if obj.Pkg() == pkg && obj.Pos().IsValid() {
			if from, to := set.Position(id.Pos()).Filename, set.Position(obj.Pos()).Filename; from != to {
				uses[[2]string{from, to}] = obj.Name()
			}
		}
	}
	for pair, name := range uses {
		if back, mutual := uses[[2]string{pair[1], pair[0]}]; mutual && pair[0] < pair[1] {
			t.Errorf("%s uses %s of %s, which uses %s of it", pair[0], name, pair[1], back)
		}
	}
	if uses[[2]string{"main.go", "list.go"}] == "" {
		t.Error("has the test seen the files?")
	}
}

// zerolog writes a duration as a number of milliseconds, without a unit.
func TestLogLinesHaveDurationsWithUnits(t *testing.T) {
	t.Parallel()
	files := 0
	err := filepath.WalkDir(".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return err
		}
		text, err := os.ReadFile(name)
		files++
		for i, line := range strings.Split(string(text), "\n") {
			if strings.Contains(line, `.Dur("`) || strings.Contains(line, `.Durs("`) {
				t.Errorf("%s:%d: log a duration with Stringer: %s", name, i+1, strings.TrimSpace(line))
			}
		}
		return err
	})
	if err != nil || files < 100 {
		t.Errorf("%d files, %v", files, err)
	}
}

// nothing imports empty packages.
type nothing struct{}

func (nothing) Import(path string) (*types.Package, error) {
	pkg := types.NewPackage(path, filepath.Base(path))
	pkg.MarkComplete()
	return pkg, nil
}
