package etcd

// This file restores etcd from a snapshot, as described in docs/scale.md, and from a backup that
// was created by a server.

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"apilet/apilettest"
)

// snapshot saves the contents of etcd.
func (c *cluster) snapshot() (file string) {
	c.t.Helper()
	content, err := c.client().Snapshot(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	defer content.Close()
	file = filepath.Join(c.t.TempDir(), "snapshot.db")
	out, err := os.Create(file)
	if err == nil {
		_, err = io.Copy(out, content)
	}
	if err != nil || out.Close() != nil {
		c.t.Fatal(err)
	}
	return file
}

// setting returns a flag of the member.
func (c *cluster) setting(flag string) *string {
	return &c.members[0].Args[slices.Index(c.members[0].Args, flag)+1]
}

// restore starts the only member from a snapshot.
func (c *cluster) restore(file string, more ...string) {
	c.t.Helper()
	c.members[0].Kill()
	dir := filepath.Join(c.t.TempDir(), "restored")
	args := append([]string{"tool", "etcdutl", "snapshot", "restore", file, "--data-dir", dir, "--name", "m0", "--initial-cluster", *c.setting("--initial-cluster"),
		"--initial-advertise-peer-urls", *c.setting("--initial-advertise-peer-urls"), "--initial-cluster-token", *c.setting("--initial-cluster-token")}, more...)
	if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
		c.t.Fatalf("etcdutl: %v\n%s", err, out)
	}
	*c.setting("--data-dir") = dir
	c.members[0].Launch()
}

// TestClientsMissNothingOfARestoredEtcd checks the clients after etcd was restored with
// --bump-revision and --mark-compacted. Clients must notice both the lost changes after the
// snapshot and the changes after the restore. This must hold for servers that keep running and for
// stopped ones, and for the same cluster token and another.
func TestClientsMissNothingOfARestoredEtcd(t *testing.T) {
	t.Parallel()
	for _, token := range []string{"the same", "another"} {
		t.Run(token, func(t *testing.T) {
			t.Parallel()
			c := startCluster(t, 1)
			running, stopped := c.aSecured(), c.aSecured()
			runSecured(t, running, stopped)
			client := running.informer()
			running.work("before", 20)
			saved := c.snapshot()
			lost := running.work("lost", 30)
			client.resume(running, lost)
			stopped.ends(t, 0, syscall.SIGTERM)
			if token == "another" {
				*c.setting("--initial-cluster-token") = "another"
			}
			c.restore(saved, "--bump-revision", "1000000", "--mark-compacted")
			apilettest.Until(t, "what is lost is gone", func() error {
				code, text, err := running.try("GET", maps+"/"+lost, "", patience)
				if code != 404 {
					return fmt.Errorf("%d %s %v", code, text, err)
				}
				return nil
			})
			running.ready()
			running.do(200, "GET", maps+"/before-last", "")
			running.expired(client.rev)
			last := running.work("after", 60)
			client.resume(running, last)
			client.wantSame(running, "a server that ran on", 410)
			stopped.Launch()
			stopped.readySecured()
			stopped.do(404, "GET", maps+"/"+lost, "")
			client.resume(stopped, stopped.work("later", 3))
			client.wantSame(stopped, "a server that was stopped", 0)
			if err := stopped.asked(running); err != nil {
				t.Errorf("the authority: %v", err)
			}
		})
	}
}

// TestBackupOfAServerOnEtcd replaces a lost etcd: a backup of a server is used as a file, and then
// migrated into an empty etcd with a raised revision.
func TestBackupOfAServerOnEtcd(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1)
	s := c.startServer()
	last := s.work("kept", 20)
	client := s.informer()
	copied := filepath.Join(t.TempDir(), "copy.db")
	if out, err := exec.Command(apilettest.Program(t), "backup", "--kubeconfig", s.KubeconfigFile, copied).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	s.ends(t, 0, syscall.SIGTERM)
	file := startOnFile(t, copied)
	file.do(200, "GET", maps+"/"+last, "")
	file.expired(client.rev)
	client.resume(file, file.work("in-a-file", 3))
	client.wantSame(file, "in a file", 410)
	file.ends(t, 0, syscall.SIGTERM)

	empty := startCluster(t, 1)
	_, problem := empty.migrate(copied)
	_, bump, refused := strings.Cut(problem, "--bump-revision ")
	if bump, _, _ = strings.Cut(bump, " "); !refused {
		t.Fatal(problem)
	}
	empty.restore(empty.snapshot(), "--bump-revision", bump, "--mark-compacted")
	if said, problem := empty.migrate(copied); problem != "" {
		t.Fatalf("%s%s", said, problem)
	}
	on := empty.startServer()
	on.do(200, "GET", maps+"/"+last, "")
	on.expired(client.rev)
	client.resume(on, on.work("in-etcd", 3))
	client.wantSame(on, "in another etcd", 410)
}
