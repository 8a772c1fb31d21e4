package main

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/tidwall/gjson"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"apilet/internal/apitest"
)

// The documents, README.md and docs/*.md, are tests: what they tell a reader to type is typedLine here.
//
// A section (from one `## ` to the next) is a session: an empty folder with a link to testdata, a shell of its own, and whatever servers it
// starts. The sessions run beside each other. What a fenced block is says its info string:
//
//	```sh                  commands; each has to succeed
//	```console             a transcript: `$ command`, then what it prints on both outputs
//	```sh no-run: why      (or console) not run here, and why; `go test` in it is looked at all the same
//	anything else          is not for a shell: yaml, text, a picture
//
// A command is a line, or several where a line ends in a backslash or opens a here-document. `go run .` and `apilet` are this test's own
// binary; where they serve, they get a free port, which stands for 8080 or 6443 in what follows. A command that ends in & has served once its log
// has the URL, and that log is what it prints. `git apply` of a patch in testdata/solutions leaves the tree as it is: from then on the session's
// apilet is built with it. `go test` is not run: what it names has to be there. In a transcript
//
//   - ages, times, IPs, ports, uids, revisions, random parts of names and versions may differ (masks),
//   - white space counts as one blank, so that long lines may be broken,
//   - three dots stand for anything.
//
// The short form of the tests runs only the sections of README.md that build no other program.
//
// A block that wants a program which this machine does not have (kubectl, curl, jq, openssl, unshare) is left out with a word, and so is the rest of its section.

// TestCommandChild is no test but apilet for the sessions.
func TestCommandChild(t *testing.T) {
	if os.Getenv("APILET_COMMAND_CHILD") == "" {
		t.Skip("for other tests")
	}
	parent := os.Getppid()
	go func() { // a shell that was killed leaves nobody behind
		for os.Getppid() == parent {
			time.Sleep(time.Second)
		}
		os.Exit(3)
	}()
	os.Exit(program().Run(flag.Args(), os.Stdout, os.Stderr))
}

func TestDocumentsDoWhatTheySay(t *testing.T) {
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("no bash on this machine")
	}
	for _, doc := range chapters(t) {
		for _, part := range doc.sections {
			if !apitest.Long() && (doc.name != "README.md" || part.builds()) {
				continue
			}
			if slices.ContainsFunc(part.blocks, block.runs) {
				t.Run(doc.name+"/"+part.title, func(t *testing.T) {
					t.Parallel()
					runSection(t, part)
				})
			}
		}
	}
}

// ---- Reading a document ----

type chapter struct {
	name, text string
	sections   []section
}

type section struct {
	title  string
	blocks []block
}

// builds reports whether a command of the section builds a program other than apilet.
func (s section) builds() bool {
	return slices.ContainsFunc(s.blocks, func(b block) bool {
		return b.runs() && slices.ContainsFunc(b.steps(), func(l typedLine) bool {
			return strings.HasPrefix(l.command, "git apply ") || strings.HasPrefix(l.command, "go run ./") || strings.HasPrefix(l.command, "go build ")
		})
	})
}

type block struct {
	lang, why string // why: the reason after no-run:
	line      int
	lines     []string
}

func (b block) isShell() bool { return b.lang == "sh" || b.lang == "console" }
func (b block) runs() bool    { return b.isShell() && b.why == "" }

func chapters(t *testing.T) (docs []chapter) {
	names, err := filepath.Glob("docs/*.md")
	if err != nil || len(names) == 0 {
		t.Fatal("no documents in docs/: ", err)
	}
	for _, name := range append([]string{"README.md"}, names...) {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		docs = append(docs, chapter{name, string(text), readSections(t, name, string(text))})
	}
	return docs
}

var shellLine = regexp.MustCompile(`^    (\$ |kubectl |curl |go (run|test|build) |apilet |jq )`)

func readSections(t *testing.T, name, text string) []section {
	parts := []section{{title: "top"}}
	var open *block
	for i, line := range strings.Split(text, "\n") {
		current := &parts[len(parts)-1]
		switch fence := strings.HasPrefix(line, "```"); {
		case fence && open == nil:
			lang, rest, _ := strings.Cut(strings.TrimPrefix(line, "```"), " ")
			why, isReason := strings.CutPrefix(rest, "no-run: ")
			if rest != "" && !isReason || isReason && len(why) < 5 {
				t.Errorf("%s:%d: %q is not a reason", name, i+1, rest)
			}
			open = &block{lang: lang, why: why, line: i + 1}
		case fence:
			current.blocks, open = append(current.blocks, *open), nil
		case open != nil:
			open.lines = append(open.lines, line)
		case strings.HasPrefix(line, "## "):
			parts = append(parts, section{title: strings.TrimPrefix(line, "## ")})
		case shellLine.MatchString(line):
			t.Errorf("%s:%d: a command outside of a fenced block, where nothing tries it: %s", name, i+1, line)
		}
	}
	if open != nil {
		t.Errorf("%s:%d: the block has no end", name, open.line)
	}
	return parts
}

// A typedLine is one command and, in a transcript, what it prints.
type typedLine struct {
	command string
	want    string
	line    int
}

var hereDocument = regexp.MustCompile(`<<-?'?(\w+)'?`)

