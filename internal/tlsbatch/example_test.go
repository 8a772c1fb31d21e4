package tlsbatch_test

import (
	"net"
	"net/http"

	"apilet/internal/tlsbatch"
)

// The listener stands below crypto/tls.
func Example() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return
	}
	server := &http.Server{}
	_ = server.ServeTLS(tlsbatch.Listener{Listener: listener}, "tls.crt", "tls.key")
}
