// Release creates apilet's release files from a commit. The same commit and the same version of Go
// always produce the same bytes.
//
//	go run . -repo ../.. -ref v0.1.0 -out /tmp/v0.1.0
//
//	clone of the commit ─▶ go build, for each target and flavour ─┬─▶ archives ────────────┐
//	                       go list ─▶ licences ───────────────────┤   SBOMs                │
//	                       apilet help ─▶ man pages, completions ─┼─▶ Debian's packages ───┼─▶ SHA256SUMS
//	                                                              ├─▶ image for containers ┤
//	                                                              └─▶ install script ──────┘
//
// The clone contains only committed files, so that the go command writes the tag and the commit's
// date into each program. This date is also used for all files. The only input from the machine is
// Go, whose version the program and the SBOMs record, and the only network service is the module
// proxy.
//
// This file defines the order of steps. source.go creates the clone, and build.go builds the
// programs. licences.go, sbom.go and manual.go generate the accompanying files. archive.go,
// image.go and debian.go create packages. installer.go writes the install script.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"time"
)

// options are the inputs of a release.
type options struct {
	repo, ref  string   // the git repository, and the commit
	out        string   // a directory that does not exist yet
	targets    []target // platforms
	flavours   []flavour
	maintainer string // of the packages
	url        string // URL used by install.sh, or empty if it must be given by the user
	log        io.Writer
}

// A release holds the state of a release that is being created.
type release struct {
	options
	source  string // the clone
	work    string // temporary directory
	made    string // renamed to out at the end
	version string
	commit  string
	date    time.Time // of the commit
	builds  []build
	notices *notices
	manual  *manual
}

func main() {
	o := options{log: os.Stderr}
	flag.StringVar(&o.repo, "repo", "../..", "the git `folder`")
	flag.StringVar(&o.ref, "ref", "HEAD", "the tag or `commit`; what is not committed is left out")
	flag.StringVar(&o.out, "out", "", "the `folder` to make")
	targets := flag.String("targets", allTargets, "comma-separated `platforms`")
	flavours := flag.String("flavours", "full,noetcd", "comma-separated `list`")
	flag.StringVar(&o.maintainer, "maintainer", "the owner of apilet <apilet@localhost>", "`name` and address in the Debian packages")
	flag.StringVar(&o.url, "url", "", "the `URL` under which the release will be published; install.sh downloads from there")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	err := o.choose(*targets, *flavours)
	if err == nil {
		err = makeRelease(ctx, o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// choose parses the lists of targets and flavours.
func (o *options) choose(targets, flavours string) error {
	for _, name := range strings.Split(targets, ",") {
		t := target{}
		t.os, t.arch, _ = strings.Cut(name, "/")
		if !strings.Contains(","+allTargets+",", ","+name+",") {
			return fmt.Errorf("-targets: %q is none of %s", name, allTargets)
		}
		o.targets = append(o.targets, t)
	}
	for _, name := range strings.Split(flavours, ",") {
		f, ok := allFlavours[name]
		if !ok {
			return fmt.Errorf("-flavours: %q is neither full nor noetcd", name)
		}
		o.flavours = append(o.flavours, f)
	}
	return nil
}

// makeRelease creates the whole directory or nothing.
func makeRelease(ctx context.Context, o options) error {
	if o.out == "" {
		return fmt.Errorf("-out names no folder")
	}
	if _, err := os.Lstat(o.out); err == nil {
		return fmt.Errorf("%s is there already", o.out)
	}
	work, err := os.MkdirTemp("", "apilet-release-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	made, err := os.MkdirTemp(filepath.Dir(o.out), ".release-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(made) // does not exist if the release was created
	r := &release{options: o, work: work, made: made, source: filepath.Join(work, "source")}
	for _, step := range []struct {
		what string
		do   func(context.Context) error
	}{
		{"clone", r.clone},
		{"programs", r.buildAll},
		{"licences", r.findNotices},
		{"man pages, completions", r.writeManual},
		{"SBOMs", r.writeSBOMs},
		{"archives", r.writeArchives},
		{"Debian packages", r.writePackages},
		{"image", r.writeImage},
		{"install script", r.writeInstaller},
		{"checksums", r.writeSums},
	} {
		begun := time.Now()
		if err := step.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.what, err)
		}
		fmt.Fprintf(o.log, "%-24s %6.1f s\n", step.what, time.Since(begun).Seconds())
	}
	if err := os.Chmod(made, 0o755); err != nil {
		return err
	}
	return os.Rename(made, o.out)
}
