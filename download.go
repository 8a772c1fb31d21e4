package main

// This file fetches a backup from a running server, for `apilet backup --server`. It shows a bearer token and trusts a private
// authority, or takes a kubeconfig with a certificate or token in it. Whoever has other credentials there (a program to run, a password)
// lets kubectl fetch it (`kubectl get --raw /debug/backup > copy.db`) and looks at the copy with `apilet check`.
//
// The file gets its name when it is whole: sent to the end, checked to the last record, synced, and with no file of that name before.

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	"apilet/internal/atomicfile"
	"apilet/internal/store"
	"github.com/tidwall/gjson"
)

// A backupSource says where to fetch from, and how: a file with the bearer token, and one with the authorities to trust instead of the
// system's. Both may be missing.
type backupSource struct {
	server, tokenFile, caFile string
	kubeconfig                string // names all of them at once, and a client certificate, but for those that are given
	seen                      *store.Progress
}

// download makes the file at dest.
func (b backupSource) download(dest string) error {
	client, request, err := b.question()
	if err != nil {
		return err
	}
	return atomicfile.PlaceFile(dest, func(temp string) error {
		answer, err := client.Do(request)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			return refusedBackup(answer)
		}
		b.seen.Begin("bytes", max(0, answer.ContentLength))
		if err := saveSynced(temp, io.TeeReader(answer.Body, b.seen)); err != nil {
			return err
		}
		return vetBackup(temp)
	})
}

// question is what to ask, and the client to ask with.
func (b backupSource) question() (*http.Client, *http.Request, error) {
	if b.kubeconfig != "" {
		return b.questionOf(b.kubeconfig)
	}
	client, err := b.client()
	if err != nil {
		return nil, nil, err
	}
	request, err := b.request()
	return client, request, err
}

// questionOf asks as the user of a kubeconfig's current context.
func (b backupSource) questionOf(path string) (*http.Client, *http.Request, error) {
	k, err := readKubeconfig(path)
	if err != nil {
		return nil, nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	server, err := k.server(path)
	if err != nil {
		return nil, nil, fmt.Errorf("--kubeconfig %s: %w", path, err)
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DisableCompression = true
	transport.TLSClientConfig = server.tls
	request, err := http.NewRequest(http.MethodGet, strings.TrimSuffix(server.url, "/")+"/debug/backup", nil)
	if err == nil && server.token != "" {
		if request.URL.Scheme != "https" {
			return nil, nil, fmt.Errorf("--kubeconfig %s: a token is not sent to %s for everybody to read", path, server.url)
		}
		request.Header.Set("Authorization", "Bearer "+server.token)
	}
	return &http.Client{Transport: transport}, request, err
}

func (b backupSource) client() (*http.Client, error) {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DisableCompression = true
	if b.caFile == "" {
		return &http.Client{Transport: transport}, nil
	}
	pem, err := os.ReadFile(b.caFile)
	if err != nil {
		return nil, fmt.Errorf("--certificate-authority: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("--certificate-authority: no certificate in %s", b.caFile)
	}
	transport.TLSClientConfig = &tls.Config{RootCAs: pool}
	return &http.Client{Transport: transport}, nil
}

func (b backupSource) request() (*http.Request, error) {
	request, err := http.NewRequest(http.MethodGet, strings.TrimSuffix(b.server, "/")+"/debug/backup", nil)
	if err != nil || b.tokenFile == "" {
		return request, err
	}
	if request.URL.Scheme != "https" {
		return nil, errors.New("--token-file needs a --server of https: a token is not sent for everybody to read")
	}
	token, err := os.ReadFile(b.tokenFile)
	if err != nil {
		return nil, fmt.Errorf("--token-file: %w", err)
	}
	request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	return request, nil
}

// refusedBackup says why there is none, in the server's words where it has any.
func refusedBackup(answer *http.Response) error {
	body, _ := io.ReadAll(io.LimitReader(answer.Body, 64<<10))
	why := answer.Status
	if message := gjson.GetBytes(body, "message").String(); message != "" {
		why += ": " + message
	}
	return fmt.Errorf("the server answers %s", why)
}

// saveSynced fills an existing file.
func saveSynced(path string, content io.Reader) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, content)
	return errors.Join(err, file.Sync(), file.Close())
}

// vetBackup looks at every record of what came.
func vetBackup(path string) error {
	report, err := store.Check(path)
	if err == nil && len(report.Problems) > 0 {
		err = errors.New(report.Problems[0])
	}
	if err != nil {
		return fmt.Errorf("what the server sent is no sound backup: %w", err)
	}
	return nil
}
