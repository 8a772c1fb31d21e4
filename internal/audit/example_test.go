package audit_test

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"

	"apilet/internal/audit"
	"apilet/internal/request"
)

// A line says who asked for what, and how it ended.
func ExampleLog_Done() {
	dir, _ := os.MkdirTemp("", "example")
	defer os.RemoveAll(dir)
	log, err := audit.Open(audit.Config{Path: filepath.Join(dir, "audit.log")}, audit.Hooks{Written: func(int) {}, Dropped: func(string, int) {}, Failing: func(error) {}})
	if err != nil {
		fmt.Println(err)
		return
	}
	r := httptest.NewRequest("GET", "/api/v1/namespaces/shop/pods", nil)
	log.Done(r, &request.Request{ID: "1", Info: request.Parse(r), User: request.User{Name: "alice"}}, 200, nil)
	log.Close()
	line, _ := os.ReadFile(filepath.Join(dir, "audit.log"))
	var event struct {
		Stage, Verb string
		User        struct{ Username string }
		ObjectRef   struct{ Resource, Namespace string }
	}
	fmt.Println(json.Unmarshal(line, &event), event.Stage, event.Verb, event.User.Username, event.ObjectRef.Resource, event.ObjectRef.Namespace)
	// Output:
	// <nil> ResponseComplete list alice pods shop
}

// A token that came in the address is not written.
func ExampleURI() {
	u, _ := url.Parse("/api/v1/pods?limit=5&access_token=secret")
	fmt.Println(audit.URI(u))
	// Output:
	// /api/v1/pods?limit=5&access_token=REDACTED
}
