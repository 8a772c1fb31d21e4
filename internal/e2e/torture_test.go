package e2e

// These tests run torture with some controllers of the zoo. testdata/zoo.sh runs it with all of
// them.

import (
	"bufio"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"apilet/internal/apitest"
)

const zooFolder = "../../testdata/programs/zoo"

// buildZoo builds the program with the controllers.
var buildZoo = sync.OnceValues(func() (path string, err error) {
	path = filepath.Join(folder, "zoo.exe")
	if out, err := exec.Command("go", "build", "-o", path, "./"+zooFolder).CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return path, nil
})

// torture runs torture with one of the zoo's controllers and these flags.
func torture(t *testing.T, controller string, mended bool, flags ...string) run {
	t.Helper()
	zoo, err := buildZoo()
	if err != nil {
		t.Fatal(err)
	}
	args := append([]string{"torture", "--setup=" + zooFolder + "/setup.yaml", "--objects=" + zooFolder + "/basic.yaml", "--patience=3s", "--parallel=2"}, flags...)
	// With the race detector, garbage collection is ten times slower. If the server is quiet for
	// 300 ms, it may just be slow.
	if apitest.Race {
		args = append(args, "--quiet=3s", "--patience=20s")
	}
	return runAs(t, "apilet", append(args, "--", zoo, "-server={server}", "-controller="+controller, fmt.Sprintf("-mended=%t", mended))...)
}

func TestTortureFindsTheBugAndTellsOfIt(t *testing.T) {
	t.Parallel()
	out := filepath.Join(t.TempDir(), "out")
	report, junit := out+".json", out+".xml"
	r := torture(t, "between", false, "--fail-fast", "--out="+out, "--json="+report, "--junit="+junit)
	if r.code != 1 || !strings.Contains(r.out, "wrong") || !strings.Contains(r.errs, "went wrong") {
		t.Fatalf("%d %s %s", r.code, r.out, r.errs)
	}
	pages, _ := filepath.Glob(filepath.Join(out, "*.md"))
	if len(pages) == 0 {
		t.Fatalf("no page: %s", r.out)
	}
	if text := string(apitest.ReadFile(t, pages[0])); !strings.Contains(text, "What is wrong") || !strings.Contains(text, "──▶ here") {
		t.Error(text)
	}
	var told struct{ Verdicts []struct{ Verdict string } }
	if err := json.Unmarshal(apitest.ReadFile(t, report), &told); err != nil || len(told.Verdicts) == 0 {
		t.Errorf("--json: %v %v", err, told)
	}
	var suite struct {
		Failures int `xml:"failures,attr"`
	}
	if err := xml.Unmarshal(apitest.ReadFile(t, junit), &suite); err != nil || suite.Failures == 0 {
		t.Errorf("--junit: %v %v", err, suite)
	}
}

func TestTorturePlaysAPlanAgain(t *testing.T) {
	t.Parallel()
	for controller, c := range map[string]struct{ workload, plan, want string }{
		"between":   {"basic", `"kind":"died","write":"create configmaps zoo/robin-1","nth":1`, "zoo/robin-2 is missing"},
		"twice":     {"basic", `"kind":"past","write":"create configmaps zoo/robin-*","nth":3`, "zoo/robin-*4 is left over"},
		"forever":   {"basic", `"kind":"refused","detail":"504, carried out","write":"create configmaps zoo/robin-1","nth":1`, "did not become quiet"},
		"coalesced": {"reborn", `"kind":"unseen","object":"nests.zoo.example.com zoo/robin","change":2`, "zoo/robin-2 is left over"},
	} {
		if controller != "between" && controller != "coalesced" && !apitest.Long() {
			continue
		}
		t.Run(controller, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "plan.json")
			if err := os.WriteFile(file, []byte(`{"plan":{`+c.plan+`}}`), 0o600); err != nil {
				t.Fatal(err)
			}
			r := torture(t, controller, false, "--objects="+zooFolder+"/"+c.workload+".yaml", "--replay="+file, "--stale=10s")
			for _, want := range []string{c.want, "normally", "1 plans: 0 ok, 0 slower, 1 wrong"} {
				if r.code != 1 || !strings.Contains(r.out, want) {
					t.Errorf("no %q: %d %s %s", want, r.code, r.out, r.errs)
				}
			}
		})
	}
}

