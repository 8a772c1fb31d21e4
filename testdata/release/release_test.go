package main

// This file creates a release of the current commit twice, in different directories, and uses it
// like an administrator. It unpacks the archive, the image and the package, starts the programs,
// and reads the other files. starts the programs, and reads the accompanying files. With
// APILET_RELEASED=FOLDER the archive's files are kept there.

import (
	"archive/tar"
	"archive/zip"
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"debug/buildinfo"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/blakesmith/ar"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"apilet/apilettest"
)

const tag = "v0.9.0-test.1"

func TestRelease(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("image and package are Linux'")
	}
	repo := cloneWithTag(t)
	first, second := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "deeper", "b")
	must(t, os.MkdirAll(filepath.Dir(second), 0o755))
	made(t, options{repo: repo, ref: tag, out: first})
	made(t, options{repo: cloneOf(t, repo), ref: "refs/tags/" + tag, out: second})
	t.Run("twice the same bytes", func(t *testing.T) { wantSame(t, first, second) })
	t.Run("checksums", func(t *testing.T) { wantSums(t, first) })

	t.Run("install script", func(t *testing.T) { wantInstalls(t, repo, first) })

	title := "apilet-" + tag + "-linux-" + runtime.GOARCH
	unpacked := unpack(t, filepath.Join(first, title+".tar.gz"), cmp.Or(os.Getenv("APILET_RELEASED"), t.TempDir()))
	folder := filepath.Join(unpacked, title)
	program := filepath.Join(folder, "apilet")
	t.Run("static", func(t *testing.T) { wantStatic(t, program) })
	t.Run("version", func(t *testing.T) { wantVersion(t, repo, program, "grpcnotrace") })
	t.Run("serves", func(t *testing.T) {
		dir := t.TempDir()
		s := apilettest.New(t, program, "--listen", "127.0.0.1:0", "--data", dir+"/a.db", "--cert-dir", dir+"/certs", "--kubeconfig", dir+"/kubeconfig")
		s.KubeconfigFile = dir + "/kubeconfig"
		wantServes(t, s)
	})
	t.Run("man pages", func(t *testing.T) { wantPages(t, program, filepath.Join(folder, "man/man1")) })
	t.Run("completions", func(t *testing.T) { wantCompletions(t, filepath.Join(folder, "completions")) })
	t.Run("notices", func(t *testing.T) { wantNotices(t, program, filepath.Join(folder, "LICENSES")) })
	t.Run("SBOM", func(t *testing.T) { wantBOM(t, program, filepath.Join(first, title+".cdx.json")) })
	t.Run("image", func(t *testing.T) { wantImage(t, program, filepath.Join(first, "apilet-"+tag+"-image.tar")) })
	t.Run("package", func(t *testing.T) {
		wantPackage(t, program, filepath.Join(first, "apilet_0.9.0~test.1_"+debianArch()+".deb"))
	})
}

func debianArch() string {
	if runtime.GOARCH == "arm" {
		return "armhf"
	}
	return runtime.GOARCH
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// read returns the content of a file.
func read(t *testing.T, name string) string {
	t.Helper()
	content, err := os.ReadFile(name)
	must(t, err)
	return string(content)
}

// run returns the output of a command.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := output(exec.Command(name, args...))
	must(t, err)
	return out
}

// ---- Creating the release ----

// cloneWithTag clones this repository and tags the commit, so that this repository is unchanged.
func cloneWithTag(t *testing.T) string {
	if _, err := git(t.Context(), ".", "rev-parse", "--verify", "HEAD"); err != nil {
		t.Skip("no git repository, so nothing to release: ", err)
	}
	top, err := git(t.Context(), ".", "rev-parse", "--show-toplevel")
	must(t, err)
	clone := cloneOf(t, top)
	run(t, "git", "-C", clone, "tag", tag)
	return clone
}

func cloneOf(t *testing.T, repo string) string {
	t.Helper()
	clone := filepath.Join(t.TempDir(), "repo")
	run(t, "git", "clone", "--quiet", "--shared", repo, clone)
	return clone
}

func made(t *testing.T, o options) {
	t.Helper()
	o.log, o.maintainer = t.Output(), "somebody <somebody@localhost>"
	must(t, o.choose("linux/"+runtime.GOARCH, "full,noetcd"))
	must(t, makeRelease(t.Context(), o))
}

