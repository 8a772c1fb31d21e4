package scheme

import "github.com/tidwall/gjson"

// WithoutRevision is stored JSON with nothing between the quotes of its resourceVersion, and where they are: what the store writes a revision
// into. json is not changed.
func WithoutRevision(json []byte) (doc []byte, revAt int) {
	at := gjson.GetBytes(json, "metadata.resourceVersion")
	doc = append(make([]byte, 0, len(json)), json[:at.Index+1]...)
	return append(doc, json[at.Index+len(at.Raw)-1:]...), at.Index + 1
}
