// Command kms is the KMS plug-in of the tests, to try encryption at rest with (docs/administration.md):
//
//	go run ./testdata/programs/kms -keys kms.keys -socket kms.sock
//
// The file has a key a line, 32 bytes in base64: the first one writes, all of them read.
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
