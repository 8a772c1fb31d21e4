package main

// This file creates archives that contain a program, its documentation and the licenses. They are
// .zip files for Windows and .tar.gz files for other systems. Files are sorted by name, belong to
// root, and have the time of the commit.

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"time"
)

// A file is a file in an archive. Names of directories end with a slash.
type file struct {
	name    string
	mode    int64
	owner   int // user ID; 0 is root
	content []byte
}

func sortFiles(files []file) {
	slices.SortFunc(files, func(a, b file) int { return cmp.Compare(a.name, b.name) })
}

// under adds a directory to the names of the files.
func under(folder string, files []file) (moved []file) {
	for _, f := range files {
		f.name = path.Join(folder, f.name)
		moved = append(moved, f)
	}
	return moved
}

func (r *release) writeArchives(context.Context) error {
	for _, b := range r.builds {
		files, err := r.contents(b)
		if err != nil {
			return err
		}
		pack, end := writeTarGz, ".tar.gz"
		if b.os == "windows" {
			pack, end = writeZip, ".zip"
		}
		if err := writeFile(filepath.Join(r.made, r.title(b)+end), func(w io.Writer) error { return pack(w, files, r.date) }); err != nil {
			return err
		}
	}
	return nil
}

// contents returns a build's files.
func (r *release) contents(b build) ([]file, error) {
	program, err := os.ReadFile(b.path)
	if err != nil {
		return nil, err
	}
	files := []file{{name: b.program(), mode: 0o755, content: program}, r.thirdParties()}
	from := []string{"README.md", "CHANGELOG.md"}
	if b.os == "linux" {
		from = append(from, "docs/apilet.service")
	}
	for _, name := range from {
		text, err := os.ReadFile(filepath.Join(r.source, name))
		if err != nil {
			return nil, err
		}
		files = append(files, file{name: path.Base(name), mode: 0o644, content: text})
	}
	files = append(files, under("completions", r.manual.completions)...)
	if b.os != "windows" {
		files = append(files, under("man/man1", r.manual.pages)...)
	}
	files = under(r.title(b), files)
	sortFiles(files)
	return files, nil
}

// thirdParties returns the file with all notices.
func (r *release) thirdParties() file {
	return file{name: "LICENSES", mode: 0o644, content: r.notices.text(r.ownLicence())}
}

func writeTarGz(w io.Writer, files []file, date time.Time) error {
	zipped := gzip.NewWriter(w)
	if err := writeTar(zipped, files, date); err != nil {
		return err
	}
	return zipped.Close()
}

func writeTar(w io.Writer, files []file, date time.Time) error {
	t := tar.NewWriter(w)
	for _, f := range files {
		h := tar.Header{Name: f.name, Typeflag: tar.TypeReg, Mode: f.mode, Uid: f.owner, Gid: f.owner, Size: int64(len(f.content)), ModTime: date,
			Format: tar.FormatPAX}
		if f.name[len(f.name)-1] == '/' {
			h.Typeflag = tar.TypeDir
		}
		if err := t.WriteHeader(&h); err != nil {
			return err
		}
		if _, err := t.Write(f.content); err != nil {
			return err
		}
	}
	return t.Close()
}

func writeZip(w io.Writer, files []file, date time.Time) error {
	z := zip.NewWriter(w)
	for _, f := range files {
		h := zip.FileHeader{Name: f.name, Method: zip.Deflate, Modified: date}
		h.SetMode(os.FileMode(f.mode))
		part, err := z.CreateHeader(&h)
		if err != nil {
			return err
		}
		if _, err := part.Write(f.content); err != nil {
			return err
		}
	}
	return z.Close()
}

// writeFile creates a file with the written content. It is an error if the file exists.
func writeFile(name string, write func(io.Writer) error) error {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := write(f); err != nil {
		return err
	}
	return f.Close()
}

// writeSums writes the checksums for sha256sum -c.
func (r *release) writeSums(context.Context) error {
	entries, err := os.ReadDir(r.made)
	if err != nil {
		return err
	}
	var sums bytes.Buffer
	for _, e := range entries {
		content, err := os.ReadFile(filepath.Join(r.made, e.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(content), e.Name())
	}
	return os.WriteFile(filepath.Join(r.made, "SHA256SUMS"), sums.Bytes(), 0o644)
}
