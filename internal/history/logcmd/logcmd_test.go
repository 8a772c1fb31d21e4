package logcmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"apilet/internal/changes"
	"apilet/internal/commandline"
	"apilet/internal/store"
)

// run runs a command of the table, and returns what it prints.
func run(t *testing.T, args ...string) (out, errs string, code int) {
	t.Helper()
	var stdout, stderr strings.Builder
	program := commandline.Program{Name: "apilet", Commands: func() []commandline.Command {
		return append([]commandline.Command{{ArgCounts: []int{0}, Run: func(commandline.Call) error { return nil }}}, Commands()...)
	}, Version: func(io.Writer) error { return nil }}
	code = program.Run(args, &stdout, &stderr)
	return stdout.String(), stderr.String(), code
}

func TestLine(t *testing.T) {
	t.Parallel()
	raw := func(text string) json.RawMessage { return json.RawMessage(text) }
	web := change{Revision: 12, Time: "2026-11-23T10:00:00.123Z", Verb: "patch", Type: "MODIFIED", Group: "apps", Resource: "deployments", Kind: "Deployment",
		Namespace: "shop", Name: "web", User: "alice", Agent: "night-saver/v1 (linux)"}
	with := func(change func(*change)) change {
		c := web
		change(&c)
		return c
	}
	head := "2026-11-23T10:00:00.123Z      12  patch    Deployment shop/web  night-saver (alice)  "
	for _, c := range []struct {
		name   string
		change change
		want   string
	}{
		{"nothing", web, head},
		{"spec and status", with(func(c *change) {
			c.Changes = []changes.Change{{Path: ".status.replicas", Old: raw("1"), New: raw("3")}, {Path: ".spec.replicas", Old: raw("1"), New: raw("3")}, {Path: ".status", New: raw("{}")},
				{Path: ".statuses.a", Old: raw(`"x"`)}}
		}), head + `.spec.replicas 1 → 3, -.statuses.a "x" | status: .replicas 1 → 3, + {}`},
		{"masked", with(func(c *change) { c.Changes = []changes.Change{{Path: ".data.p", Old: raw(`"***"`), New: raw(`"***"`)}} }), head + `.data.p "***" changed`},
		{"many", with(func(c *change) { c.Changes, c.More = make([]changes.Change, 10), 5 }), head + strings.TrimSuffix(strings.Repeat(" changed, ", 8), ", ") + " … and 7 more"},
		{"one that is new", with(func(c *change) { c.Type, c.Verb, c.Namespace, c.Sub = "ADDED", "create", "", "x" }),
			"2026-11-23T10:00:00.123Z      12  create   Deployment/x web  night-saver (alice)  created"},
		{"nobody knows", change{Revision: 3, Type: "DELETED", Resource: "foos", Name: "a"}, "(time unknown)                 3  deleted  foos a  (unknown)  deleted"},
		{"on the plain port", with(func(c *change) { c.User = "system:unsecured" }), strings.Replace(head, " (alice)", "", 1)},
		{"escapes", with(func(c *change) {
			c.Name, c.Agent, c.User, c.Verb, c.Time = "\x1b[2Jweb", "\x1b]0;x\a", "a\u202eb", "\x9b", "\r"
			c.Changes = []changes.Change{{Path: ".a\u001b", Old: raw(`"\u001b[31m` + "\u009b" + `"`), New: raw(`not json`)}}
		}), ""},
	} {
		p := printer{}
		got := p.line(&c.change)
		if c.want != "" && got != c.want {
			t.Errorf("%s:\n got %q\nwant %q", c.name, got, c.want)
		}
		if i := strings.IndexFunc(got, func(r rune) bool { return !unicode.IsPrint(r) }); i >= 0 {
			t.Errorf("%s: a terminal would obey %q", c.name, got[i:])
		}
	}
	if got := (&printer{colors: true}).line(&web); !strings.Contains(got, "\x1b[33mpatch  \x1b[0m") {
		t.Errorf("no colours: %q", got)
	}
}