func (b block) steps() (steps []typedLine) {
	for i := 0; i < len(b.lines); i++ {
		line, isCommand := b.lines[i], b.lang == "sh"
		if !isCommand {
			line, isCommand = strings.CutPrefix(line, "$ ")
		}
		if !isCommand {
			if len(steps) > 0 {
				steps[len(steps)-1].want += line + "\n"
			}
			continue
		}
		if trimmed := strings.TrimSpace(line); trimmed == "" || strings.HasPrefix(trimmed, "#") {
			continue
		}
		next := typedLine{command: line, line: b.line + i + 1}
		for strings.HasSuffix(b.lines[i], `\`) && i+1 < len(b.lines) {
			i++
			next.command += "\n" + b.lines[i]
		}
		if end := hereDocument.FindStringSubmatch(line); end != nil {
			for i++; i < len(b.lines); i++ {
				next.command += "\n" + b.lines[i]
				if b.lines[i] == end[1] {
					break
				}
			}
		}
		steps = append(steps, next)
	}
	return steps
}

// ---- Playing a session ----

// A session is a shell with an apilet and a go of its own in its PATH.
type session struct {
	t     *testing.T
	dir   string
	home  string // its programs
	in    io.Writer
	lines chan string // what the shell prints; closed with it
	addr  string      // host:port of the last server it started
	logs  int
}

func runSection(t *testing.T, part section) {
	sh := startSession(t)
	ran := 0
	for _, b := range part.blocks {
		if !b.runs() {
			continue
		}
		for _, next := range b.steps() {
			if tool := missingTool(next.command); tool != "" {
				t.Skipf("line %d and what follows left out: no %s on this machine", next.line, tool)
			}
			got, code := sh.run(next)
			if b.lang == "sh" && code != 0 {
				t.Fatalf("line %d: %s\nends with %d:\n%s", next.line, next.command, code, got)
			}
			if b.lang == "console" && !sameOutput(got, next.want) {
				t.Fatalf("line %d: %s\n-- prints\n%s-- instead of\n%s-- compared as\n%s\n%s", next.line, next.command, got, next.want, masked(got), masked(next.want))
			}
			ran++
		}
	}
	t.Logf("%d commands", ran)
}

func missingTool(command string) string {
	for _, tool := range []string{"kubectl", "curl", "jq", "git", "openssl", "unshare", "pytest", "node --test"} {
		if !regexp.MustCompile(`(^|[\s|($])` + tool + ` `).MatchString(command) {
			continue
		}
		program, _, _ := strings.Cut(tool, " ")
		if _, err := exec.LookPath(program); err != nil {
			return program
		}
		if tool == "unshare" && exec.Command(tool, "--user", "--map-root-user", "--mount", "true").Run() != nil { // containers may forbid it
			return "unshare that may be used"
		}
	}
	return ""
}

const apiletShim = `#!/bin/sh
# The commands of apilet by the test's binary; what serves gets a free port.
case "$*" in *--listen*) set -- "$@" ;; ''|-*) set -- --listen 127.0.0.1:0 "$@" ;; esac
case "$1" in torture) shift; set -- torture --apilet "$0" "$@" ;; esac
[ ! -x "$HOME/patched/apilet" ] || exec "$HOME/patched/apilet" "$@"
APILET_COMMAND_CHILD=1 exec %q -test.run='^TestCommandChild$' -- "$@"
`

const goShim = `#!/bin/sh
# go run . is apilet, go run ./testdata/X a binary of its own (a signal to go run would not reach it), and go test is tested elsewhere.
case "$1 $2" in
"run .") shift 2; exec apilet "$@" ;;
"run ./testdata/"*) name=$2; shift 2; built=%[5]q/$SECTION
	mkdir -p "$built" && (cd %[1]q && HOME=%[3]q %[2]q build -ldflags='-s -w' -o "$built/" "$name") && exec "$built/${name##*/}" "$@" ;;
"build -o") out=$PWD/$3; cd %[1]q && HOME=%[3]q exec %[2]q build -o "$out" "$4" ;;
"test "*) exit 0 ;;
esac
HOME=%[3]q exec %[2]q "$@"
`

const gitShim = `#!/bin/sh
# git apply PATCH builds an apilet of the tree with the patch laid over it; git apply -R PATCH forgets it. The go command builds again only what has
# changed since the last time, and for that wants the same files in the same place.
[ "$1" = apply ] || exec %[4]q "$@"
rm -rf "$HOME/patched"
[ "$2" != -R ] || exit 0
patch=$PWD/$2 files= replace= laid=%[5]q/$SECTION/$(basename "$2" .patch)
rm -rf "$laid/tree" && mkdir -p "$laid/tree" && cd %[1]q || exit
for file in $(%[4]q apply --numstat "$patch" | cut -f3); do
	mkdir -p "$laid/tree/$(dirname "$file")" && cp "$file" "$laid/tree/$file" || exit
	replace="$replace,\"$PWD/$file\":\"$laid/tree/$file\""
done
(cd "$laid/tree" && %[4]q apply "$patch") || exit
echo "{\"Replace\":{${replace#,}}}" > "$laid/overlay"
HOME=%[3]q %[2]q build -ldflags='-s -w' -overlay "$laid/overlay" -o "$laid/apilet" . && ln -s "$laid" "$HOME/patched"
`

func startSession(t *testing.T) *session {
	t.Helper()
	root, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	goTool, _ := exec.LookPath("go")
	gitTool, _ := exec.LookPath("git")
	dir, home := t.TempDir(), t.TempDir()
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	built := builtBefore(t, root)
	for name, text := range map[string]string{"apilet": fmt.Sprintf(apiletShim, own), "go": fmt.Sprintf(goShim, root, goTool, os.Getenv("HOME"), "", built),
		"git": fmt.Sprintf(gitShim, root, goTool, os.Getenv("HOME"), gitTool, built)} {
		if err := os.WriteFile(filepath.Join(home, name), []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(filepath.Join(root, "testdata"), filepath.Join(dir, "testdata")); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("bash", "--noprofile", "--norc")
	cmd.Dir = dir
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(kv string) bool {
		return strings.HasPrefix(kv, "KUBECONFIG=") || strings.HasPrefix(kv, "APILET_") || strings.HasPrefix(kv, "KUBEBUILDER_ASSETS=")
	}), "HOME="+home, "PATH="+home+":"+os.Getenv("PATH"), "SECTION="+regexp.MustCompile(`\W+`).ReplaceAllString(t.Name(), "-"))
	sh := &session{t: t, dir: dir, home: home, lines: make(chan string, 1000)}
	sh.in, err = cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { // until the shell and all that has its output end
		defer close(sh.lines)
		for r := bufio.NewReader(out); ; {
			line, err := r.ReadString('\n')
			if err != nil {
				return
			}
			sh.lines <- line
		}
	}()
	t.Cleanup(func() {
		fmt.Fprintln(sh.in, `for job in $(jobs -p); do kill $job; done; wait; exit`)
		for range sh.lines { // until the shell ends
		}
		cmd.Wait()
	})
	return sh
}

// builtBefore is a folder for programs that outlives the tests, as the go command's cache does: one for each tree, since the programs are of its files.
func builtBefore(t *testing.T, root string) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		return t.TempDir()
	}
	sum := sha256.Sum256([]byte(root))
	dir := filepath.Join(cache, "apilet-documents", hex.EncodeToString(sum[:6]))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return t.TempDir()
	}
	return dir
}

var (
	listenFlag = regexp.MustCompile(`--listen[ =]\S+`)
	background = regexp.MustCompile(`([^&])&(\s+#.*)?$`)
	plainAddr  = regexp.MustCompile(`(localhost|127\.0\.0\.1):(8080|6443)`)
	servedURL  = regexp.MustCompile(`url=https?://(\S+)`)
)

