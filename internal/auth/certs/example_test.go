package certs_test

import (
	"crypto/x509"
	"fmt"
	"time"

	"github.com/rs/zerolog"

	"apilet/internal/auth/certs"
)

// Where no certificate is given one is made, by an authority that is made as well; without a folder both stay in memory.
func ExampleOpenCertFolder() {
	folder, err := certs.OpenCertFolder(certs.Config{Hosts: func() []string { return []string{"localhost", "127.0.0.1"} }, Now: time.Now, Log: zerolog.Nop()})
	if err != nil {
		fmt.Println(err)
		return
	}
	roots := x509.NewCertPool()
	roots.AddCert(folder.Authority.Cert)
	_, err = folder.Serving.Load().Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: "localhost"})
	fmt.Println(err)
	// Output:
	// <nil>
}

// A certificate that ends soon is worth a line in the log.
func ExampleCheckExpiry() {
	now := time.Date(2026, time.November, 1, 12, 0, 0, 0, time.UTC)
	cert := &x509.Certificate{NotBefore: now.AddDate(-1, 0, 0), NotAfter: now.AddDate(0, 0, 10)}
	fmt.Println(certs.CheckExpiry(cert, now) != nil, certs.CheckExpiry(cert, now.AddDate(0, -6, 0)))
	// Output:
	// true <nil>
}