func FuzzPlain(f *testing.F) {
	f.Add("a\x1b[2J\u202e\U0001f600\xff\n")
	f.Fuzz(func(t *testing.T, text string) {
		if got := plain(text); strings.ContainsFunc(got, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Fatalf("%q is %q", text, got)
		}
		quoted, _ := json.Marshal(text)
		var back, want string
		if json.Unmarshal([]byte(plain(string(quoted))), &back) != nil || json.Unmarshal(quoted, &want) != nil || back != want {
			t.Fatalf("%s as JSON is %q", quoted, plain(string(quoted)))
		}
	})
}

func TestMoments(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"12": "12", "5m": "-5m0s", "-90s": "-1m30s", "now": "-0s", "2026-11-23T10:00:00+01:00": "2026-11-23T09:00:00Z", "": "0",
		"0": "!", "-0": "-0s", "99999999999999999999": "!", "yesterday": "!", "--5m": "!", "1600-01-01T00:00:00Z": "!", "1e3": "!", "0x10": "!", "\x1b[2J": "!", "-": "!", "５": "!"} {
		m, err := parseMoment(text)
		if got := m.String(); (want == "!") != (err != nil) || want != "!" && got != want {
			t.Errorf("%q: %q, %v; want %s", text, got, err, want)
		}
		if err != nil && strings.ContainsRune(err.Error(), 27) {
			t.Errorf("%q: the error has an escape in it", text)
		}
	}
}

func TestKinds(t *testing.T) {
	t.Parallel()
	all := []kind{{plural: "pods", singular: "pod", kind: "Pod", version: "v1", short: []string{"po"}, categories: []string{"all"}},
		{group: "apps", version: "v1", plural: "deployments", singular: "deployment", kind: "Deployment", short: []string{"deploy"}, categories: []string{"all"}},
		{group: "x.io", version: "v2", plural: "deployments", singular: "deployment", kind: "Deployment"}}
	for word, want := range map[string]string{"po": "pods", "Pod": "pods", "DEPLOY": "deployments.apps", "deployment.x.io": "deployments.x.io", "deployments.v2.x.io": "deployments.x.io",
		"all": "pods deployments.apps", "gone.y.io": "gone.y.io", "foo": "!", "": "!", "foo.": "!", ".": "!"} {
		found, err := findKinds(all, word)
		var names []string
		for i := range found {
			names = append(names, found[i].name())
		}
		if got := strings.Join(names, " "); (want == "!") != (err != nil) || err == nil && got != want {
			t.Errorf("%q: %q, %v; want %s", word, got, err, want)
		}
	}
}

// A fake server answers paths in the order of its answers.
func fake(t *testing.T, answers ...string) (url string, asked *[]string) {
	t.Helper()
	asked = &[]string{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		*asked = append(*asked, r.URL.String())
		if len(answers) == 0 {
			http.Error(w, `{"message":"no \u001b[2Jmore"}`, http.StatusGone)
			return
		}
		body := answers[0]
		answers = answers[1:]
		if cut, broken := strings.CutSuffix(body, "CUT"); broken {
			_, _ = io.WriteString(w, cut)
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
		_, _ = io.WriteString(w, body)
	}))
	s.Config.ErrorLog = nil
	t.Cleanup(s.Close)
	return s.URL, asked
}

func changeLine(rev int) string {
	return fmt.Sprintf(`{"revision":%d,"type":"MODIFIED","group":"","resource":"pods","kind":"Pod","namespace":"n","name":"p%d"}`+"\n", rev, rev)
}

func TestLogPagesThroughAServer(t *testing.T) {
	t.Parallel()
	url, asked := fake(t, changeLine(3)+changeLine(4)+`{"continue":4}`+"\n", changeLine(7))
	out, errs, code := run(t, "log", "--server", url, "-n", "n", "-l", "a=b", "--by", "alice", "--since", "-5m")
	if code != 0 || strings.Count(out, "\n") != 3 || !strings.Contains(out, "Pod n/p7") {
		t.Errorf("%d %s\n%s", code, errs, out)
	}
	if len(*asked) != 2 || !strings.Contains((*asked)[0], "since=-5m0s") || !strings.Contains((*asked)[0], "labelSelector=a%3Db") || !strings.Contains((*asked)[0], "namespace=n") ||
		!strings.Contains((*asked)[1], "after=4") || strings.Contains((*asked)[1], "since") {
		t.Errorf("asked %q", *asked)
	}
	url, asked = fake(t, changeLine(3)+changeLine(4)+`{"continue":4}`+"\n")
	if out, errs, code := run(t, "log", "--server", url, "--limit", "1", "-o", "json"); code != 0 || out != changeLine(3) || len(*asked) != 1 {
		t.Errorf("%d %s\n%s", code, errs, out)
	}
}