func wantSame(t *testing.T, a, b string) {
	files, others := names(t, a), names(t, b)
	if !slices.Equal(files, others) || len(files) != 9 {
		t.Fatalf("%q and %q, want twice the same nine", files, others)
	}
	for _, name := range files {
		if read(t, filepath.Join(a, name)) != read(t, filepath.Join(b, name)) {
			t.Errorf("%s differs", name)
		}
	}
}

func names(t *testing.T, folder string) (names []string) {
	entries, err := os.ReadDir(folder)
	must(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func wantSums(t *testing.T, folder string) {
	lines := strings.Split(strings.TrimSpace(read(t, filepath.Join(folder, "SHA256SUMS"))), "\n")
	for _, line := range lines {
		sum, name, _ := strings.Cut(line, "  ")
		if got := fmt.Sprintf("%x", sha256.Sum256([]byte(read(t, filepath.Join(folder, name))))); got != sum {
			t.Errorf("%s has %s, not %s", name, got, sum)
		}
	}
	if len(lines) != len(names(t, folder))-1 {
		t.Errorf("%d checksums of %q", len(lines), names(t, folder))
	}
}

// ---- The program ----

// unpack unpacks a .tar.gz or .tar file and returns the directory.
func unpack(t *testing.T, archive, folder string) string {
	t.Helper()
	f, err := os.Open(archive)
	must(t, err)
	defer f.Close()
	var from io.Reader = bufio.NewReader(f)
	if strings.HasSuffix(archive, ".gz") {
		from, err = gzip.NewReader(from)
		must(t, err)
	}
	untar(t, from, folder)
	return folder
}

func untar(t *testing.T, from io.Reader, folder string) (headers map[string]*tar.Header) {
	t.Helper()
	headers = map[string]*tar.Header{}
	for all := tar.NewReader(from); ; {
		h, err := all.Next()
		if errors.Is(err, io.EOF) {
			return headers
		}
		must(t, err)
		name := filepath.Join(folder, filepath.Clean("/"+h.Name))
		headers[filepath.Clean("/"+h.Name)] = h
		switch mode := h.FileInfo().Mode(); h.Typeflag {
		case tar.TypeDir:
			must(t, os.MkdirAll(name, 0o755))
			must(t, os.Chmod(name, mode))
		case tar.TypeSymlink:
			must(t, os.Symlink(h.Linkname, name))
		default:
			must(t, os.MkdirAll(filepath.Dir(name), 0o755))
			out, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, mode.Perm())
			must(t, err)
			_, err = io.Copy(out, all)
			must(t, errors.Join(err, out.Close()))
		}
		if os.Getuid() == 0 {
			must(t, os.Lchown(name, h.Uid, h.Gid))
		}
	}
}

func wantStatic(t *testing.T, program string) {
	f, err := elf.Open(program)
	must(t, err)
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
			t.Errorf("it asks for a loader: %s", p.Type)
		}
	}
}

func wantVersion(t *testing.T, repo, program, tags string) {
	t.Helper()
	commit := run(t, "git", "-C", repo, "rev-parse", "HEAD")
	want := regexp.MustCompile(`^apilet ` + regexp.QuoteMeta(tag) + `\ncommit ` + commit + ` of \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ\nbuilt by ` +
		`go1\S+ for linux/\w+ with -tags ` + tags + `\ndata file format \d+\nKubernetes v1\.\d+\.\d+\S*$`)
	if got := run(t, program, "version"); !want.MatchString(got) {
		t.Errorf("it says %q, want %s", got, want)
	}
}

// wantServes starts a server, stores an object, and stops the server.
func wantServes(t *testing.T, s *apilettest.Server) {
	t.Helper()
	must(t, s.Run())
	defer func() {
		s.Terminate(os.Interrupt)
		if state := s.Process().State(); !state.Success() {
			t.Errorf("it ended with %v", state)
		}
	}()
	kubeconfig := s.KubeconfigFile
	kubectl, err := exec.LookPath("kubectl")
	if err != nil {
		wantAnswers(t, kubeconfig)
		return
	}
	run(t, kubectl, "--kubeconfig", kubeconfig, "create", "configmap", "hello", "--from-literal=a=b")
	if got := run(t, kubectl, "--kubeconfig", kubeconfig, "get", "configmap", "hello", "-o", "jsonpath={.data.a}"); got != "b" {
		t.Errorf("it has stored %q", got)
	}
}

