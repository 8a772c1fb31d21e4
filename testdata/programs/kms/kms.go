// Command kms is a KMS plug-in that is used by the tests and for experiments with encryption at
// rest (docs/administration.md):
//
//	go run ./testdata/programs/kms -keys kms.keys -socket kms.sock
//
// The file contains one key per line, 32 bytes in base64. The first key is used for encryption, and
// all keys are used for decryption.
package main

import (
	"flag"
	"log"
	"net"
	"os"

	"apilet/internal/encryption/kmstest"
)

func main() {
	keys := flag.String("keys", "kms.keys", "the `file` of keys, one a line in base64")
	socket := flag.String("socket", "kms.sock", "the Unix `socket` to listen on")
	flag.Parse()
	_ = os.Remove(*socket)
	listener, err := net.Listen("unix", *socket)
	if err == nil {
		err = kmstest.Serve(listener, *keys)
	}
	log.Fatal(err)
}
