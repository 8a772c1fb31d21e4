package audit

// This file converts the bodies of requests and responses for audit events. Bodies are converted to
// JSON. managedFields are removed if the policy says so.

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"strings"

	"sigs.k8s.io/yaml"

	"apilet/internal/request"
)

var errTooLong = errors.New("the response is too long for an audit event")

// addBodies adds the bodies that the policy requires to the event. If the response cannot be added,
// the event has no bodies and an annotation.
func (a *Log) addBodies(ev *event, rec *request.Request) {
	kept := rec.AuditData
	if !kept.RecordsRequest() || ev.stage == stageRequestReceived {
		return
	}
	ev.sent = kept.RequestObject
	if kept.OmitManagedFields && rec.Info.Verb != "patch" {
		ev.sent = withoutManagedFields(ev.sent)
	}
	if kept.Level != "RequestResponse" || ev.stage == stagePanic {
		return
	}
	answer, err := a.answerOf(rec)
	if err != nil {
		ev.sent = nil
		if ev.annotations == nil {
			ev.annotations = map[string]string{}
		}
		ev.annotations[truncatedNote] = "true"
		return
	}
	if kept.OmitManagedFields {
		answer = withoutManagedFields(answer)
	}
	ev.answer = answer
}

// answerOf returns the response as JSON. It returns nil if the response is not an API object, such
// as a stream, metrics or the page.
func (a *Log) answerOf(rec *request.Request) ([]byte, error) {
	kept, path := rec.AuditData, rec.Info.Path
	object := rec.Info.ResourceRequest || path == "/api" || path == "/apis" || strings.HasPrefix(path, "/api/") || strings.HasPrefix(path, "/apis/")
	switch {
	case kept.TooLong && object:
		return nil, errTooLong
	case len(kept.ResponseBody) == 0 && rec.ResponseStatus != nil: // rejected before the policy was evaluated, because the user was not known
		status := *rec.ResponseStatus
		status.Kind, status.APIVersion = "Status", "v1"
		return json.Marshal(&status)
	case len(kept.ResponseBody) == 0, !object && rec.ResponseStatus == nil:
		return nil, nil
	}
	body := kept.ResponseBody
	if kept.Header.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(bytes.NewReader(body))
		if err != nil {
			return nil, err
		}
		if body, err = io.ReadAll(io.LimitReader(z, request.MaxRecordedResponse+1)); err == nil && len(body) > request.MaxRecordedResponse {
			err = errTooLong
		}
		if err != nil {
			return nil, err
		}
	}
	switch kind, _, _ := mime.ParseMediaType(kept.Header.Get("Content-Type")); kind {
	case "application/json":
		return body, nil
	case "application/yaml":
		return yaml.YAMLToJSON(body)
	case "application/vnd.kubernetes.protobuf":
		return a.Unseal(body)
	}
	return nil, nil
}

// withoutManagedFields removes managedFields from an object, and from the objects of a list or a
// Table.
func withoutManagedFields(doc []byte) []byte {
	if !bytes.Contains(doc, []byte(`"managedFields"`)) {
		return doc
	}
	in := json.NewDecoder(bytes.NewReader(doc))
	in.UseNumber()
	var object map[string]any
	if in.Decode(&object) != nil {
		return doc
	}
	strip(object)
	for _, list := range []string{"items", "rows"} {
		members, _ := object[list].([]any)
		for _, member := range members {
			fields, _ := member.(map[string]any)
			if list == "rows" {
				fields, _ = fields["object"].(map[string]any)
			}
			strip(fields)
		}
	}
	stripped, err := json.Marshal(object)
	if err != nil {
		return doc
	}
	return stripped
}

func strip(object map[string]any) {
	if metadata, ok := object["metadata"].(map[string]any); ok {
		delete(metadata, "managedFields")
	}
}