// run types one command and returns what it prints and how it ends.
func (sh *session) run(next typedLine) (string, int) {
	sh.t.Helper()
	text := listenFlag.ReplaceAllString(next.command, "--listen 127.0.0.1:0")
	if sh.addr != "" {
		text = plainAddr.ReplaceAllString(text, sh.addr)
	}
	if !background.MatchString(text) {
		return sh.submit(next, text)
	}
	sh.logs++
	log := filepath.Join(sh.dir, fmt.Sprintf(".log%d", sh.logs))
	if !strings.Contains(text, ">") {
		text = background.ReplaceAllString(text, "$1 >"+log+" 2>&1 &")
	} else {
		text = background.ReplaceAllString(text, "$1 &")
	}
	out, code := sh.submit(next, text)
	if !regexp.MustCompile(`^(go run \.|apilet)( |$)`).MatchString(text) {
		return out, code
	}
	return sh.served(next, log), code
}

// submit gives the shell one command, and waits until it has ended.
func (sh *session) submit(next typedLine, text string) (string, int) {
	sh.t.Helper()
	const mark = "@@ the command ended with"
	fmt.Fprintf(sh.in, "{ %s\n} </dev/null\nprintf '\\n%s %%d\\n' $?\n", text, mark)
	var out strings.Builder
	timeout := apitest.Timeout(sh.t)
	for {
		select {
		case line, ok := <-sh.lines:
			if !ok {
				sh.t.Fatalf("line %d: %s\nended the shell:\n%s", next.line, text, out.String())
			}
			code := 0
			if n, _ := fmt.Sscanf(line, mark+" %d", &code); n == 1 {
				return strings.TrimSuffix(out.String(), "\n"), code
			}
			out.WriteString(line)
		case <-timeout:
			sh.t.Fatalf("line %d: %s\ndid not end:\n%s", next.line, text, out.String())
		}
	}
}

// served waits until a server in the background says its URL, and returns what it said.
func (sh *session) served(next typedLine, log string) string {
	sh.t.Helper()
	var text []byte
	apitest.WaitFor(sh.t, fmt.Sprintf("line %d to serve: %s", next.line, next.command), func() bool {
		text, _ = os.ReadFile(log)
		url := servedURL.FindSubmatch(text)
		if url == nil || !strings.HasSuffix(string(text), "\n") {
			return false
		}
		sh.addr = string(url[1])
		return true
	}, func() any { return string(text) })
	return string(text)
}

// TestSolutions has the patches in testdata/solutions: each has to fit the tree. Their heads say which tests pass with them, and which fail,
// having found the change out; with APILET_SOLUTIONS=1 these are run.
func TestSolutions(t *testing.T) {
	git, err := exec.LookPath("git")
	if err != nil {
		t.Skip("no git on this machine")
	}
	patches, err := filepath.Glob("testdata/solutions/*.patch")
	if err != nil || len(patches) < 5 {
		t.Fatalf("%d patches, %v", len(patches), err)
	}
	for _, name := range patches {
		t.Run(filepath.Base(name), func(t *testing.T) {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			promises := regexp.MustCompile(`(?m)^(passes|fails): go (test .*)$`).FindAllStringSubmatch(string(text), -1)
			if len(promises) == 0 {
				t.Error("no test is named")
			}
			if out, err := exec.Command(git, "apply", "--check", name).CombinedOutput(); err != nil {
				t.Fatalf("does not fit any more: %v\n%s", err, out)
			}
			if os.Getenv("APILET_SOLUTIONS") == "" {
				return
			}
			sh := startSession(t)
			if out, code := sh.run(typedLine{command: "git apply " + name}); code != 0 {
				t.Fatal(out)
			}
			for _, promise := range promises {
				args := append([]string{"test", "-overlay", filepath.Join(sh.home, "patched", "overlay")}, strings.Fields(promise[2])[1:]...)
				cmd := exec.Command("go", args...)
				cmd.Env = append(os.Environ(), "APILET_PROGRAM="+filepath.Join(sh.home, "patched", "apilet")) // for internal/e2e
				out, err := cmd.CombinedOutput()
				if (err == nil) != (promise[1] == "passes") || strings.Contains(string(out), "[build failed]") || strings.Contains(string(out), "no tests to run") {
					t.Errorf("%s: %v\n%s", promise[0], err, out)
				}
			}
		})
	}
}

// ---- Comparing outputs ----

