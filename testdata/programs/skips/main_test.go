package main

import (
	"os"
	"strings"
	"testing"
)

// Output of go test -json. The tests pass, are skipped, fail, or end the process.
const printed = `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"=== RUN   TestA\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:3: never seen\n"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestB","Output":"    b_test.go:7: no kubectl\n"}
{"Action":"output","Package":"p","Test":"TestB","Output":"--- SKIP: TestB (0.00s)\n"}
{"Action":"skip","Package":"p","Test":"TestB"}
{"Action":"output","Package":"p","Test":"TestC/sub","Output":"    c_test.go:7: apply is missing\n"}
{"Action":"skip","Package":"p","Test":"TestC/sub"}
{"Action":"output","Package":"p","Test":"TestD","Output":"    d_test.go:9: broken\n"}
{"Action":"output","Package":"p","Test":"TestD","Output":"--- FAIL: TestD (0.00s)\n"}
{"Action":"fail","Package":"p","Test":"TestD"}
{"Action":"output","Package":"p","Test":"TestE","Output":"=== RUN   TestE\n"}
{"Action":"output","Package":"p","Test":"TestE","Output":"panic: lost\n"}
{"Action":"output","Package":"p","Output":"FAIL\tp\t0.1s\n"}
{"Action":"fail","Package":"p"}
FAIL
`

func TestUnknownSkipsAreNamed(t *testing.T) {
	known, err := readKnown(strings.NewReader("# tools\n: no kubectl$ # a tool\n\n"))
	if err != nil || len(known) != 1 {
		t.Fatal(known, err)
	}
	var out strings.Builder
	if report(strings.NewReader(printed), &out, known) {
		t.Error("all skips are known")
	}
	want := "    d_test.go:9: broken\n--- FAIL: TestD (0.00s)\nFAIL\tp\t0.1s\npanic: lost\nFAIL\n" +
		"left out, and .ci/skips does not know why: p TestC/sub: apply is missing\n"
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
	out.Reset()
	if !report(strings.NewReader(strings.ReplaceAll(printed, "apply is missing", "no kubectl")), &out, known) {
		t.Errorf("a known skip is named:\n%s", out.String())
	}
}

func TestTheListCanBeRead(t *testing.T) {
	file, err := os.Open("../../../.ci/skips")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	known, err := readKnown(file)
	if err != nil || len(known) < 5 {
		t.Errorf("%d patterns, %v", len(known), err)
	}
	if isKnown(known, "TestApply: server-side apply is missing: 500") || isKnown(known, "TestApply: ") {
		t.Error("the list takes what it should not")
	}
}