func TestTortureMakesAWrongPlanSmaller(t *testing.T) {
	t.Parallel()
	out := filepath.Join(t.TempDir(), "out")
	file := out + ".plan.json"
	const plan = `{"plan":{"kind":"died","write":"create configmaps zoo/robin-1","nth":1}`
	if err := os.WriteFile(file, []byte(plan+"}"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := torture(t, "between", false, "--replay="+file, "--shrink=1", "--quiet=100ms", "--patience=1500ms", "--out="+out)
	if r.code != 1 || !strings.Contains(r.errs, "without Nest zoo/blackbird") {
		t.Fatalf("%d %s %s", r.code, r.out, r.errs)
	}
	pages, _ := filepath.Glob(filepath.Join(out, "*"))
	if len(pages) != 3 {
		t.Fatal(pages)
	}
	for i, want := range []string{"The workload does not need: Nest zoo/blackbird", `"without":["Nest zoo/blackbird"]`, "The workload does not need: Nest zoo/blackbird"} {
		if text := string(apitest.ReadFile(t, pages[len(pages)-1-i])); !strings.Contains(text, want) {
			t.Errorf("%s: no %q in %s", pages[len(pages)-1-i], want, text)
		}
	}
}

func TestTortureTakesAScriptForAUser(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"sh", "curl"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip(err)
		}
	}
	const script = `set -e
post() { curl -sf -H Content-Type:application/json "$APILET_SERVER$1" -d "$2" >/dev/null; }
post /api/v1/namespaces '{"metadata":{"name":"zoo"}}'
post /apis/zoo.example.com/v1/namespaces/zoo/nests '{"apiVersion":"zoo.example.com/v1","kind":"Nest","metadata":{"name":"wren"},"spec":{"eggs":2}}'
curl -s "$APILET_QUIET"
grep -q "$APILET_SERVER" "$KUBECONFIG"
curl -sf "$APILET_SERVER/api/v1/namespaces/zoo/configmaps/wren-2" >/dev/null || { echo there is no second egg; exit 7; }`
	if r := torture(t, "between", true, "--objects=", "--script="+script, "--plans=1", "--patience=60s"); r.code != 0 || !strings.Contains(r.out, "1 ok") {
		t.Errorf("%d %s %s", r.code, r.out, r.errs)
	}
	file := filepath.Join(t.TempDir(), "plan.json")
	if err := os.WriteFile(file, []byte(`{"plan":{"kind":"died","write":"create configmaps zoo/wren-1","nth":1}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	r := torture(t, "between", false, "--objects=", "--script="+script, "--replay="+file, "--patience=1s")
	if r.code != 1 || !strings.Contains(r.out, "exit status 7: there is no second egg") {
		t.Errorf("%d %s %s", r.code, r.out, r.errs)
	}
}

func TestTortureThatIsEndedTellsWhatItKnows(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("no interrupt can be sent")
	}
	zoo, err := buildZoo()
	if err != nil {
		t.Fatal(err)
	}
	report := filepath.Join(t.TempDir(), "report.json")
	cmd := exec.Command(builtProgram(t), "torture", "--setup="+zooFolder+"/setup.yaml", "--objects="+zooFolder+"/basic.yaml", "--json="+report, "--patience=60s",
		"--", zoo, "-server={server}", "-controller=between", "-mended")
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	lines.Scan() // the line of the first plan
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Error(err)
	}
	last := ""
	for lines.Scan() {
		last = lines.Text()
	}
	var told struct{ Verdicts []struct{ Verdict string } }
	if err := cmd.Wait(); err == nil || !strings.Contains(last, "more were not run") {
		t.Errorf("%v, and the last line is %q", err, last)
	}
	if err := json.Unmarshal(apitest.ReadFile(t, report), &told); err != nil || len(told.Verdicts) == 0 {
		t.Errorf("--json: %v %v", err, told)
	}
}

func TestTortureAccusesNoTwin(t *testing.T) {
	t.Parallel()
	if r := torture(t, "between", true, fmt.Sprintf("--plans=%d", apitest.Rounds(15)), "--patience=60s"); r.code != 0 || !strings.Contains(r.out, "0 wrong") {
		t.Errorf("%d %s %s", r.code, r.out, r.errs)
	}
}

func TestTortureRefusesWhatItCannotDo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	fine := write("w.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: default}\n")
	for want, args := range map[string][]string{
		"--script is required":     {"torture", "true"},
		"usage":                    {"torture", "--objects=" + fine},
		"document 1":               {"torture", "--objects=" + write("bad.yaml", "nonsense: true\n"), "true"},
		"no such file":             {"torture", "--objects=" + filepath.Join(dir, "none.yaml"), "true"},
		"--never":                  {"torture", "--objects=" + fine, "--never=object.", "true"},
		"--wait requires --replay": {"torture", "--objects=" + fine, "--wait", "true"},
		"contains no plan":         {"torture", "--objects=" + fine, "--replay=" + write("no.json", "{}"), "true"},
		"starting the controller":  {"torture", "--objects=" + fine, filepath.Join(dir, "no-such-program")},
		"ended by itself":          {"torture", "--objects=" + fine, "--patience=1s", "go", "version"},
	} {
		if r := runAs(t, "apilet", args...); r.code == 0 || !strings.Contains(r.errs, want) {
			t.Errorf("%q: %d %s", args, r.code, r.errs)
		}
	}
}
