// Siege starts a server and sends it generated hostile requests. It does not use a list of known
// attacks, and it runs until the time limit is reached.
//
//	go run ./testdata/programs/siege                              # ten minutes on a server built from here
//	go run ./testdata/programs/siege -seed 7 -only lists,numbers  # two families of requests with seed 7
//	go run ./testdata/programs/siege -replay finding-1.json       # one request, and what it costs
//
// The types and the expected values are read from the OpenAPI documents of the server (schema.go).
// A grammar inserts values that are not forbidden by the schema, e.g. numbers with exponents, equal
// or badly ordered elements, values that are deep and wide, and long texts (grammar.go). The
// requests are sent by a tenant with the role `edit`, a node, an anonymous client, or an
// administrator. Crowds of connections request one large object and do not read it, and some
// requests use proxies, aggregated servers and forged names (clients.go). The meters (meters.go)
// check the CPU time and the memory in relation to the size of the request and the response, the
// latency of other clients, and whether the server keeps running and does not lose data (siege.go).
//
// A request that trips a meter is repeated on a fresh server, reduced to the smallest request that
// still trips it (shrink.go), and printed as a command and a file. Then the siege continues and
// skips requests of the same kind. The exit code is 1 if anything was found. The meters require
// Linux.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

var (
	binary = flag.String("binary", "", "the apilet `file` to besiege; without it one is built")
	length = flag.Duration("for", 10*time.Minute, "how long to go on")
	seed   = flag.Uint64("seed", 0, "the `number` that chooses everything; 0 takes one by the clock")
	users  = flag.Int("users", 72, "connections of a crowd")
	only   = flag.String("only", "", "comma-separated `families`: "+strings.Join(families, ", "))
	replay = flag.String("replay", "", "a `file` with one request, as a finding leaves it: measure that and end")
	found  = flag.String("findings", "", "`folder` for the findings' requests and bodies; without it one that siege-SEED is called, where temporary files are")
	loud   = flag.Bool("v", false, "print each request and its meters")
)

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "siege:", err)
		os.Exit(1)
	}
	fmt.Println("nothing gave way")
}

func run(ctx context.Context, out io.Writer) error {
	if runtime.GOOS != "linux" {
		return errors.New("the meters are those of Linux")
	}
	for family := range strings.SplitSeq(*only, ",") {
		if *only != "" && !slices.Contains(families, family) {
			return fmt.Errorf("no family is called %q", family)
		}
	}
	dir, err := os.MkdirTemp("", "siege")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if *binary == "" {
		*binary = filepath.Join(dir, "apilet")
		build := exec.CommandContext(ctx, "go", "build", "-o", *binary, "apilet")
		build.Stderr = os.Stderr
		if err := build.Run(); err != nil {
			return fmt.Errorf("building the server: %w", err)
		}
	}
	if *seed == 0 {
		*seed = uint64(time.Now().UnixNano()) % 1_000_000
	}
	fmt.Fprintln(out, "seed", *seed)
	if *found == "" {
		*found = filepath.Join(os.TempDir(), fmt.Sprint("siege-", *seed))
	}
	ctx, cancel := context.WithTimeout(ctx, *length)
	defer cancel()
	s := &siege{out: out, dir: dir, began: time.Now(), spent: map[string]time.Duration{}}
	if *replay != "" {
		return s.again(ctx, *replay)
	}
	return s.lay(ctx)
}

// again measures one request from a file.
func (s *siege) again(ctx context.Context, file string) error {
	text, err := os.ReadFile(file)
	q := new(request)
	if err := errors.Join(err, json.Unmarshal(text, q)); err != nil {
		return err
	}
	if err := s.fresh(ctx); err != nil {
		return err
	}
	o, trips := s.try(ctx, q)
	fmt.Fprintln(s.out, o)
	s.server.kill()
	if t, tripped := worst(trips, ""); tripped {
		return fmt.Errorf("%s: %s", t.meter, t.why)
	}
	return nil
}
