package health_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"

	"apilet/internal/health"
)

// Where a service manager asks for it, it hears when the server is ready; elsewhere nobody is told, and nothing fails.
func ExampleServiceManager() {
	nobody := health.FindServiceManager(func(string) string { return "" })
	fmt.Println(nobody.NotifyReady("serving"))

	dir, _ := os.MkdirTemp("", "sd")
	defer os.RemoveAll(dir)
	name := filepath.Join(dir, "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer socket.Close()
	manager := health.FindServiceManager(func(key string) string { return map[string]string{"NOTIFY_SOCKET": name}[key] })
	fmt.Println(manager.NotifyReady("serving on :6443"))
	told := make([]byte, 100)
	n, _ := socket.Read(told)
	fmt.Printf("%q", told[:n])
}