// masks are what may differ from run to run, and what stands for it.
var masks = []struct {
	pattern *regexp.Regexp
	with    string
}{
	{regexp.MustCompile(`\x1b\[[0-9;]*m`), ""},
	{regexp.MustCompile(`\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?Z?`), "TIME"},
	{regexp.MustCompile(`(?m)^TIME `), ""}, // before a line of the log
	{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`), "UID"},
	{regexp.MustCompile(`X509SHA256=[0-9a-f]+`), "SHA"},
	{regexp.MustCompile(`revision=\d+|"resourceVersion":\s?"\d+"`), "REVISION"},
	{regexp.MustCompile(`data=\S+`), "DATA"},
	{regexp.MustCompile(`page=\S+`), ""}, // documents may omit the address of the page
	{regexp.MustCompile(`(localhost|127\.0\.0\.1):\d+`), "ADDRESS"},
	{regexp.MustCompile(`\b\d+\.\d+\.\d+\.\d+\b`), "IP"},
	{regexp.MustCompile(`kubectl/v\S+ \(\S+\)( kubernetes/\w+)?`), "KUBECTL"},
	{regexp.MustCompile(`\b(\d+h)?(\d+m)?\d+(\.\d+)?m?s\b`), "AGE"},
	{regexp.MustCompile(`\s+`), " "},
	{regexp.MustCompile(`([,\[{]) "`), `$1"`}, // JSON that was broken into lines
}

func masked(text string) string {
	for _, m := range masks {
		text = m.pattern.ReplaceAllString(text, m.with)
	}
	return strings.TrimSpace(text)
}

func sameOutput(got, want string) bool {
	parts := strings.Split(masked(want), "...")
	for i, part := range parts {
		parts[i] = regexp.QuoteMeta(strings.TrimSpace(part))
	}
	return regexp.MustCompile(`(?s)^` + strings.Join(parts, `.*`) + `$`).MatchString(masked(got))
}

// A comparison that lets everything pass would make every transcript true.
func TestTranscriptsAreCompared(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		got, want string
		same      bool
	}{
		{"a   1   3m5s\n", "a  1  4s\n", true},
		{"a 1 4s\n", "a 2 4s\n", false},
		{"created\n", "", false},
		{"", "created\n", false},
		{"one two three four", "one\n  ... four\n", true},
		{"one two three five", "one\n  ... four\n", false},
		{"INF serving data=/tmp/x revision=3 url=http://127.0.0.1:3456", "INF serving data=apilet.db revision=69 url=http://127.0.0.1:8080", true},
		{"INF serving data=a page=http://127.0.0.1:3456/debug/ui/ revision=3", "INF serving data=b revision=69", true},
		{"10.96.3.4 80/TCP", "10.96.0.1 81/TCP", false},
	} {
		if sameOutput(c.got, c.want) != c.same {
			t.Errorf("%q and %q: same %v, want %v", c.got, c.want, !c.same, c.same)
		}
	}
}

// ---- What documents name ----

var (
	testName     = regexp.MustCompile(`\b(Test|Fuzz|Benchmark)[A-Z]\w+`)
	testFunc     = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)\w+)\(`)
	fileName     = regexp.MustCompile(`(?:^|[\s(` + "`" + `|])((?:[\w.-]+/)*[\w*-]+\.(?:go|sh|md|txtar|txt|jsonl)\b|(?:testdata|docs|internal|\.ci)/[\w./-]*\w)`)
	markdownLink = regexp.MustCompile(`\]\(([^):#]+)(?:#[^)]*)?\)`)
	testPattern  = regexp.MustCompile(`(?:^|\s)-(run|bench|fuzz)[ =]('[^']+'|\S+)`)
)

// repository walks the tree once: the names of all its tests, and all its files.
func repository(t *testing.T) (tests, files []string) {
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			if entry != nil && entry.Name() == ".git" {
				return filepath.SkipDir
			}
			return err
		}
		files = append(files, filepath.ToSlash(path))
		if strings.HasSuffix(path, "_test.go") {
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			for _, found := range testFunc.FindAllSubmatch(text, -1) {
				tests = append(tests, string(found[1]))
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return tests, files
}

func TestDocumentsNameWhatIsThere(t *testing.T) {
	t.Parallel()
	tests, files := repository(t)
	for _, doc := range chapters(t) {
		for _, name := range testName.FindAllString(testPattern.ReplaceAllString(doc.text, ""), -1) {
			if !slices.Contains(tests, name) {
				t.Errorf("%s names %s, which is no test", doc.name, name)
			}
		}
		for _, found := range fileName.FindAllStringSubmatch(withoutBlocks(doc), -1) {
			if !fileExists(files, found[1]) {
				t.Errorf("%s names %s, which is not there", doc.name, found[1])
			}
		}
		for _, found := range markdownLink.FindAllStringSubmatch(doc.text, -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(doc.name), found[1])); err != nil {
				t.Errorf("%s links to %s: %v", doc.name, found[1], err)
			}
		}
		checkTestCommands(t, doc, tests)
	}
}

// withoutBlocks is a document's own words: a block's files may be the reader's, and are tried where it runs.
func withoutBlocks(doc chapter) string {
	return regexp.MustCompile("(?ms)^```(sh|console|yaml|csv|ini).*?^```").ReplaceAllString(doc.text, "")
}

// fileExists says whether a file or folder is there: under its path, or a mere name anywhere.
func fileExists(files []string, name string) bool {
	name = strings.TrimPrefix(name, "../") // a link from docs/
	if strings.HasPrefix(name, "internal/") && !slices.ContainsFunc(files, func(file string) bool { return strings.HasPrefix(file, "internal/") }) {
		return true // the rooms are not there yet
	}
	name = strings.TrimPrefix(name, "../") // from docs to the root
	return slices.ContainsFunc(files, func(file string) bool {
		whole, _ := filepath.Match(name, file)
		last, _ := filepath.Match(name, filepath.Base(file))
		return whole || last || strings.HasPrefix(file, name+"/") || strings.HasSuffix(file, "/"+name)
	})
}

// checkTestCommands sees that every part of what `go test -run` and the like ask for finds a test.
func checkTestCommands(t *testing.T, doc chapter, tests []string) {
	for _, part := range doc.sections {
		for _, b := range part.blocks {
			for _, next := range b.steps() {
				checkTestPatterns(t, fmt.Sprintf("%s:%d", doc.name, next.line), next.command, tests)
			}
		}
	}
	for _, found := range regexp.MustCompile("`([^`\n]*-(?:run|bench|fuzz) [^`\n]+)`").FindAllStringSubmatch(doc.text, -1) {
		checkTestPatterns(t, doc.name, found[1], tests)
	}
}

func checkTestPatterns(t *testing.T, where, command string, tests []string) {
	for _, found := range testPattern.FindAllStringSubmatch(command, -1) {
		kind := map[string]string{"run": "Test", "bench": "Benchmark", "fuzz": "Fuzz"}[found[1]]
		for _, pattern := range strings.Split(strings.Trim(found[2], "'"), "|") {
			pattern, _, _ = strings.Cut(pattern, "/")
			re, err := regexp.Compile(pattern)
			if pattern == "xxx" || pattern == "^$" { // none
				continue
			}
			if err != nil || !slices.ContainsFunc(tests, func(name string) bool { return strings.HasPrefix(name, kind) && re.MatchString(name) }) {
				t.Errorf("%s: %s: nothing is called %s", where, command, pattern)
			}
		}
	}
}

// TestRoomsAreAsDrawn compares the packages and their imports with testdata/imports.txt, and the packages with docs/rooms.md, which describes each
// of them.
func TestRoomsAreAsDrawn(t *testing.T) {
	t.Parallel()
	allowed, described := map[string]string{}, map[string]bool{}
	for _, row := range regexp.MustCompile(`(?m)^([a-z0-9/]+):(.*)$`).FindAllSubmatch(apitest.ReadFile(t, "testdata/imports.txt"), -1) {
		allowed[string(row[1])] = strings.TrimSpace(string(row[2]))
	}
	_, text, _ := strings.Cut(string(apitest.ReadFile(t, "docs/rooms.md")), "\n## Packages under internal/")
	text, _, _ = strings.Cut(text, "\n## ")
	for _, row := range regexp.MustCompile(`(?m)^\| ([a-z0-9/]+) \| \w`).FindAllStringSubmatch(text, -1) {
		described[row[1]] = row[1] != "package"
	}
	existing := ourImports(t)
	if len(existing) == 0 {
		t.Fatal("there are no packages")
	}
	for name, imports := range existing {
		if want, ok := allowed[name]; !ok || want != imports {
			t.Errorf("testdata/imports.txt should have the line\n%s: %s\nif this is intended; it has %q", name, imports, want)
		}
		if !described[name] {
			t.Errorf("docs/rooms.md does not describe the package %s", name)
		}
	}
	for name := range allowed {
		if _, ok := existing[name]; !ok {
			t.Errorf("testdata/imports.txt has the package %s, which does not exist", name)
		}
	}
	for name, isPackage := range described {
		if _, ok := existing[name]; isPackage && !ok {
			t.Errorf("docs/rooms.md describes the package %s, which does not exist", name)
		}
	}
}

// TestFoldersHaveNoCircle looks at the packages from further away, each as its first folder under internal/: these, too, stand above what they
// import, so that a folder's name says on which floor all in it is. Folders that import none of those which are left are taken away, again
// and again; what cannot be taken away stands in a circle, or above one.
func TestFoldersHaveNoCircle(t *testing.T) {
	t.Parallel()
	left := map[string][]string{} // a folder's imports, each with the package that wants it
	first := func(room string) string { folder, _, _ := strings.Cut(room, "/"); return folder }
	for room, imports := range ourImports(t) {
		left[first(room)] = append(left[first(room)], "")
		for _, below := range strings.Split(imports, ", ") {
			if below != "" && first(below) != first(room) {
				left[first(room)] = append(left[first(room)], room+" -> "+below)
			}
		}
	}
	if len(left) < 20 {
		t.Fatalf("there are %d folders", len(left))
	}
	for before := -1; before != len(left); {
		before = len(left)
		for folder, edges := range left {
			left[folder] = slices.DeleteFunc(edges, func(edge string) bool { _, below, _ := strings.Cut(edge, " -> "); return left[first(below)] == nil })
			if len(left[folder]) == 0 {
				delete(left, folder)
			}
		}
	}
	for folder, edges := range left {
		t.Errorf("the folder %s stands in a circle, or above one: %s", folder, strings.Join(edges, "; "))
	}
}

// TestCommentsNameFilesThatExist checks the file names in comments. A name is relative to the file's folder, to internal, or to the root.
func TestCommentsNameFilesThatExist(t *testing.T) {
	t.Parallel()
	named := regexp.MustCompile(`[\w./-]*\w\.go\b`)
	elsewhere := regexp.MustCompile(`^(k8s\.io|sigs\.k8s\.io|pkg|plugin|cmd)/`) // Kubernetes' own sources
	there := func(names ...string) bool {
		return slices.ContainsFunc(names, func(name string) bool { _, err := os.Stat(name); return err == nil })
	}
	comments := readNames(t).comments
	if len(comments) < 1000 {
		t.Fatalf("only %d comments were read", len(comments))
	}
	for _, c := range comments {
		for _, name := range named.FindAllString(c.text, -1) {
			if !elsewhere.MatchString(name) && !there(filepath.Join(filepath.Dir(c.path), name), name, filepath.Join("internal", name)) {
				t.Errorf("%s: a comment names %s, which does not exist", c.path, name)
			}
		}
	}
}

// foreignNames are names in comments that are nobody's here: Kubernetes' functions, fields of its documents, others' programs.
var foreignNames = strings.Fields(`AllowUnsafeMalformedObjectDeletion DecryptRequest DecryptResponse DevTools EncryptRequest EncryptResponse
	EncryptedObject MultiWriter NamespacedPod NewListener RbacAuthorization StatusRequest StatusResponse
	PodProxyOptions DeploymentStrategyType TestManager ReturnDeletedObject ServeMux SetDefaults_Type SpecialDefaultResourcePrefixes ValidateEndpoints ValidatePersistentVolumeSpec
	ValidatePodEphemeralContainersUpdate ValidatePodResize ValidatePodSpec ValidatePodTemplateSpec ValidatePodUpdate ValidateService
	ValidateX WarningsOnCreate WarningsOnUpdate WatchdogSec gRPC iSCSI listMapKey listType mapType matchCondition messageExpressions paramKinds
	rbacAuthorization readTheLogFrom structType tokenRequest validateVolumeSource validateX`)

// TestEssaysNameWhatIsThere: a name of several words in a comment (fillLocked, ErrDamaged) is one of Go's or of Kubernetes' that our code or
// its tests know, [Name] and [Type.Method] are declared in the package.
func TestEssaysNameWhatIsThere(t *testing.T) {
	t.Parallel()
	source := readNames(t)
	camel := regexp.MustCompile(`\b[A-Za-z][a-z0-9]*(?:[A-Z][a-z0-9]+)+\w*\b|\b[a-z]+[A-Z]\w*\b`)
	link := regexp.MustCompile(`(?m)^(?:[^\t\n].*?)?[\s(]\[([A-Z]\w*(?:\.[A-Z]\w*)?)\](?:[^(]|$)`)
	for _, c := range source.comments {
		for _, name := range camel.FindAllString(c.text, -1) {
			one, many := strings.CutSuffix(name, "s")
			if !source.known[name] && !(many && (source.known[one] || source.known[strings.TrimSuffix(one, "ie")+"y"])) && !slices.Contains(foreignNames, name) {
				t.Errorf("%s: a comment names %s, which nothing is called", c.path, name)
			}
		}
		for _, found := range link.FindAllStringSubmatch(c.text, -1) {
			if !source.declared[filepath.ToSlash(filepath.Dir(c.path))][found[1]] {
				t.Errorf("%s: a comment links to [%s], which the package does not have", c.path, found[1])
			}
		}
	}
}

// goNames are the names in the Go code below this folder.
type goNames struct {
	known    map[string]bool            // identifiers, and words in strings
	declared map[string]map[string]bool // by folder: what is declared at the top of a file that is no test; Type.Method and .Method for methods
	comments []struct{ path, text string }
}

func readNames(t *testing.T) goNames {
	t.Helper()
	names := goNames{known: map[string]bool{}, declared: map[string]map[string]bool{}}
	word := regexp.MustCompile(`[A-Za-z_]\w*`)
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !slices.Contains([]string{".go", ".txtar", ".json", ".yaml", ".js"}, filepath.Ext(path)) {
			return err
		}
		if filepath.Ext(path) != ".go" {
			text, err := os.ReadFile(path)
			for _, w := range word.FindAllString(string(text), -1) {
				names.known[w] = true
			}
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.Ident:
				names.known[n.Name] = true
			case *ast.BasicLit:
				for _, w := range word.FindAllString(n.Value, -1) {
					names.known[w] = true
				}
			}
			return true
		})
		if !strings.HasSuffix(path, "_test.go") {
			names.declare(path, file)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// declare notes what a file declares, and its comments.
func (n *goNames) declare(path string, file *ast.File) {
	for _, group := range file.Comments {
		n.comments = append(n.comments, struct{ path, text string }{path, group.Text()})
	}
	dir := filepath.ToSlash(filepath.Dir(path))
	if n.declared[dir] == nil {
		n.declared[dir] = map[string]bool{}
	}
	note := n.declared[dir]
	for _, decl := range file.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			note[receiver(decl)+decl.Name.Name] = true
			note["."+decl.Name.Name] = decl.Recv != nil || note["."+decl.Name.Name]
		case *ast.GenDecl:
			for _, spec := range decl.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					note[spec.Name.Name] = true
				case *ast.ValueSpec:
					for _, name := range spec.Names {
						note[name.Name] = true
					}
				}
			}
		}
	}
}