// wantAnswers sends a request to a server without kubectl. It does not verify the certificate.
func wantAnswers(t *testing.T, kubeconfig string) {
	url := regexp.MustCompile(`"server": "(.*)"`).FindStringSubmatch(read(t, kubeconfig))
	if url == nil {
		t.Fatal("no server in the kubeconfig")
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	// used for a server that was started by this test
	transport.TLSClientConfig = &tls.Config{InsecureSkipVerify: true}
	answer, err := (&http.Client{Transport: transport, Timeout: time.Minute}).Get(url[1] + "/readyz")
	must(t, err)
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		t.Errorf("/readyz: %s", answer.Status)
	}
}

// ---- Accompanying files ----

var helpFlag = regexp.MustCompile(`(?m)^  (--?[\w-]+)`)

func wantPages(t *testing.T, program, folder string) {
	pages := names(t, folder)
	for _, name := range pages {
		command := strings.TrimPrefix(strings.TrimSuffix(name, ".1"), "apilet")
		help := run(t, program, strings.Fields("help "+strings.TrimPrefix(command, "-"))...)
		page := read(t, filepath.Join(folder, name))
		flags := helpFlag.FindAllStringSubmatch(help, -1)
		for _, flag := range flags {
			if !strings.Contains(page, ".TP\n\\fB"+roff(flag[1])+"\\fR") {
				t.Errorf("%s does not have %s", name, flag[1])
			}
		}
		if command == "" && len(flags) < 50 {
			t.Errorf("the help has %d flags", len(flags))
		}
		if man, err := exec.LookPath("man"); err == nil {
			cmd := exec.Command(man, "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", filepath.Join(folder, name))
			var complaints strings.Builder
			cmd.Stderr = &complaints
			// the program may exist without groff
			if err := cmd.Run(); err == nil && complaints.Len() > 0 {
				t.Errorf("%s: %s", name, complaints.String())
			}
		}
	}
	if !slices.Contains(pages, "apilet.1") || !slices.Contains(pages, "apilet-backup.1") || len(pages) < 10 {
		t.Errorf("there are %q", pages)
	}
}

func wantCompletions(t *testing.T, folder string) {
	ends := map[string]string{"apilet.bash": "complete -o default -F _apilet apilet", "_apilet": "#compdef apilet", "apilet.fish": "complete -c apilet"}
	for name, want := range ends {
		if !strings.Contains(read(t, filepath.Join(folder, name)), want) {
			t.Errorf("%s has no %q", name, want)
		}
	}
	if bash, err := exec.LookPath("bash"); err == nil {
		run(t, bash, "-n", filepath.Join(folder, "apilet.bash"))
	}
}

// dependencies returns all modules in the build information of the program.
func dependencies(t *testing.T, program string) map[string]bool {
	info, err := buildinfo.ReadFile(program)
	must(t, err)
	all := map[string]bool{"std@" + strings.TrimPrefix(info.GoVersion, "go"): true}
	for _, dep := range info.Deps {
		all[dep.Path+"@"+dep.Version] = true
	}
	return all
}

func wantNotices(t *testing.T, program, file string) {
	text := read(t, file)
	for name := range dependencies(t, program) {
		if !strings.Contains(text, "\n  "+name+" ") || !strings.Contains(text, "\n"+name+" ") {
			t.Errorf("there is no notice of %s", name)
		}
	}
	wants := []string{"Apache License", "THE SOFTWARE IS PROVIDED", "no licence has been chosen yet", "k8s.io/client-go@", "third_party/forked/golang/LICENSE\n"}
	for _, want := range wants {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing", want)
		}
	}
}