// TestTail: the last changes are asked for once; a stream that breaks goes on without.
func TestTail(t *testing.T) {
	t.Parallel()
	url, asked := fake(t, `{"earlier":2}`+"\n"+changeLine(3)+changeLine(4), changeLine(7))
	out, errs, _ := run(t, "log", "--server", url, "--tail", "2", "-f")
	if strings.Count(out, "\n") != 3 || !strings.Contains((*asked)[0], "tail=2") || strings.Contains((*asked)[0], "limit") || !strings.Contains((*asked)[1], "after=4") || strings.Contains((*asked)[1], "tail") {
		t.Errorf("%s %s asked %q", out, errs, *asked)
	}
}

// TestDiffOfManyObjects: a file has more objects than are read at once.
func TestDiffOfManyObjects(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a.db")
	st, err := store.Open(path, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	const objects = 1200
	write := func(op store.ChangeOp, i, n int, expect int64) {
		body := fmt.Sprintf(`{"metadata":{"name":"c%04d","namespace":"shop","resourceVersion":"RV"},"data":{"n":"%d-%d"}}`, i, n, i)
		if _, err := st.Commit(context.Background(), store.Change{Op: op, Key: fmt.Sprintf("//configmaps/shop/c%04d", i), Expect: expect,
			JSON: []byte(strings.Replace(body, "RV", "", 1)), RevAt: strings.Index(body, "RV")}); err != nil {
			t.Error(err)
		}
	}
	st.File.Db.NoSync = true
	for i := range objects {
		write(store.OpCreate, i, 1, 0)
	}
	for i := range objects {
		write(store.OpUpdate, i, 2, int64(i+1))
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	out, errs, code := run(t, "diff", strconv.Itoa(objects), "now", "--data", path)
	for i := range objects {
		if want := fmt.Sprintf("-  \"n\": \"1-%[1]d\"\n+  \"n\": \"2-%[1]d\"\n", i); !strings.Contains(out, want) {
			t.Fatalf("%d %s: %q is missing in\n%.1000s", code, errs, want, out)
		}
	}
}

// TestFollowersGoOn: a stream that breaks, even within a line, is asked for again behind the last whole line.
func TestFollowersGoOn(t *testing.T) {
	t.Parallel()
	url, asked := fake(t, changeLine(3)+changeLine(4)[:20]+"CUT", changeLine(4)+`{"continue":9}`+"\n", changeLine(11))
	out, errs, code := run(t, "log", "-f", "--server", url)
	if code != 1 || strings.Count(out, "\n") != 3 || !strings.Contains(errs, `410 Gone: no \u001b[2Jmore`) { // what the fake answers at the end
		t.Errorf("%d %q\n%s", code, errs, out)
	}
	if len(*asked) < 4 || !strings.Contains((*asked)[1], "after=3") || !strings.Contains((*asked)[2], "after=9") || !strings.Contains((*asked)[3], "after=11") {
		t.Errorf("asked %q", *asked)
	}
}

func TestBadAnswers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ answer, want string }{
		"no JSON":                {"hello\n", "invalid change"},
		"another JSON":           {"[1]\n", "invalid change"},
		"cut":                    {changeLine(1) + "CUT", "the connection broke"},
		"an error in midstream":  {changeLine(1) + `{"kind":"Status","status":"Failure","message":"compacted \u001b"}` + "\n", `compacted \u001b`},
		"a line without an end":  {strings.Repeat("x", lineMax+1), "the connection broke"},
		"names for the terminal": {`{"revision":1,"name":"\u001b[2J","changes":[{"path":"\u001b","old":{}}]}` + "\n", ""},
	} {
		url, _ := fake(t, c.answer)
		out, errs, code := run(t, "log", "--server", url)
		if (code == 0) != (c.want == "") || !strings.Contains(errs, c.want) || strings.ContainsRune(out+errs, 27) {
			t.Errorf("%s: %d %q %q", name, code, errs, out)
		}
	}
}

