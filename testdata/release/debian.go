package main

// This file creates Debian packages of the programs for Linux. They contain the program, the unit
// of docs/apilet.service with its flags in /etc/default/apilet, rotation of the audit log, man
// pages and completions. The installation does not start the server, because the administrator has
// to configure its address first.

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // for nfpm.Get
	"github.com/goreleaser/nfpm/v2/files"
)

func (r *release) writePackages(context.Context) error {
	for _, b := range r.builds {
		if b.os != "linux" {
			continue
		}
		if err := r.writePackage(b); err != nil {
			return fmt.Errorf("%s: %w", r.title(b), err)
		}
	}
	return nil
}

func (r *release) writePackage(b build) error {
	stage := filepath.Join(r.work, "packages", r.title(b))
	contents, err := r.packaged(b, stage)
	if err != nil {
		return err
	}
	script := func(name string) string { return filepath.Join(r.source, "testdata/release/package", name) }
	info := nfpm.WithDefaults(&nfpm.Info{
		Name: "apilet", Arch: nfpmArch(b), Platform: "linux", Version: r.version, VersionSchema: "semver",
		Section: "net", Priority: "optional", Maintainer: r.maintainer, MTime: r.date,
		Description: "Kubernetes-compatible API server in one program and one file\nUnmodified kubectl, client-go and controller-runtime talk to it. No pods run.",
		Overridables: nfpm.Overridables{
			Contents: contents,
			Scripts:  nfpm.Scripts{PostInstall: script("postinst"), PreRemove: script("prerm"), PostRemove: script("postrm")},
			Deb:      nfpm.Deb{Compression: "gzip"},
		},
	})
	if b.name != "" {
		info.Name += "-" + b.name
		info.Provides, info.Conflicts, info.Replaces = []string{"apilet"}, []string{"apilet"}, []string{"apilet"}
		info.Description += " This package is without etcd's client, for devices."
	}
	if err := nfpm.PrepareForPackager(info, "deb"); err != nil {
		return err
	}
	packager, err := nfpm.Get("deb")
	if err != nil {
		return err
	}
	return writeFile(filepath.Join(r.made, packager.ConventionalFileName(info)), func(w io.Writer) error { return packager.Package(info, w) })
}

// nfpmArch returns the name of the processor that is used by nfpm in the package name.
func nfpmArch(b build) string {
	if b.arch == "arm" {
		return "arm7" // build.go sets GOARM=7
	}
	return b.arch
}

// packaged writes the files of the package to a directory and returns their destinations.
func (r *release) packaged(b build, stage string) (files.Contents, error) {
	var contents files.Contents
	var failed error
	add := func(to, kind string, mode os.FileMode, content []byte) {
		from := filepath.Join(stage, to)
		if err := os.MkdirAll(filepath.Dir(from), 0o755); err != nil {
			failed = err
		} else if err := os.WriteFile(from, content, 0o644); err != nil {
			failed = err
		}
		contents = append(contents, &files.Content{Source: from, Destination: to, Type: kind, FileInfo: &files.ContentFileInfo{Mode: mode, MTime: r.date}})
	}
	read := func(name string) []byte {
		text, err := os.ReadFile(filepath.Join(r.source, name))
		if err != nil {
			failed = err
		}
		return text
	}
	program, err := os.ReadFile(b.path)
	if err != nil {
		return nil, err
	}
	unit, err := packagedUnit(string(read("docs/apilet.service")))
	if err != nil {
		return nil, err
	}
	add("/usr/bin/apilet", "", 0o755, program)
	contents = append(contents, &files.Content{Source: "apilet", Destination: "/usr/bin/kubectl-apilet", Type: files.TypeSymlink,
		FileInfo: &files.ContentFileInfo{MTime: r.date}})
	add("/usr/lib/systemd/system/apilet.service", "", 0o644, []byte(unit))
	add("/etc/default/apilet", files.TypeConfigNoReplace, 0o644, read("testdata/release/package/default"))
	add("/etc/logrotate.d/apilet", files.TypeConfigNoReplace, 0o644, read("testdata/release/package/logrotate"))
	add("/usr/share/doc/apilet/copyright", "", 0o644, r.thirdParties().content)
	add("/usr/share/doc/apilet/changelog.gz", "", 0o644, gzipped(read("CHANGELOG.md")))
	for _, page := range r.manual.pages {
		add("/usr/share/man/man1/"+page.name+".gz", "", 0o644, gzipped(page.content))
	}
	for i, folder := range []string{"zsh/vendor-completions/_apilet", "bash-completion/completions/apilet", "fish/vendor_completions.d/apilet.fish"} {
		add("/usr/share/"+folder, "", 0o644, r.manual.completions[i].content)
	}
	return contents, failed
}

var execStart = regexp.MustCompile(`(?m)^ExecStart=/usr/local/bin/apilet (.*\\\n)*.*\n`)

// packagedUnit changes the systemd unit to start the program of the package, with flags from a file
// that can be edited by the administrator.
func packagedUnit(unit string) (string, error) {
	if len(execStart.FindAllString(unit, -1)) != 1 {
		return "", fmt.Errorf("docs/apilet.service does not start /usr/local/bin/apilet in one way")
	}
	_, unit, _ = strings.Cut(unit, "\n") // remove the comment about its location and use
	return execStart.ReplaceAllLiteralString(unit, "EnvironmentFile=/etc/default/apilet\nExecStart=/usr/bin/apilet $APILET_FLAGS\n"), nil
}

func gzipped(text []byte) []byte {
	var b bytes.Buffer
	w, _ := gzip.NewWriterLevel(&b, gzip.BestCompression) // only fails for invalid levels
	_, _ = w.Write(text)                                  // writing to memory cannot fail
	_ = w.Close()
	return b.Bytes()
}
