package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// If the files of a server are in a git work tree, the log reports once which of them `git add -A`
// would commit. It must not report files that git ignores.
func TestStartInAWorkTreeWarnsOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, ".git"), 0o755); err != nil {
		t.Fatal(err)
	}
	const warning = "files with secrets lie in a git work tree"
	s := startTest(t, onFile(filepath.Join(dir, "a.db")), "--cert-dir="+filepath.Join(dir, "certs"))
	said := s.log.String()
	if strings.Count(said, warning) != 1 {
		t.Fatalf("the log is\n%s", said)
	}
	for _, name := range []string{`a.db"`, `a.db-wal"`, `ca.key"`} {
		if !strings.Contains(said, name) {
			t.Errorf("%s is not in\n%s", name, said)
		}
	}
	s.halt()
	if err := os.WriteFile(filepath.Join(dir, ".gitignore"), []byte("*.db\n*.db-wal\ncerts/\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	s.start()
	if said := strings.TrimPrefix(s.log.String(), said); strings.Contains(said, warning) {
		t.Errorf("with all ignored, the log is\n%s", said)
	}
}
