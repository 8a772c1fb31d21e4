//go:build !linux

package flowcontrol

import "net"

// Systems other than Linux cannot detect a closed connection without reading from it.

// PeerClosed always returns false on this system. If the client of a waiting request with a body
// disconnects, the server notices it when the request starts.
func PeerClosed(net.Conn) bool { return false }
