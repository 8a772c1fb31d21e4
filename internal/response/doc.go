// Package response writes responses. It negotiates the format, encodes stored records, and converts
// errors to Statuses.
//
//	view, err := response.NewView(r, rec, res) // reads Accept: JSON, YAML, protobuf; whole, as Table, as PartialObjectMetadata
//	err = view.Respond(w, r, 200, &rec)        // one object; lists are AppendListHead, AppendItem, AppendItem, ..., ListTail
//	unexpected = response.WriteError(w, r, err) // a Status; other errors become a 500 and are returned for the log
//
// It follows the negotiation, the responsewriters and the conversion to Tables in
// k8s.io/apiserver/pkg/endpoints/handlers. Most errors are created by
// k8s.io/apimachinery/pkg/api/errors. Package printers defines the columns of Tables, and package
// scheme converts records between versions. protobuf.go describes the protobuf format.
//
// The format is negotiated before anything is written, so that a 406 can still be sent. Unexpected
// errors become a 500 with a generic text; the original error is only logged. If an error occurs
// after the header was sent, the connection is closed ([ErrAborted]), so that clients do not
// mistake a partial response for a complete one. Lists are streamed instead of being held in
// memory.
package response
