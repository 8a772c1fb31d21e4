package main

// This file fetches a backup from a running server, for `apilet backup --server`. It shows a bearer token and trusts a private
// authority, which is what a server with --token-auth-file and certificates of its own takes. Whoever has other credentials in a
// kubeconfig lets kubectl fetch it (`kubectl get --raw /debug/backup > copy.db`) and looks at the copy with `apilet check`.
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

	"github.com/tidwall/gjson"
)

// A backupSource says where to fetch from, and how: a file with the bearer token, and one with the authorities to trust instead of the
// system's. Both may be missing.
type backupSource struct{ server, tokenFile, caFile string }

// download makes the file at dest.
func (b backupSource) download(dest string) error {
	client, err := b.client()
	if err != nil {
		return err
	}
	request, err := b.request()
	if err != nil {
		return err
	}
	return placeFile(dest, func(temp string) error {
		answer, err := client.Do(request)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			return refusedBackup(answer)
		}
		if err := saveSynced(temp, answer.Body); err != nil {
			return err
		}
		return vetBackup(temp)
	})
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
	report, err := checkFile(path)
	if err == nil && len(report.problems) > 0 {
		err = errors.New(report.problems[0])
	}
	if err != nil {
		return fmt.Errorf("what the server sent is no sound backup: %w", err)
	}
	return nil
}
