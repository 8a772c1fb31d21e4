package scheme

import "github.com/tidwall/gjson"

// WithoutRevision returns a copy of stored JSON with an empty resourceVersion, and the offset
// between its quotes, where the store inserts a revision.
func WithoutRevision(json []byte) (doc []byte, revAt int) {
	at := gjson.GetBytes(json, "metadata.resourceVersion")
	doc = append(make([]byte, 0, len(json)), json[:at.Index+1]...)
	return append(doc, json[at.Index+len(at.Raw)-1:]...), at.Index + 1
}
