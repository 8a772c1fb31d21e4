package main

// This file creates the container image from scratch: the program, the notices, a directory for
// data, and one for temporary files. The image is an OCI layout in a tar file. It contains an image
// for each Linux platform.
//
//	skopeo copy --all oci-archive:apilet-v0.1.0-image.tar docker://registry.example.com/apilet:v0.1.0
//	podman load -i apilet-v0.1.0-image.tar

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const nobody = 65532 // the conventional user ID in images without a base

// writeImage creates the file if there is a full program for Linux.
func (r *release) writeImage(context.Context) error {
	list := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	images := 0
	for _, b := range r.builds {
		if b.os != "linux" || b.name != "" {
			continue
		}
		image, err := r.image(b)
		if err != nil {
			return err
		}
		list = mutate.AppendManifests(list, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: platform(b)}})
		images++
	}
	if images == 0 {
		return nil
	}
	names := map[string]string{"org.opencontainers.image.ref.name": r.version, "io.containerd.image.name": "localhost/apilet:" + r.version}
	all := mutate.AppendManifests(mutate.IndexMediaType(empty.Index, types.OCIImageIndex),
		mutate.IndexAddendum{Add: list, Descriptor: v1.Descriptor{Annotations: names}})
	folder := filepath.Join(r.work, "image")
	if _, err := layout.Write(folder, all); err != nil {
		return err
	}
	files, err := filesIn(folder)
	if err != nil {
		return err
	}
	return writeFile(filepath.Join(r.made, "apilet-"+r.version+"-image.tar"), func(w io.Writer) error { return writeTar(w, files, r.date) })
}

func platform(b build) *v1.Platform {
	p := &v1.Platform{OS: b.os, Architecture: b.arch}
	switch b.arch {
	case "arm":
		p.Variant = "v7"
	case "arm64":
		p.Variant = "v8"
	}
	return p
}

// image returns the image for a build.
func (r *release) image(b build) (v1.Image, error) {
	program, err := os.ReadFile(b.path)
	if err != nil {
		return nil, err
	}
	notices := r.thirdParties()
	var content bytes.Buffer
	if err := writeTar(&content, []file{
		{name: "apilet", mode: 0o755, content: program},
		{name: notices.name, mode: notices.mode, content: notices.content},
		{name: "tmp/", mode: 0o1777},
		{name: "var/", mode: 0o755},
		{name: "var/lib/", mode: 0o755},
		{name: "var/lib/apilet/", mode: 0o700, owner: nobody},
	}, r.date); err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content.Bytes())), nil }
	layer, err := tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer), tarball.WithCompressionLevel(gzip.DefaultCompression))
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err = mutate.Append(image, mutate.Addendum{Layer: layer, MediaType: types.OCILayer,
		History: v1.History{Created: v1.Time{Time: r.date}, CreatedBy: "apilet " + r.version}})
	if err != nil {
		return nil, err
	}
	return mutate.ConfigFile(image, r.imageConfig(b, image))
}

// imageConfig sets the default command and user of a container.
func (r *release) imageConfig(b build, image v1.Image) *v1.ConfigFile {
	c, err := image.ConfigFile()
	if err != nil {
		panic(err) // cannot happen, because the image was created above
	}
	c = c.DeepCopy()
	p := platform(b)
	c.OS, c.Architecture, c.Variant, c.Created = p.OS, p.Architecture, p.Variant, v1.Time{Time: r.date}
	c.Config = v1.Config{
		User:         "65532:65532",
		Entrypoint:   []string{"/apilet"},
		Cmd:          []string{"--listen=0.0.0.0:6443", "--data=/var/lib/apilet/apilet.db", "--kubeconfig=/var/lib/apilet/admin.kubeconfig"},
		WorkingDir:   "/var/lib/apilet",
		Volumes:      map[string]struct{}{"/var/lib/apilet": {}},
		ExposedPorts: map[string]struct{}{"6443/tcp": {}},
		Labels: map[string]string{
			"org.opencontainers.image.title":    "apilet",
			"org.opencontainers.image.version":  r.version,
			"org.opencontainers.image.revision": r.commit,
			"org.opencontainers.image.created":  r.date.Format(time.RFC3339),
		},
	}
	return c
}

// filesIn returns the files and directories in a directory for an archive.
func filesIn(folder string) (files []file, err error) {
	err = filepath.WalkDir(folder, func(name string, e fs.DirEntry, err error) error {
		if err != nil || name == folder {
			return err
		}
		rel, err := filepath.Rel(folder, name)
		if err != nil {
			return err
		}
		if e.IsDir() {
			files = append(files, file{name: filepath.ToSlash(rel) + "/", mode: 0o755})
			return nil
		}
		content, err := os.ReadFile(name)
		files = append(files, file{name: filepath.ToSlash(rel), mode: 0o644, content: content})
		return err
	})
	sortFiles(files)
	return files, err
}
