package main

// This file writes an SBOM for each program. It is a CycloneDX document that lists the modules of
// the program.

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/google/uuid"
)

func (r *release) writeSBOMs(context.Context) error {
	for _, b := range r.builds {
		bom, err := r.sbom(b)
		if err != nil {
			return err
		}
		var text bytes.Buffer
		if err := cdx.NewBOMEncoder(&text, cdx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(bom, cdx.SpecVersion1_6); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(r.made, r.title(b)+".cdx.json"), text.Bytes(), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func (r *release) sbom(b build) (*cdx.BOM, error) {
	program, err := os.ReadFile(b.path)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(program)
	self := cdx.Component{BOMRef: "pkg:golang/apilet@" + r.version, Type: cdx.ComponentTypeApplication, Name: "apilet", Version: r.version,
		PackageURL: "pkg:golang/apilet@" + r.version + "?goos=" + b.os + "&goarch=" + b.arch,
		Hashes:     &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(sum[:])}},
		Properties: &[]cdx.Property{{Name: "go:version", Value: b.info.GoVersion}, {Name: "go:tags", Value: b.tags}, {Name: "vcs.revision", Value: r.commit}}}
	std := debug.Module{Path: "std", Version: strings.TrimPrefix(b.info.GoVersion, "go")}
	var components []cdx.Component
	var needed []string
	for _, dep := range append([]*debug.Module{&std}, b.info.Deps...) {
		if dep.Replace != nil {
			dep = dep.Replace
		}
		m := r.notices.modules[dep.Path+"@"+dep.Version]
		if m == nil {
			return nil, fmt.Errorf("%s has %s@%s, of which no licence was collected", r.title(b), dep.Path, dep.Version)
		}
		c := component(dep, m)
		components, needed = append(components, c), append(needed, c.BOMRef)
	}
	bom := cdx.NewBOM()
	bom.SerialNumber = uuid.NewSHA1(uuid.NameSpaceURL, sum[:]).URN()
	bom.Metadata = &cdx.Metadata{Timestamp: r.date.Format(time.RFC3339), Component: &self}
	bom.Components = &components
	bom.Dependencies = &[]cdx.Dependency{{Ref: self.BOMRef, Dependencies: &needed}}
	return bom, nil
}

func component(dep *debug.Module, m *module) cdx.Component {
	url := "pkg:golang/" + dep.Path + "@" + dep.Version
	c := cdx.Component{BOMRef: url, PackageURL: url, Type: cdx.ComponentTypeLibrary, Name: dep.Path, Version: dep.Version,
		Licenses: &cdx.Licenses{{Expression: strings.Join(m.licences, " AND ")}}}
	if len(m.licences) == 1 {
		c.Licenses = &cdx.Licenses{{License: &cdx.License{ID: m.licences[0]}}}
	}
	if dep.Sum != "" {
		// hash of the module's files, as it is stored in go.sum
		c.Properties = &[]cdx.Property{{Name: "go:sum", Value: dep.Sum}}
	}
	return c
}
