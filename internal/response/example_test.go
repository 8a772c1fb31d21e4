package response_test

import (
	"errors"
	"fmt"
	"net/http/httptest"

	"apilet/internal/request"
	"apilet/internal/response"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

// The most wanted form that the server has is taken; a client that wants none of them gets a 406.
func ExampleOffer_Negotiate() {
	for _, accept := range []string{
		"",
		"application/vnd.kubernetes.protobuf,application/json",
		"application/yaml;q=0.5, application/json;q=0.9",
		"text/html",
	} {
		form, err := response.Objects.Negotiate(accept)
		fmt.Printf("%q: %s %v\n", accept, form.Format, err != nil)
	}
	// Output:
	// "": application/json false
	// "application/vnd.kubernetes.protobuf,application/json": application/vnd.kubernetes.protobuf false
	// "application/yaml;q=0.5, application/json;q=0.9": application/json false
	// "text/html":  true
}

// kubectl asks for a Table, and takes the object where there is none.
func ExampleNewView() {
	r := httptest.NewRequest("GET", "/api/v1/namespaces/shop/pods", nil)
	r.Header.Set("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io, application/json")
	view, err := response.NewView(r, &request.Request{Info: request.Parse(r)}, scheme.NewRegistry().Lookup("", "v1", "pods"))
	fmt.Println(view.Media.As, view.Media.Version, view.ContentType(), err)
	// Output:
	// Table v1 application/json <nil>
}

// The alternatives of a header, the most wanted first.
func ExampleParseAccept() {
	for _, clause := range response.ParseAccept("*/*;q=0.1, application/json;q=0.5, application/yaml") {
		fmt.Println(clause.Name)
	}
	// Output:
	// application/yaml
	// application/json
	// */*
}

// The store says what is wrong with a key; clients know it as a Status.
func ExampleStoreError() {
	pods := scheme.NewRegistry().Lookup("", "v1", "pods")
	for _, err := range []error{store.ErrNotFound, store.ErrExists} {
		status, _ := response.ErrorStatus(response.StoreError(err, pods, "web"))
		fmt.Println(status.Code, status.Reason, status.Message)
	}
	// Output:
	// 404 NotFound pods "web" not found
	// 409 AlreadyExists pods "web" already exists
}

// An error that nobody foresaw is a 500 with a general text. The error itself is returned, for the log.
func ExampleWriteError() {
	w := httptest.NewRecorder()
	unexpected := response.WriteError(w, httptest.NewRequest("GET", "/api/v1/pods", nil), errors.New("disk 3 has smoke coming out of it"))
	fmt.Println(w.Code, unexpected)
	// Output:
	// 500 disk 3 has smoke coming out of it
}