// receiver is "Type." for a method, "" for a function.
func receiver(decl *ast.FuncDecl) string {
	if decl.Recv == nil {
		return ""
	}
	of := decl.Recv.List[0].Type
	for {
		switch inner := of.(type) {
		case *ast.StarExpr:
			of = inner.X
		case *ast.IndexExpr:
			of = inner.X
		case *ast.Ident:
			return inner.Name + "."
		default:
			return ""
		}
	}
}

// ourImports is, for each package under internal/, which of the others its code (not its tests) imports, sorted, with commas between.
func ourImports(t *testing.T) map[string]string {
	edges := map[string][]string{}
	err := filepath.WalkDir("internal", func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		room := strings.TrimPrefix(filepath.ToSlash(filepath.Dir(path)), "internal/")
		edges[room] = append(edges[room], "")
		for _, spec := range file.Imports {
			if _, ours, ok := strings.Cut(strings.Trim(spec.Path.Value, `"`), "/internal/"); ok {
				edges[room] = append(edges[room], ours)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	imports := map[string]string{}
	for room, list := range edges {
		slices.Sort(list)
		imports[room] = strings.Join(slices.Compact(list)[1:], ", ")
	}
	return imports
}

// ---- docs/containers ----

const containersNamespace = `{"metadata":{"name":"apilet","labels":{"pod-security.kubernetes.io/enforce":"restricted",
	"pod-security.kubernetes.io/warn":"restricted"}}}`

func TestManifestsOfContainers(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	s.want(201, "POST", "/api/v1/namespaces", containersNamespace)
	paths := map[string]string{"Pod": "/api/v1/namespaces/apilet/pods", "Service": "/api/v1/namespaces/apilet/services",
		"PersistentVolumeClaim": "/api/v1/namespaces/apilet/persistentvolumeclaims", "Deployment": "/apis/apps/v1/namespaces/apilet/deployments",
		"PodDisruptionBudget": "/apis/policy/v1/namespaces/apilet/poddisruptionbudgets"}
	for file, kinds := range map[string]string{"pod.yaml": "PersistentVolumeClaim Pod Service", "three.yaml": "Deployment PodDisruptionBudget Service"} {
		var got []string
		for _, document := range bytes.Split(apitest.ReadFile(t, "docs/containers/"+file), []byte("\n---\n")) {
			var kind metav1.TypeMeta
			if err := yaml.Unmarshal(document, &kind); err != nil {
				t.Fatal(file, err)
			}
			got = append(got, kind.Kind)
			a := s.want(201, "POST", paths[kind.Kind]+"?dryRun=All&fieldValidation=Strict", string(document), "Content-Type: application/yaml")
			if warnings := a.header["Warning"]; len(warnings) > 0 {
				t.Errorf("%s, %s: %q", file, kind.Kind, warnings)
			}
			checkManifest(t, file, kind.Kind, document)
		}
		if strings.Join(got, " ") != kinds {
			t.Errorf("%s has %q, want %s", file, got, kinds)
		}
	}
}

func TestKubectlTakesTheManifestsOfContainers(t *testing.T) {
	t.Parallel()
	s, dir := startTest(t), t.TempDir()
	s.want(201, "POST", "/api/v1/namespaces", containersNamespace)
	for _, kubectl := range apitest.Kubectls(t) {
		for _, file := range []string{"pod.yaml", "three.yaml"} {
			cmd := exec.Command(kubectl, "--server", s.url, "--cache-dir", dir, "-n", "apilet", "apply", "--dry-run=server", "--warnings-as-errors",
				"-f", "docs/containers/"+file)
			cmd.Env = append(os.Environ(), "KUBECONFIG=/dev/null", "HOME="+dir)
			if out, err := cmd.CombinedOutput(); err != nil || strings.Count(string(out), "created (server dry run)") != 3 {
				t.Errorf("%s %s: %v\n%s", path.Base(kubectl), file, err, out)
			}
		}
	}
}

// checkManifest looks at whom a Service selects, and at the container of a pod or a template: its flags are apilet's, what they name is mounted, it is given
// time to stop.
func checkManifest(t *testing.T, file, kind string, document []byte) {
	t.Helper()
	var err error
	var pod corev1.PodTemplateSpec
	switch kind {
	case "Pod":
		err = yaml.Unmarshal(document, &pod)
	case "Deployment":
		var d appsv1.Deployment
		err = yaml.Unmarshal(document, &d)
		pod = d.Spec.Template
	case "Service":
		var service corev1.Service
		if err := yaml.Unmarshal(document, &service); err != nil || service.Spec.Selector["app"] != "apilet" {
			t.Errorf("%s: %v, the Service selects %v", file, err, service.Spec.Selector)
		}
		return
	default:
		return
	}
	if err != nil || pod.Labels["app"] != "apilet" || len(pod.Spec.Containers) != 1 {
		t.Fatalf("%s: %v, %+v", file, err, pod)
	}
	container := pod.Spec.Containers[0]
	args := slices.Clone(container.Args)
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "$(POD_IP)", "10.0.0.1")
	}
	c, flags := newConfig(io.Discard)
	if err := flags.Parse(args); err != nil || flags.NArg() > 0 {
		t.Fatal(file, err, flags.Args())
	}
	if err := c.Finish(); err != nil {
		t.Fatal(file, err)
	}
	for _, named := range []string{c.Data, c.TLSCert, c.TLSKey, c.Auth.TokenFile, c.Etcd.CAFile, c.Etcd.CertFile, c.Etcd.KeyFile} {
		if named != "" && !slices.ContainsFunc(container.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == path.Dir(named) }) {
			t.Errorf("%s: nothing is mounted for %s", file, named)
		}
	}
	if (kind == "Deployment") != (len(c.Etcd.Servers) == 3) {
		t.Errorf("%s: etcd %q", file, c.Etcd.Servers)
	}
	if ready, lives := container.ReadinessProbe.HTTPGet.Path, container.LivenessProbe.HTTPGet.Path; ready != "/readyz" || lives != "/livez" {
		t.Errorf("%s: probes ask for %s and %s", file, ready, lives)
	}
	grace := int64((stopWithin + c.ShutdownDelay).Seconds())
	if *pod.Spec.TerminationGracePeriodSeconds <= grace || container.Ports[0].ContainerPort != 6443 || !strings.HasSuffix(c.Listen, ":6443") {
		t.Errorf("%s: it is killed after %d seconds, and stops within %d; it listens at %s", file, *pod.Spec.TerminationGracePeriodSeconds, grace, c.Listen)
	}
}

