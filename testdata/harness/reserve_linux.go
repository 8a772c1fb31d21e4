package harness

import "syscall"

// A reservation is a free loopback port for programs that know nothing of sharing.
type reservation struct {
	number int
	close  func()
}

// reservePort binds a free port with SO_REUSEADDR, which Go's net package also sets. Linux lets such a program listen on
// the port as long as no other socket listens, and gives the port to no program that asks for any free port.
func reservePort() (reservation, error) {
	port, err := bind(syscall.SO_REUSEADDR)
	if err != nil {
		return reservation{}, err
	}
	return reservation{number: port.Number, close: func() { _ = port.Close() }}, nil
}
