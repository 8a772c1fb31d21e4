// Package response answers: it finds the form that a client wants, shows stored records in it, and turns errors into Statuses.
//
//	view, err := response.NewView(r, rec, res) // reads Accept: JSON, YAML, protobuf; whole, as Table, as PartialObjectMetadata
//	err = view.Respond(w, r, 200, &rec)        // one object; lists are ListHead, Item, Item, ..., ListTail
//	unexpected = response.WriteError(w, r, err) // a Status; what is none is a 500, returned for the log
//
// The rules are those of k8s.io/apiserver/pkg/endpoints/handlers: negotiation, responsewriters, and for Tables and
// metadata response itself; the words of the errors come from k8s.io/apimachinery/pkg/api/errors. What a Table shows is package
// printers', how a record becomes its version is package scheme's, what protobuf looks like is told in protobuf.go.
//
// Invariants: nothing is written before the form is known, so a client that gets 406 gets it alone; errors that nobody foresaw are a 500
// with a general text, their own stays in the log; a response that breaks after its head ends the connection ([ErrAborted]), so that nobody
// takes a half for a whole; a list is never held in memory.
package response
