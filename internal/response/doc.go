// Package response writes responses. It negotiates the format, encodes stored records, and converts
// errors to Statuses.
//
//	view, err := response.NewView(r, rec, res) // reads Accept: JSON, YAML, protobuf; whole, as Table, as PartialObjectMetadata
//	err = view.Respond(w, r, 200, &rec)        // one object; lists are ListHead, Item, Item, ..., ListTail
//	unexpected = response.WriteError(w, r, err) // a Status; other errors become a 500 and are returned for the log
//
// The rules are those of k8s.io/apiserver/pkg/endpoints/handlers (negotiation and responsewriters,
// and the conversion to Tables and metadata). The texts of the errors come from
// k8s.io/apimachinery/pkg/api/errors. Package printers defines the columns of Tables, and package
// scheme converts records between versions. protobuf.go describes the protobuf format.
//
// Invariants: nothing is written before the format is known, so a request that gets a 406 has no
// other effect on the response. Unexpected errors become a 500 with a generic text; the original
// error is only logged. A response that fails after its header was sent closes the connection
// ([ErrAborted]), so that clients do not mistake a partial response for a complete one. A list is
// never held in memory as a whole.
package response