func wantBOM(t *testing.T, program, file string) {
	var bom cdx.BOM
	must(t, cdx.NewBOMDecoder(strings.NewReader(read(t, file)), cdx.BOMFileFormatJSON).Decode(&bom))
	got := map[string]bool{}
	for _, c := range *bom.Components {
		got[c.Name+"@"+c.Version] = true
		if c.Licenses == nil || len(*c.Licenses) == 0 || c.PackageURL == "" {
			t.Errorf("%s without licence, or without URL", c.Name)
		}
	}
	if want := dependencies(t, program); !maps.Equal(got, want) {
		t.Errorf("components %v, want %v", got, want)
	}
	if sum := fmt.Sprintf("%x", sha256.Sum256([]byte(read(t, program)))); (*bom.Metadata.Component.Hashes)[0].Value != sum {
		t.Error("it is of another program")
	}
}

// ---- Image and package ----

func wantImage(t *testing.T, program, file string) {
	path, err := layout.FromPath(unpack(t, file, t.TempDir()))
	must(t, err)
	top, err := path.ImageIndex()
	must(t, err)
	manifest, err := top.IndexManifest()
	must(t, err)
	if len(manifest.Manifests) != 1 || manifest.Manifests[0].Annotations["org.opencontainers.image.ref.name"] != tag {
		t.Fatalf("the layout has %+v", manifest.Manifests)
	}
	list, err := top.ImageIndex(manifest.Manifests[0].Digest)
	must(t, err)
	must(t, validate.Index(list))
	platforms, err := list.IndexManifest()
	must(t, err)
	if p := platforms.Manifests[0].Platform; len(platforms.Manifests) != 1 || p.OS != "linux" || p.Architecture != runtime.GOARCH {
		t.Fatalf("the list has %+v", platforms.Manifests)
	}
	image, err := list.Image(platforms.Manifests[0].Digest)
	must(t, err)
	config, err := image.ConfigFile()
	must(t, err)
	root := t.TempDir()
	must(t, os.Chmod(root, 0o755))
	must(t, os.Chmod(filepath.Dir(root), 0o755)) // for a user without rights
	content := mutate.Extract(image)
	defer content.Close()
	headers := untar(t, content, root)
	if h := headers["/var/lib/apilet"]; h == nil || h.Uid != nobody || h.Mode != 0o700 {
		t.Errorf("the folder for data is %+v", h)
	}
	if read(t, filepath.Join(root, "apilet")) != read(t, program) || read(t, filepath.Join(root, "LICENSES")) == "" {
		t.Error("it has another program than the archive")
	}
	t.Run("serves", func(t *testing.T) { wantContainerServes(t, config.Config, root) })
}

// wantContainerServes runs the image's command. If the test has the rights, it runs it as the
// image's user with only the image's files.
func wantContainerServes(t *testing.T, c v1.Config, root string) {
	if c.User != "65532:65532" {
		t.Errorf("it runs as %q", c.User)
	}
	args := slices.Concat(c.Entrypoint, c.Cmd)
	listen := slices.Index(args, "--listen=0.0.0.0:6443")
	if listen < 0 {
		t.Fatalf("it runs %q", args)
	}
	args[listen] = "--listen=127.0.0.1:0"
	s := apilettest.New(t, args[0], args[1:]...)
	s.KubeconfigFile = filepath.Join(root, "var/lib/apilet/admin.kubeconfig")
	if attr := confined(root, nobody); attr != nil {
		s.Dir, s.Env, s.Attr = c.WorkingDir, c.Env, attr
		wantServes(t, s)
		return
	}
	t.Log("not root: run outside of the image's files")
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "/var/lib/apilet", filepath.Join(root, "var/lib/apilet"))
	}
	s.Path, s.Args = filepath.Join(root, args[0]), args[1:]
	wantServes(t, s)
}

