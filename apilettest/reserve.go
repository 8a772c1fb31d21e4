package apilettest

import "testing"

// A reservation is a loopback port for one program at a time.
type reservation struct {
	number int
	close  func()
}

// FreePort holds a free loopback port for the test and returns its number. A Go program that is
// given the number can listen there, be killed and listen again. On Linux, other programs cannot
// get the port in the meantime.
func FreePort(t testing.TB) int {
	t.Helper()
	port, err := reservePort()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(port.close)
	return port.number
}