// ---- docs/monitoring ----

// A ruleFile is what Prometheus reads (https://prometheus.io/docs/prometheus/latest/configuration/recording_rules).
type ruleFile struct {
	Groups []struct {
		Name  string `json:"name"`
		Rules []struct {
			Alert       string            `json:"alert"`
			Expr        string            `json:"expr"`
			For         string            `json:"for"`
			Labels      map[string]string `json:"labels"`
			Annotations map[string]string `json:"annotations"`
		} `json:"rules"`
	} `json:"groups"`
}

// exposed are the families of a server with their labels, each with the values that it has.
type exposed map[string]map[string]map[string]bool

var (
	sampleLine = regexp.MustCompile(`^(\w+)(?:\{(.*)\})? \S+$`)
	labelPair  = regexp.MustCompile(`(\w+)="((?:[^"\\]|\\.)*)"`)
)

func (e exposed) add(name, label, value string) {
	if e[name] == nil {
		e[name] = map[string]map[string]bool{"job": {}, "instance": {}} // Prometheus' own, of any series
	}
	if label == "" {
		return
	}
	if e[name][label] == nil {
		e[name][label] = map[string]bool{}
	}
	e[name][label][value] = true
}

func readExposed(text string) exposed {
	all := exposed{}
	all.add("up", "", "") // Prometheus' own
	for line := range strings.Lines(text) {
		sample := sampleLine.FindStringSubmatch(strings.TrimSpace(line))
		if sample == nil {
			continue
		}
		all.add(sample[1], "", "")
		for _, pair := range labelPair.FindAllStringSubmatch(sample[2], -1) {
			all.add(sample[1], pair[1], pair[2])
		}
	}
	return all
}