func wantPackage(t *testing.T, program, file string) {
	f, err := os.Open(file)
	must(t, err)
	defer f.Close()
	control, root := t.TempDir(), t.TempDir()
	members := map[string]map[string]*tar.Header{}
	for all := ar.NewReader(f); ; {
		h, err := all.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		name := strings.TrimSuffix(h.Name, "/")
		if !strings.HasSuffix(name, ".tar.gz") {
			continue
		}
		unzipped, err := gzip.NewReader(all)
		must(t, err)
		members[name] = untar(t, unzipped, map[string]string{"control.tar.gz": control, "data.tar.gz": root}[name])
	}
	text := read(t, filepath.Join(control, "control"))
	for _, want := range []string{"Package: apilet\n", "Version: 0.9.0~test.1\n", "Architecture: " + debianArch() + "\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("control has no %q:\n%s", want, text)
		}
	}
	if got := read(t, filepath.Join(control, "conffiles")); got != "/etc/default/apilet\n/etc/logrotate.d/apilet\n" {
		t.Errorf("conffiles are %q", got)
	}
	for _, name := range []string{"postinst", "prerm", "postrm"} {
		run(t, "sh", "-n", filepath.Join(control, name))
	}
	for name, h := range members["data.tar.gz"] {
		if h.Uid != 0 || h.Gid != 0 || h.Mode&0o022 != 0 && h.Typeflag != tar.TypeSymlink {
			t.Errorf("%s belongs to %d:%d, %o", name, h.Uid, h.Gid, h.Mode)
		}
	}
	if read(t, filepath.Join(root, "usr/bin/apilet")) != read(t, program) {
		t.Error("it has another program than the archive")
	}
	wantUnit(t, root)
	wantFlags(t, root)
	if deb, err := exec.LookPath("dpkg-deb"); err == nil {
		run(t, deb, "--info", file)
	}
	for _, name := range []string{"share/man/man1/apilet.1.gz", "share/bash-completion/completions/apilet", "share/doc/apilet/copyright", "bin/kubectl-apilet"} {
		if _, err := os.Stat(filepath.Join(root, "usr", name)); errors.Is(err, fs.ErrNotExist) {
			t.Errorf("there is no %s", name)
		}
	}
}

// wantUnit compares the unit of the package with the unit in the documents. The commands may be
// different, but the options for hardening must be the same.
func wantUnit(t *testing.T, root string) {
	settings := func(text string) (lines []string) {
		for _, line := range strings.Split(strings.ReplaceAll(text, "\\\n", " "), "\n") {
			if !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, "ExecStart=") && line != "EnvironmentFile=/etc/default/apilet" {
				lines = append(lines, line)
			}
		}
		return lines
	}
	unit := read(t, filepath.Join(root, "usr/lib/systemd/system/apilet.service"))
	if got, want := settings(unit), settings(read(t, "../../docs/apilet.service")); !slices.Equal(got, want) {
		t.Errorf("the unit is %q, the document's %q", got, want)
	}
	if !strings.Contains(unit, "\nExecStart=/usr/bin/apilet $APILET_FLAGS\n") || strings.Count(unit, "ExecStart=") != 1 {
		t.Errorf("it starts otherwise:\n%s", unit)
	}
	if !strings.Contains(read(t, "../../docs/devices.md"), read(t, filepath.Join(root, "etc/logrotate.d/apilet"))) {
		t.Error("devices.md rotates the audit log in another way")
	}
}

// wantFlags starts the package's program with the flags of /etc/default/apilet.
func wantFlags(t *testing.T, root string) {
	found := regexp.MustCompile(`(?m)^APILET_FLAGS="(.*)"$`).FindStringSubmatch(read(t, filepath.Join(root, "etc/default/apilet")))
	if found == nil || !strings.Contains(found[1], "--listen 127.0.0.1:6443 ") {
		t.Fatalf("the flags are %q", found)
	}
	for _, folder := range []string{"var/lib/apilet", "var/log/apilet"} { // created by systemd
		must(t, os.MkdirAll(filepath.Join(root, folder), 0o700))
	}
	flags := strings.NewReplacer("127.0.0.1:6443", "127.0.0.1:0", " /var/", " "+root+"/var/").Replace(found[1])
	s := apilettest.New(t, filepath.Join(root, "usr/bin/apilet"), strings.Fields(flags)...)
	s.KubeconfigFile = filepath.Join(root, "var/lib/apilet/admin.kubeconfig")
	wantServes(t, s)
	if _, err := os.Stat(filepath.Join(root, "var/log/apilet/audit.log")); err != nil {
		t.Error(err)
	}
}

// ---- Errors ----

