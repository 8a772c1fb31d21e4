package main

import (
	"strings"
	"testing"
)

func TestPackageOf(t *testing.T) {
	for symbol, want := range map[string]string{
		"k8s.io/api/core/v1.(*Pod).Unmarshal":                     "k8s.io/api/core/v1",
		"gopkg.in/inf%2ev0.(*Dec).Add":                            "gopkg.in/inf.v0",
		"slices.pdqsortCmpFunc[go.shape.struct{a/b.c int}]":       "slices",
		"type:.eq.github.com/tidwall/gjson.Result":                "github.com/tidwall/gjson",
		"main.(*server).routes":                                   "apilet",
		"apilet/internal/scheme.init":                             "apilet/internal/scheme",
		"vendor/golang.org/x/crypto/chacha20poly1305.Seal.abi0":   "vendor/golang.org/x/crypto/chacha20poly1305",
		"github.com/google/cel-go/parser/gen.(*CELParser).Start_": "github.com/google/cel-go/parser/gen",
	} {
		if got := packageOf(symbol); got != want {
			t.Errorf("%s: got %s, want %s", symbol, got, want)
		}
	}
}

func TestSymbolBytes(t *testing.T) {
	const nm = `
  40a000      100 T a/b.F
  40b000       50 t a/b.(*T).m
  50b000        7 R a/b.table
  50b100     1000 B a/b.memory
  50c000       30 r go:func.*
  60c000 33554432 D crypto/internal/fips140/drbg.memory
  60d000        9 D runtime.x
                  U nothing
`
	linked, maps, err := symbolBytes(strings.NewReader(nm), map[string]string{"a/b": "a", "crypto/internal/fips140/drbg": "Go's library"})
	if err != nil || maps != 30 || linked.code["a/b"] != 150 || linked.data["a/b"] != 7 || len(linked.data) != 1 || len(linked.code) != 1 {
		t.Errorf("got %v, stack maps %v, %v", linked, maps, err)
	}
}

func TestSecondsIn(t *testing.T) {
	const graph = `[
	{"ID": 0, "Mode": "link-install", "Package": "a/b", "Deps": [1]},
	{"ID": 1, "Mode": "build", "Package": "a/b", "CmdReal": 9000000000, "CmdUser": 1500000000, "CmdSys": 500000000},
	{"ID": 2, "Mode": "link", "Package": "a/b", "CmdUser": 3000000000}]`
	seconds, err := secondsIn([]byte(graph))
	if err != nil || len(seconds) != 1 || seconds["a/b"] != 2 {
		t.Errorf("got %v, %v, want 2 s for a/b alone", seconds, err)
	}
}