func TestMisuse(t *testing.T) {
	t.Parallel()
	missing := filepath.Join(t.TempDir(), "none.db")
	for args, want := range map[string]string{
		"log --since yesterday":      `--since: "yesterday" is not a revision`,
		"log --until 0":              `--until: "0" is not a revision`,
		"log -o xml":                 "-o xml: must be json, yaml or diff",
		"log -f --until 5m":          "--follow and --until are mutually exclusive",
		"log --tail -1":              "--tail must be between",
		"log --tail 9999":            "--tail must be between",
		"log --tail 1 --limit 1":     "--tail and --limit are mutually exclusive",
		"log -A -n x":                "--all-namespaces and --namespace are mutually exclusive",
		"log a b c":                  `unexpected argument "c"`,
		"diff":                       "usage: apilet diff",
		"diff 1":                     "usage: apilet diff",
		"diff one 2":                 `"one" is not a revision`,
		"log --data " + missing:      "no such file",
		"diff 1 2 --data " + missing: "no such file",
		"log --data a.db --server http://127.0.0.1:1":     "mutually exclusive",
		"log --server http://127.0.0.1:1":                 "connection refused",
		"log --server http://127.0.0.1:1 --token-file x":  "requires a --server with https",
		"log pods/x y --server http://127.0.0.1:1":        "once",
		"log pods/ --server http://127.0.0.1:1":           "the name must not be empty",
		"log --kubeconfig " + filepath.Dir(missing) + "/": "--kubeconfig",
		"log --bogus": "unknown flag: --bogus",
	} {
		out, errs, code := run(t, strings.Fields(args)...)
		if code == 0 || !strings.Contains(errs, want) || strings.Count(errs, "\n") != 1 || out != "" {
			t.Errorf("%s: %d %q %q", args, code, errs, out)
		}
	}
	if _, err := os.Stat(missing); !errors.Is(err, os.ErrNotExist) {
		t.Error("a file that was to be read is made")
	}
}

