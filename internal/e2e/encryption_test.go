package e2e

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"apilet/internal/apitest"
)

// encryptionFile writes a configuration of encryption at rest. resources and providers are YAML.
func encryptionFile(t *testing.T, path, resources string, providers ...string) {
	t.Helper()
	text := "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: " + resources + "\n  providers:\n  - " +
		strings.Join(providers, "\n  - ") + "\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func secretbox(name string, of byte) string {
	return fmt.Sprintf("secretbox: {keys: [{name: %s, secret: %s}]}", name, base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{of}, 32)))
}

// leaks returns the files in a directory tree in which any of the texts is found.
func leaks(t *testing.T, dir string, texts ...string) (found []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		for _, text := range texts {
			if bytes.Contains(b, []byte(text)) {
				found = append(found, entry.Name()+" has "+text)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// TestAThiefLearnsNothingOfWhatIsEncrypted checks that no file contains the text of a Secret, after
// any request, kill or command. If encryption is disabled, the files must contain it. This verifies
// the test itself.
func TestAThiefLearnsNothingOfWhatIsEncrypted(t *testing.T) {
	t.Parallel()
	const value, member = "planted-value-7Kq", "planted-member-9Xw"
	inJSON := base64.StdEncoding.EncodeToString([]byte(value))
	for _, on := range []bool{true, false} {
		keys, dir := filepath.Join(t.TempDir(), "keys.yaml"), t.TempDir()
		encryptionFile(t, keys, "[secrets, widgets.example.com]", secretbox("one", 1), "identity: {}")
		flags := []string{onFile(filepath.Join(dir, "data.db")), "--history=1h", "--compaction-interval=1h"}
		if on {
			flags = append(flags, "--encryption-provider-config="+keys)
		}
		s := startTest(t, flags...)
		look := func(when string) {
			t.Helper()
			if found := leaks(t, dir, value, inJSON, inJSON[:12], member); (len(found) > 0) == on {
				t.Errorf("%s, encrypted %v: %q", when, on, found)
			}
		}
		const secrets = "/api/v1/namespaces/default/secrets"
		doc := fmt.Sprintf(`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"s","annotations":{"last":"{\"data\":{\"%[1]s\":\"%[2]s\"}}"}},"data":{"%[1]s":"%[2]s"}}`, member, inJSON)
		s.want(201, "POST", secrets, doc)
		s.want(200, "PATCH", secrets+"/s?fieldManager=m&force=true", doc, "Content-Type: application/apply-patch+yaml")
		s.want(200, "PATCH", secrets+"/s", `{"stringData":{"other":"`+strings.Repeat(value, 2000)+`"}}`, "Content-Type: application/merge-patch+json")
		s.want(200, "PATCH", secrets+"/s", `{"data":{"other":null}}`, "Content-Type: application/merge-patch+json")
		s.want(201, "POST", secrets, strings.ReplaceAll(doc, `"name":"s"`, `"name":"gone"`))
		s.want(200, "DELETE", secrets+"/gone", "")
		look("written")
		s.kill()
		look("killed")
		s.start()
		look("started again")
		if got := s.want(200, "GET", secrets+"/s", "").get("data." + member).String(); got != inJSON {
			t.Errorf("it is %q after a kill", got)
		}
		if history := s.want(200, "GET", "/debug/history?resource=secrets&name=gone", ""); !strings.Contains(string(history.body), "DELETED") {
			t.Errorf("the history is %s", history.body)
		}
		copied := command(t, "backup", "--server="+s.url, filepath.Join(dir, "backup.db"))
		if !strings.Contains(copied, "/backup.db: revision ") || strings.Contains(copied, "needs --encryption-provider-config") != on || strings.Contains(copied, `secretbox key "one" (1 objects)`) != on {
			t.Errorf("encrypted %v: the backup says %s", on, copied)
		}
		s.want(200, "DELETE", secrets+"/s", "")
		look("a backup was fetched, and all is deleted")
		s.compactNow(s.revision())
		s.halt()
		if on { // otherwise the free pages contain it
			look("compacted")
		}
		s.runCommands(on, keys, dir)
		look("commands have been at work")
	}
}

// runCommands runs all commands that access the files of a server.
func (s *testServer) runCommands(on bool, keys, dir string) {
	s.t.Helper()
	data := "--data=" + filepath.Join(dir, "data.db")
	command(s.t, "defrag", data)
	second := command(s.t, "backup", data, filepath.Join(dir, "second.db"))
	if strings.Contains(second, "encrypted") { // all Secrets are deleted
		s.t.Error(second)
	}
	told := command(s.t, "check", "--data="+filepath.Join(dir, "backup.db"))
	if strings.Contains(told, "1 objects are encrypted, and were not looked into") != on {
		s.t.Error(told)
	}
	if on {
		command(s.t, "log", "--data="+filepath.Join(dir, "backup.db"), "--encryption-provider-config="+keys)
		command(s.t, "check", "--data="+filepath.Join(dir, "backup.db"), "--encryption-provider-config="+keys)
	}
}

// TestKeysComeAndGo checks that an object cannot be read, written or deleted if its key is missing.
// The errors must contain its name. Other objects must still be served. With the key it is
// available again. If the object was encrypted with an old key, a write without changes must
// encrypt it with the current one.
func TestKeysComeAndGo(t *testing.T) {
	t.Parallel()
	if os.Getenv("ETCD_SERVERS") != "" {
		t.Skip("a replica is filled anew under another file")
	}
	dir := t.TempDir()
	keys := filepath.Join(dir, "keys.yaml")
	encryptionFile(t, keys, "[configmaps]", secretbox("one", 1), "identity: {}")
	s := startTest(t, onFile(filepath.Join(dir, "data.db")), "--encryption-provider-config="+keys)
	const maps = "/api/v1/namespaces/n/configmaps"
	s.namespace("n")
	const secrets = "/api/v1/namespaces/n/secrets"
	owner := s.want(201, "POST", maps, configMap("m", "a", "1")).get("metadata.uid")
	s.want(201, "POST", secrets, fmt.Sprintf(`{"metadata":{"name":"dependent","ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"m","uid":"%s"}]}}`, owner))
	replace := func() bool {
		t.Helper()
		now := s.want(200, "GET", maps+"/m", "")
		return s.want(200, "PUT", maps+"/m", string(now.body)).rev() != now.rev()
	}
	if replace() {
		t.Error("a write that changes nothing was written")
	}
	restart := func(providers ...string) {
		t.Helper()
		s.halt()
		encryptionFile(t, keys, "[configmaps]", providers...)
		s.start()
	}
	restart(secretbox("two", 2), "identity: {}")
	const why = `500 InternalError Internal error occurred: unable to transform key "/registry/configmaps/n/m": no matching key was found for the provided Secretbox transformer`
	for _, ask := range [][3]string{{"GET", maps + "/m", ""}, {"GET", maps, ""}, {"PUT", maps + "/m", configMap("m")}, {"DELETE", maps + "/m", ""}, {"DELETE", maps, ""},
		{"GET", maps + "?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&timeoutSeconds=1", ""}} {
		if got := s.send(ask[0], ask[1], ask[2]); got.failure() != why && !strings.Contains(string(got.body), `unable to transform key \"/registry/configmaps/n/m\"`) {
			t.Errorf("%s %s: %s", ask[0], ask[1], got.body)
		}
	}
	if got := s.send("POST", maps, configMap("m")); got.code != 409 {
		t.Errorf("a second one: %s", got.failure())
	}
	s.want(201, "POST", maps, configMap("other"))
	s.want(200, "GET", maps+"/other", "")
	s.want(201, "POST", secrets, `{"metadata":{"name":"orphan","ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"nobody","uid":"x"}]}}`)
	apitest.WaitFor(t, "the collector has been there", func() bool { return s.send("GET", secrets+"/orphan", "").code == 404 })
	s.want(200, "GET", secrets+"/dependent", "")
	s.want(200, "DELETE", "/api/v1/namespaces/n", "")
	apitest.WaitFor(t, "the namespace says what is in the way", func() bool {
		return strings.Contains(string(s.send("GET", "/api/v1/namespaces/n", "").body), "unable to transform key")
	})
	if unready := string(s.send("GET", "/readyz/unreadable", "").body); !strings.Contains(unready, "1 stored objects or more cannot be decrypted") {
		t.Error(unready)
	}
	if log := s.log.String(); strings.Count(log, "a stored object cannot be decrypted") != 1 || !strings.Contains(log, "//configmaps/n/m") {
		t.Errorf("the log does not name it, or too often:\n%s", log)
	}
	s.halt()
	if r := runAs(t, "apilet", "check", "--data="+s.flag("data"), "--encryption-provider-config="+keys); r.code != 1 || !strings.Contains(r.out, `key "//configmaps/n/m": unable to transform key`) {
		t.Errorf("%+v", r)
	}
	encryptionFile(t, keys, "[configmaps]", "secretbox: {keys: [{name: broken}]}")
	if why := startFails(t, s.flags...); !strings.Contains(why, "--encryption-provider-config: error while parsing file: resources[0].providers[0].secretbox.keys[0].secret: Required value") {
		t.Error(why)
	}
	encryptionFile(t, keys, "[configmaps]", secretbox("two", 2), secretbox("one", 1), "identity: {}")
	s.start()
	apitest.WaitFor(t, "the namespace is gone", func() bool { return s.send("GET", "/api/v1/namespaces/n", "").code == 404 })
	apitest.WaitFor(t, "all can be read", func() bool { return s.send("GET", "/readyz/unreadable", "").code == 200 })
	s.namespace("n")
	s.want(201, "POST", maps, configMap("m", "a", "1"))
	if replace() {
		t.Error("a write that changes nothing was written")
	}
	restart("identity: {}", secretbox("two", 2))
	if !replace() || replace() {
		t.Error("what is encrypted and is not to be is written anew once")
	}
	restart(secretbox("three", 3), "identity: {}")
	if !replace() || replace() {
		t.Error("what is not encrypted and is to be is written anew once")
	}
}
