package main

// This file builds the programs. It sets all variables that affect the go command, and for each
// platform the oldest processor that Go's own releases support. Otherwise a user's GOFLAGS or
// GOAMD64 would change the bytes.

import (
	"context"
	"debug/buildinfo"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// A target is a platform.
type target struct{ os, arch string }

func (t target) String() string { return t.os + "/" + t.arch }

const allTargets = "linux/amd64,linux/arm64,linux/arm,linux/riscv64,darwin/amd64,darwin/arm64,windows/amd64"

// A flavour is a set of compiled features.
type flavour struct{ name, tags string }

// full excludes gRPC's debugging pages, which would add 8 MiB to the program.
var allFlavours = map[string]flavour{"full": {"", "grpcnotrace"}, "noetcd": {"noetcd", "noetcd"}}

// A build is a program for a target.
type build struct {
	target
	flavour
	path string
	info *buildinfo.BuildInfo // read from the program
}

// title returns the base name of the files for a build, without extension.
func (r *release) title(b build) string {
	parts := []string{"apilet", r.version, b.os, b.arch, b.name}
	return strings.TrimSuffix(strings.Join(parts, "-"), "-")
}

// program returns the name of the program's file.
func (b build) program() string {
	if b.os == "windows" {
		return "apilet.exe"
	}
	return "apilet"
}

// buildAll builds all programs and sets the version.
func (r *release) buildAll(ctx context.Context) error {
	for _, t := range r.targets {
		for _, f := range r.flavours {
			b, err := r.build(ctx, t, f)
			if err != nil {
				return err
			}
			r.builds = append(r.builds, b)
		}
	}
	r.version = r.builds[0].info.Main.Version
	return nil
}

func (r *release) build(ctx context.Context, t target, f flavour) (build, error) {
	b := build{target: t, flavour: f, path: filepath.Join(r.work, "programs", t.os+"-"+t.arch+"-"+f.tags)}
	_, err := r.goCommand(ctx, t, "build", "-buildvcs=true", "-trimpath", "-ldflags=-s -w", "-tags="+f.tags, "-o", b.path, ".")
	if err != nil {
		return b, fmt.Errorf("%s: %w", t, err)
	}
	if b.info, err = buildinfo.ReadFile(b.path); err != nil {
		return b, err
	}
	said := map[string]string{}
	for _, s := range b.info.Settings {
		said[s.Key] = s.Value
	}
	if said["vcs.revision"] != r.commit || said["vcs.modified"] != "false" || b.info.Main.Version == "(devel)" {
		return b, fmt.Errorf("%s: the program says version %s, commit %q, changed %q and not commit %s",
			t, b.info.Main.Version, said["vcs.revision"], said["vcs.modified"], r.commit)
	}
	return b, nil
}

// native returns a program that can be run on this machine. It builds the program if it is not part
// of the release.
func (r *release) native(ctx context.Context) (build, error) {
	here := target{runtime.GOOS, runtime.GOARCH}
	for _, b := range r.builds {
		if b.target == here && b.name == "" {
			return b, nil
		}
	}
	return r.build(ctx, here, allFlavours["full"])
}

// goCommand runs the go command in the clone for a target.
func (r *release) goCommand(ctx context.Context, t target, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = r.source
	cmd.Env = append(os.Environ(), "GOOS="+t.os, "GOARCH="+t.arch, "CGO_ENABLED=0", "GOFLAGS=-mod=readonly", "GOWORK=off", "GOEXPERIMENT=", "GOFIPS140=off",
		"GOAMD64=v1", "GOARM=7", "GOARM64=v8.0", "GORISCV64=rva20u64")
	return output(cmd)
}