// TestFile: a file that no server has open tells the same.
func TestFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a.db")
	st, err := store.Open(path, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	rev := int64(0)
	commit := func(op store.ChangeOp, key, body string) {
		doc := strings.Replace(body, "RV", "", 1)
		rec, err := st.Commit(context.Background(), store.Change{Op: op, Key: key, Expect: rev, JSON: []byte(doc), RevAt: strings.Index(body, "RV"),
			Author: store.Author{User: "alice", Agent: "tool/1", Verb: "update"}})
		if err != nil {
			t.Fatal(err)
		}
		rev = rec.Rev
	}
	web := func(replicas int) string {
		return fmt.Sprintf(`{"metadata":{"name":"web","namespace":"shop","uid":"u","resourceVersion":"RV","labels":{"app":"web"}},"spec":{"replicas":%d}}`, replicas)
	}
	commit(store.OpCreate, "/apps/deployments/shop/web", web(1))
	commit(store.OpUpdate, "/apps/deployments/shop/web", web(2))
	commit(store.OpCreate, "//secrets/shop/s", `{"metadata":{"name":"s","namespace":"shop","resourceVersion":"RV"},"data":{"p":"c2VjcmV0"},"type":"Opaque"}`)
	commit(store.OpCreate, "/x.io/foos/shop/f", `{"metadata":{"name":"f","namespace":"shop","resourceVersion":"RV"}}`)
	commit(store.OpCreate, "/apiextensions.k8s.io/customresourcedefinitions//kites.y.io", `{"metadata":{"name":"kites.y.io","resourceVersion":"RV"},"spec":{"group":"y.io","scope":"Namespaced",
		"names":{"plural":"kites","kind":"Kite"},"versions":[{"name":"v1","storage":true,"selectableFields":[{"jsonPath":".spec.tail"}]}]}}`)
	commit(store.OpCreate, "/y.io/kites/shop/k", `{"metadata":{"name":"k","namespace":"shop","resourceVersion":"RV"},"spec":{"tail":"short"}}`)
	commit(store.OpUpdate, "/y.io/kites/shop/k", `{"metadata":{"name":"k","namespace":"shop","resourceVersion":"RV"},"spec":{"tail":"long"}}`)
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	ask := func(args string) string {
		out, errs, code := run(t, append(strings.Fields(args), "--data", path)...)
		if code != 0 || errs != "" {
			t.Errorf("%s: %d %s", args, code, errs)
		}
		if strings.Contains(out, "c2VjcmV0") {
			t.Errorf("%s: a secret:\n%s", args, out)
		}
		return out
	}
	for args, want := range map[string][]string{
		"log":                         {"Deployment shop/web  tool (alice)  created", ".spec.replicas 1 → 2", "Secret shop/s", "foos shop/f", "kites.y.io", "Kite shop/k", `.spec.tail "short" → "long"`},
		"log deploy -n shop":          {"created", ".spec.replicas 1 → 2"},
		"log deploy/web -A --since 1": {".spec.replicas 1 → 2"},
		"log deploy web -A --until 1": {"created"},
		"log deployments":             {},
		"log foos.x.io -A":            {"foos shop/f"},
		"log -l app=web --limit 1":    {"created"},
		"log --by bob":                {},
		"log --tail 1":                {"Kite shop/k"},
		"log deploy -A --tail 5":      {"created", ".spec.replicas 1 → 2"},
		"log -n shop --field-selector metadata.name=s -o json":           {`"name":"s"`},
		"log secrets -A --field-selector type=Opaque":                    {"Secret shop/s"},
		"log secrets -A --field-selector type=other":                     {},
		"log kites.y.io -A --field-selector spec.tail=long":              {".spec.tail"},
		"log kites.y.io -A --field-selector spec.tail!=long":             {"Kite shop/k", ".spec.tail"},
		"diff 4 now kites.y.io -A --field-selector spec.tail=long":       {"+  tail: long"},
		"diff 4 now secrets,deploy -A --field-selector metadata.name=no": {},
		"diff 1 2":                       {"--- deployments.apps shop/web at 1\n+++ deployments.apps shop/web at 2\n", "-  replicas: 1\n+  replicas: 2\n"},
		"diff 2 1 deploy -A":             {"-  replicas: 2\n+  replicas: 1\n"},
		"diff 1 now secrets -n shop":     {"+  p: \"***\"\n"},
		"diff -1h now -n other":          {},
		"log deploy web -n shop -o diff": {"-  replicas: 1\n+  replicas: 2\n"},
		"log secrets -A -o yaml":         {"new:\n", "  data:\n    p: \"***\"\n"},
		"diff 2 2":                       {},
		"diff 1 2 -l app=none":           {},
	} {
		if args == "diff -1h now -n other" { // all of the file is younger than that
			if _, errs, code := run(t, append(strings.Fields(args), "--data", path)...); code != 0 && !strings.Contains(errs, "oldest") {
				t.Errorf("%s: %d %s", args, code, errs)
			}
			continue
		}
		out := ask(args)
		if len(want) == 0 && out != "" {
			t.Errorf("%s: printed\n%s", args, out)
		}
		for _, part := range want {
			if !strings.Contains(out, part) {
				t.Errorf("%s: %q is not in\n%s", args, part, out)
			}
		}
		if format := strings.HasPrefix(args, "log") && !strings.Contains(args, "-o"); format && strings.Count(out, "\n") != len(want) {
			t.Errorf("%s: %d lines, want %d\n%s", args, strings.Count(out, "\n"), len(want), out)
		}
	}
	for args, want := range map[string]string{
		"log --since 99": "in the future", "diff 1 99": "in the future", "log -f": "requires a running server", "log --findings": "a running server", "log nosuch": `no type "nosuch"`,
		"log --field-selector type=x": "field label not supported: type", "log deploy -A --field-selector spec.replicas=1": "is not a known field selector",
		"log kites.y.io -A --field-selector spec.x=1": "field label not supported", "diff 1 2 deploy -A --field-selector spec.replicas=1": "not a known field selector",
		"log -l a=(": "", "log --field-selector x": "", "diff 1 2 -l a=(": "",
	} {
		out, errs, code := run(t, append(strings.Fields(args), "--data", path)...)
		if code != 1 || !strings.Contains(errs, want) || out != "" {
			t.Errorf("%s: %d %q %q", args, code, errs, out)
		}
	}
}