var described = regexp.MustCompile(`fqName: "(\w+)".*variableLabels: \{([\w,]*)\}`)

// addDescribed adds families that a server has registered and does not show now: those of an etcd cluster, which are shown with one alone
// (testdata/etcd has a server with one, and the same names), and counts of what has not happened.
func (e exposed) addDescribed(t *testing.T, registry *prometheus.Registry, prefixes ...string) {
	descs := make(chan *prometheus.Desc, 1000)
	go func() { registry.Describe(descs); close(descs) }()
	for desc := range descs {
		found := described.FindStringSubmatch(desc.String())
		if found == nil || !slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(found[1], prefix) }) {
			continue
		}
		e.add(found[1], "", "")
		for label := range strings.SplitSeq(found[2], ",") {
			e.add(found[1], label, "")
		}
	}
}

// The parts of PromQL that a name may stand in.
var (
	exprRange  = regexp.MustCompile(`\[[^\]]*\]`)                                                       // of time
	exprGroup  = regexp.MustCompile(`\b(?:by|without|on|ignoring|group_left|group_right) *\(([^)]*)\)`) // of labels
	exprSeries = regexp.MustCompile(`([a-zA-Z_:][\w:]*) *(\(|\{(?:[^}"]|"[^"]*")*\})?`)                 // a function, or a series
	exprMatch  = regexp.MustCompile(`(\w+) *(=~|!~|!=|=) *"([^"]*)"`)                                   // a label's value
	exprWords  = []string{"and", "or", "unless", "bool", "offset", "vector", "time"}
)

// check looks at one expression of PromQL: its names are families of the server, the labels in braces and groups are theirs, and a value that a
// label must equal is one that the server shows.
func (e exposed) check(expr string) (problems []string) {
	var used, grouped []string
	for _, group := range exprGroup.FindAllStringSubmatch(expr, -1) {
		grouped = append(grouped, strings.FieldsFunc(group[1], func(r rune) bool { return r == ',' || r == ' ' })...)
	}
	expr = exprGroup.ReplaceAllString(exprRange.ReplaceAllString(expr, ""), "")
	for _, found := range exprSeries.FindAllStringSubmatch(expr, -1) {
		name, rest := found[1], found[2]
		switch {
		case rest == "(" || slices.Contains(exprWords, name):
		case e[name] == nil:
			problems = append(problems, "no series is called "+name)
		default:
			used = append(used, name)
			problems = append(problems, e.checkMatchers(name, rest)...)
		}
	}
	for _, label := range grouped {
		if !slices.ContainsFunc(used, func(name string) bool { return e[name][label] != nil }) {
			problems = append(problems, "nothing in it has the label "+label)
		}
	}
	if len(used) == 0 {
		problems = append(problems, "it names no series")
	}
	return problems
}

func (e exposed) checkMatchers(name, matchers string) (problems []string) {
	for _, m := range exprMatch.FindAllStringSubmatch(matchers, -1) {
		switch values := e[name][m[1]]; {
		case values == nil:
			problems = append(problems, fmt.Sprintf("%s has no label %s", name, m[1]))
		case m[2] == "=" && len(values) > 0 && !values[m[3]] && !strings.HasPrefix(m[3], "$"):
			problems = append(problems, fmt.Sprintf("%s of %s is never %q", m[1], name, m[3]))
		}
	}
	return problems
}

func readRules(t *testing.T) (rules ruleFile) {
	t.Helper()
	text, err := os.ReadFile("docs/monitoring/rules.yaml")
	if err == nil {
		err = yaml.UnmarshalStrict(text, &rules)
	}
	if err != nil {
		t.Fatal(err)
	}
	return rules
}

