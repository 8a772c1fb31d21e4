package main

// This file writes install.sh, which downloads an archive of the release and verifies its checksum.

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// installerTemplate is the script without version and URL.
const installerTemplate = "testdata/release/package/install.sh"

func (r *release) writeInstaller(context.Context) error {
	if strings.ContainsAny(r.url+r.version, "'\n") {
		return fmt.Errorf("%q cannot be quoted in install.sh", r.url)
	}
	template, err := os.ReadFile(filepath.Join(r.source, installerTemplate))
	if err != nil {
		return err
	}
	script := strings.NewReplacer("@VERSION@", r.version, "@URL@", strings.TrimSuffix(r.url, "/")).Replace(string(template))
	return writeFile(filepath.Join(r.made, "install.sh"), func(w io.Writer) error {
		_, err := io.WriteString(w, script)
		return err
	})
}