func TestWrongRequestsMakeNothing(t *testing.T) {
	t.Parallel()
	for _, list := range [][2]string{{"linux", "full"}, {"plan9/amd64", "full"}, {"", "full"}, {"linux/amd64", "half"}} {
		if err := (&options{}).choose(list[0], list[1]); err == nil {
			t.Errorf("%q is taken", list)
		}
	}
	dir := t.TempDir()
	for _, o := range []options{{repo: "."}, {repo: ".", out: dir}, {repo: ".", ref: "--help", out: dir + "/a"}, {repo: ".", ref: "no-such-tag", out: dir + "/a"},
		{repo: dir + "/none", ref: "HEAD", out: dir + "/a"}} {
		o.log = io.Discard
		if err := makeRelease(context.Background(), o); err == nil {
			t.Errorf("%+v is made", o)
		}
	}
	if left := names(t, dir); len(left) > 0 {
		t.Errorf("%q are left", left)
	}
}

func TestEachProcessorHasAPackageOfItsOwn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	work := filepath.Join(dir, "work")
	source, err := filepath.Abs("../..")
	must(t, err)
	r := &release{options: options{maintainer: "a <a@localhost>", log: io.Discard}, source: source, work: work, made: filepath.Join(dir, "made"), version: tag,
		date: time.Unix(1800000000, 0).UTC(), notices: &notices{}, manual: &manual{completions: make([]file, 3)}}
	must(t, os.Mkdir(r.made, 0o755))
	program := filepath.Join(dir, "program")
	must(t, os.WriteFile(program, []byte("program"), 0o755))
	for _, arch := range []string{"amd64", "arm64", "arm", "riscv64"} {
		for _, f := range allFlavours {
			r.builds = append(r.builds, build{target: target{"linux", arch}, flavour: f, path: program})
		}
	}
	must(t, r.writePackages(t.Context()))
	var want []string
	for _, name := range []string{"apilet-noetcd", "apilet"} {
		for _, arch := range []string{"amd64", "arm64", "armhf", "riscv64"} {
			want = append(want, name+"_0.9.0~test.1_"+arch+".deb")
		}
	}
	if got := names(t, r.made); !slices.Equal(got, want) {
		t.Errorf("packages %q, want %q", got, want)
	}
}

// TestZipHasItsFilesAndTheSameBytes checks the archive for Windows, which the other tests do not
// create on Linux.
func TestZipHasItsFilesAndTheSameBytes(t *testing.T) {
	t.Parallel()
	date := time.Date(2026, 11, 26, 14, 7, 36, 0, time.UTC)
	files := []file{{name: "a/apilet.exe", mode: 0o755, content: []byte("program")}, {name: "a/completions/apilet.fish", mode: 0o644, content: []byte("text")}}
	var one, two bytes.Buffer
	must(t, writeZip(&one, files, date))
	must(t, writeZip(&two, files, date))
	if !bytes.Equal(one.Bytes(), two.Bytes()) {
		t.Error("the same files, other bytes")
	}
	archive, err := zip.NewReader(bytes.NewReader(one.Bytes()), int64(one.Len()))
	must(t, err)
	for i, f := range archive.File {
		content, err := fs.ReadFile(archive, f.Name)
		must(t, err)
		if want := files[i]; f.Name != want.name || string(content) != string(want.content) || int64(f.Mode()) != want.mode || !f.Modified.Equal(date) {
			t.Errorf("%s, %s, %v, %q", f.Name, f.Mode(), f.Modified, content)
		}
	}
	if len(archive.File) != len(files) {
		t.Errorf("it has %d files", len(archive.File))
	}
}

func TestANoticeIsToldByItsName(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{"LICENSE": true, "LICENSE.txt": true, "license.md": true, "LICENSE.libyaml": true, "COPYING": true, "NOTICE": true,
		"PATENTS": true, "license.go": false, "licenses": false, "NOTICE.go": false, "unlicense": false} {
		if noticeFile.MatchString(name) != want {
			t.Errorf("%s: %v", name, !want)
		}
	}
}

func TestAModuleWithoutAKnownLicenceEndsTheRelease(t *testing.T) {
	t.Parallel()
	for licences, want := range map[string]string{"": "no licence", "MIT,AGPL-3.0": "AGPL-3.0", "MIT,ISC": ""} {
		n := notices{modules: map[string]*module{"a@v1": {name: "a@v1", licences: strings.FieldsFunc(licences, func(r rune) bool { return r == ',' })}}}
		if err := n.check(); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", licences, err)
		}
	}
}