// TestMonitoringSpeaksOfWhatThereIs scrapes a server that has been used a little, and looks up there whatever rules and dashboard name.
func TestMonitoringSpeaksOfWhatThereIs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, _ := startTLS(t, onFile(filepath.Join(dir, "a.db")), func(c *config) {
		c.Audit.Path, c.Kubeconfig = filepath.Join(dir, "audit.log"), filepath.Join(dir, "kubeconfig")
	})
	s.headers = []string{"Authorization: Bearer root-token"}
	maps := s.namespace("shop")
	s.want(201, "POST", maps, configMap("a"))
	s.want(200, "GET", maps, "")
	s.want(200, "GET", "/readyz", "")
	w := s.watch(maps+"?watch=1&timeoutSeconds=60", s.headers...)
	s.want(201, "POST", maps, configMap("b"))
	<-w.frames
	all := readExposed(string(s.want(200, "GET", "/metrics", "").body))
	all.addDescribed(t, s.metrics.Registry.Registry, "apilet_etcd_", "apilet_replica_", "apiserver_flowcontrol_")

	for _, bad := range []string{`no_such_metric > 0`, `apilet_disk_full{colour="red"}`, `sum by (colour) (apilet_disk_full)`,
		`kubernetes_healthcheck{name="no-such-check"}`, `rate(apiserver_request_totals[5m])`} {
		if all.check(bad) == nil {
			t.Errorf("the test takes %s", bad)
		}
	}
	expressions := map[string]string{}
	for _, group := range readRules(t).Groups {
		for _, rule := range group.Rules {
			expressions["rule "+rule.Alert] = rule.Expr
			if rule.Alert == "" || rule.Annotations["summary"] == "" || !slices.Contains([]string{"page", "ticket", "info"}, rule.Labels["severity"]) {
				t.Errorf("rule %q has no name, summary or severity: %+v", rule.Alert, rule)
			}
			if !regexp.MustCompile(`^(|\d+[smhd])$`).MatchString(rule.For) {
				t.Errorf("rule %s: for %q", rule.Alert, rule.For)
			}
		}
	}
	text, err := os.ReadFile("docs/monitoring/dashboard.json")
	if err != nil || !json.Valid(text) {
		t.Fatal("no dashboard", err)
	}
	ids := map[int64]bool{}
	for _, panel := range gjson.GetBytes(text, "panels").Array() {
		if id := panel.Get("id").Int(); ids[id] {
			t.Errorf("two panels are number %d", id)
		} else {
			ids[id] = true
		}
		for _, target := range panel.Get("targets").Array() {
			expressions["panel "+panel.Get("title").String()+" "+target.Get("refId").String()] = target.Get("expr").String()
		}
	}
	if len(expressions) < 40 {
		t.Errorf("only %d expressions", len(expressions))
	}
	for where, expr := range expressions {
		for _, problem := range all.check(expr) {
			t.Errorf("%s: %s: %s", where, expr, problem)
		}
	}
}

// TestAlarmsAreExplained: docs/devices.md has a row for each alarm, in the file's order, and for no other.
func TestAlarmsAreExplained(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("docs/devices.md")
	if err != nil {
		t.Fatal(err)
	}
	var rows, alarms []string
	for _, row := range regexp.MustCompile(`(?m)^\| (Apilet\w+) \|`).FindAllStringSubmatch(string(text), -1) {
		rows = append(rows, row[1])
	}
	for _, group := range readRules(t).Groups {
		for _, rule := range group.Rules {
			alarms = append(alarms, rule.Alert)
		}
	}
	if !slices.Equal(rows, alarms) {
		t.Errorf("docs/devices.md explains %v, the rules are %v", rows, alarms)
	}
}

// ---- docs/commands.md ----

var updateDocuments = flag.Bool("update", false, "write the generated tables of docs/commands.md")

// generatedMark begins a generated table in docs/commands.md.
const generatedMark = "<!-- generated by go test -run TestCommandTables . -update -->\n"

// TestCommandTables compares the tables of docs/commands.md with the commands and flags of --help.
func TestCommandTables(t *testing.T) {
	t.Parallel()
	const name = "docs/commands.md"
	parts := strings.Split(string(apitest.ReadFile(t, name)), generatedMark)
	tables := []string{commandTable(t), flagTable()}
	if len(parts) != len(tables)+1 {
		t.Fatalf("%s has %d generated tables, want %d", name, len(parts)-1, len(tables))
	}
	text := parts[0]
	for i, part := range parts[1:] {
		rest := strings.TrimLeft(part, "\n")
		if strings.HasPrefix(rest, "|") {
			old, after, _ := strings.Cut(rest, "\n\n")
			if old+"\n" != tables[i] && !*updateDocuments {
				t.Errorf("%s has an outdated table:\n%s\nwant\n%s", name, old, tables[i])
			}
			rest = after
		} else if !*updateDocuments {
			t.Errorf("%s: a generated table is missing", name)
		}
		text += generatedMark + "\n" + tables[i] + "\n" + rest
	}
	if *updateDocuments {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// commandTable returns a Markdown table of the commands that `apilet help` lists.
func commandTable(t *testing.T) string {
	t.Helper()
	help := func(args ...string) string {
		var out strings.Builder
		if code := program().Run(append([]string{"help"}, args...), &out, &out); code != 0 {
			t.Fatal(args, out.String())
		}
		return out.String()
	}
	_, list, _ := strings.Cut(help(), "\nCommands:\n")
	list, _, _ = strings.Cut(list, "\n\n")
	table := "| command | purpose | flags |\n| --- | --- | --- |\n"
	for line := range strings.Lines(list) {
		name, purpose, _ := strings.Cut(strings.TrimSpace(line), " ")
		usage, flags := "apilet [FLAGS]", "[below](#flags-of-the-server)"
		if name != "(none)" {
			own := help(name)
			_, usage, _ = strings.Cut(own, "\nUsage:\n  ")
			usage, _, _ = strings.Cut(usage, "\n")
			flags = strings.Join(regexp.MustCompile(`(?m)^  --?[\w-]+`).FindAllString(own, -1), "")
			flags = strings.TrimSpace(regexp.MustCompile(` +(\S+)`).ReplaceAllString(flags, " `$1`"))
		}
		table += tableRow("`"+usage+"`", strings.TrimSpace(purpose), flags)
	}
	return table
}

// flagTable returns a Markdown table of the flags of the server, by group.
func flagTable() string {
	table := "| group | flags |\n| --- | --- |\n"
	for _, group := range (&config{}).Groups() {
		set := flag.NewFlagSet("", flag.ContinueOnError)
		group.Define(set)
		var names []string
		set.VisitAll(func(f *flag.Flag) {
			names = append(names, "`"+strings.Repeat("-", min(2, len(f.Name)))+f.Name+"`")
		})
		table += tableRow(group.Title, strings.Join(names, " "))
	}
	return table
}

func tableRow(cells ...string) string {
	for i, cell := range cells {
		cells[i] = strings.ReplaceAll(cell, "|", `\|`)
	}
	return "| " + strings.Join(cells, " | ") + " |\n"
}

// ---- The tree ----

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

// loggedDuration matches zerolog's methods for durations, also at the beginning of a line.
var loggedDuration = regexp.MustCompile(`\bDurs?\("`)

// TestLogLinesHaveDurationsWithUnits finds durations that zerolog writes as milliseconds without a
// unit.
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
			if loggedDuration.MatchString(line) {
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
