package certs

import (
	"testing"
	"time"

	"github.com/rs/zerolog"

	"apilet/internal/apitest"
)

// openTestCerts opens a certificate folder for hosts, and returns what it has logged.
func openTestCerts(t *testing.T, dir string, hosts ...string) (*Folder, string, error) {
	t.Helper()
	log := &apitest.Log{}
	f, err := OpenCertFolder(Config{Dir: dir, Hosts: func() []string { return append(hosts, "localhost") }, Now: time.Now, Log: zerolog.New(log)})
	return f, log.String(), err
}

const couldRead = "others could read this file"
