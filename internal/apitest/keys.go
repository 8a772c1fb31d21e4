package apitest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"testing"
)

// KeyFiles writes keys in all formats of openssl and Kubernetes' tools, and returns the files by
// name: rsa, p256, p384 and p521, their public keys with the suffix .pub, pkcs8, and a certificate
// for the latter key.
func KeyFiles(t testing.TB) map[string]string {
	t.Helper()
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	write := func(name, kind string, der []byte, err error) {
		if err != nil {
			t.Fatal(err)
		}
		files[name] = TempFile(t, name, string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})))
	}
	write("rsa", "RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(rsaKey), nil)
	write("rsa.pub", "RSA PUBLIC KEY", x509.MarshalPKCS1PublicKey(&rsaKey.PublicKey), nil)
	for name, curve := range map[string]elliptic.Curve{"p256": elliptic.P256(), "p384": elliptic.P384(), "p521": elliptic.P521()} {
		key, _ := ecdsa.GenerateKey(curve, rand.Reader)
		der, err := x509.MarshalECPrivateKey(key)
		write(name, "EC PRIVATE KEY", der, err)
		der, err = x509.MarshalPKIXPublicKey(&key.PublicKey)
		write(name+".pub", "PUBLIC KEY", der, err)
	}
	ca, certificate := NewCA(t)
	der, err := x509.MarshalPKCS8PrivateKey(ca.Key)
	write("pkcs8", "PRIVATE KEY", der, err)
	files["certificate"] = certificate
	return files
}
