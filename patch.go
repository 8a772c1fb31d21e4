package main

// patchKind is the media type of a PATCH body.
type patchKind string

const (
	jsonPatch      patchKind = "application/json-patch+json"
	mergePatch     patchKind = "application/merge-patch+json"
	strategicPatch patchKind = "application/strategic-merge-patch+json"
	applyPatch     patchKind = "application/apply-patch+yaml"
)

// patch returns what one JSON document (an object with kind and apiVersion) becomes under a patch body. schema is a zero value of the
// Go type for strategic merge patches, nil for custom resources. Errors are Status errors: 400, 413, 415, 422.
func patch(kind patchKind, current, body []byte, schema any) ([]byte, error) { panic("skeleton") }
