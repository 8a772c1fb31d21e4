// Siege asks a server of its own for what nobody has thought of, and stops at nothing but a bound: a generator of hostile requests that
// needs no list of attacks.
//
//	go run ./testdata/programs/siege                              # ten minutes on a server built from here
//	go run ./testdata/programs/siege -seed 7 -only lists,numbers  # what that seed does, two families of it
//	go run ./testdata/programs/siege -replay finding-1.json       # one request, and what it costs
//
// The server's OpenAPI documents say which types there are and what is expected where (schema.go). A grammar puts in what a schema
// does not forbid: numbers with exponents, elements that are all the same or in a bad order, depth times width, long texts (grammar.go). A
// tenant with `edit` in one namespace sends it, a node, a stranger, or an administrator; crowds of connections ask for one large object and
// do not read it, and requests take detours by other servers and names (clients.go). Four meters are watched (meters.go): processor time and memory against the bytes that were sent, stored and answered; how
// long others wait; and whether the server ends, starts, and has kept everything (siege.go).
//
// A request that trips a meter is tried again on a fresh server, made as small as it may be while it still does so (shrink.go), and printed as
// a command and a file. Then the siege goes on with what is not of that kind. It ends with 1 if anything was found. The meters are Linux's.
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
