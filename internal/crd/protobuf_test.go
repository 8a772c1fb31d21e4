package crd

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"reflect"
	"strings"
	"testing"

	"apilet/internal/apitest/kubetest"
	"apilet/internal/response"
	"apilet/internal/scheme"
	"apilet/internal/scheme/schemetest"
	"apilet/internal/store"
)

// viewed is the JSON of an object as a view shows it.
func viewed(t *testing.T, v *response.View, rec *store.Record) string {
	t.Helper()
	doc, err := v.AppendObject(nil, rec)
	if v.Media.Format == scheme.ProtobufFormat {
		if doc, err = v.AppendProtobuf(nil, rec); err == nil {
			doc, err = schemetest.Unsealed(testRows(), doc)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(doc)
}

// What is stored as JSON comes out as protobuf with nothing lost, in each version that is served: as often as JSON, so that what both
// leave out would be missing from the test of JSON.
func TestEveryTypeSaysTheSameInProtobuf(t *testing.T) {
	for _, res := range scheme.NewRegistry().All() {
		t.Run(res.APIVersion()+" "+res.Kind, func(t *testing.T) {
			body := kubetest.Envelope(t, res.APIVersion(), res.Kind, kubetest.Filled(res.GoType))
			obj, _, err := res.Decode(body, string(scheme.ProtobufFormat), "")
			if err != nil {
				t.Fatal(err)
			}
			stored, revAt, err := res.EncodeStored(obj)
			if err != nil {
				t.Fatal(err)
			}
			rec := &store.Record{Rev: 7, JSON: []byte(string(stored[:revAt]) + "7" + string(stored[revAt:]))}
			asJSON := viewed(t, &response.View{Res: res}, rec)
			asProtobuf := viewed(t, &response.View{Res: res, Media: response.MediaType{Format: scheme.ProtobufFormat}}, rec)
			if got, want := normalized(t, res, asProtobuf), normalized(t, res, asJSON); got != want {
				t.Errorf("\nprotobuf %s\nJSON     %s", got, want)
			}
			meta := response.MediaType{As: "PartialObjectMetadata", Version: "v1"}
			asJSON = viewed(t, &response.View{Res: res, Media: meta}, rec)
			meta.Format = scheme.ProtobufFormat
			if got := viewed(t, &response.View{Res: res, Media: meta}, rec); got != asJSON {
				t.Errorf("\nprotobuf %s\nJSON     %s", got, asJSON)
			}
		})
	}
}

// normalized is a document as its served Go type writes it: the rows that share a shape are stored as another.
func normalized(t *testing.T, res *scheme.Resource, doc string) string {
	t.Helper()
	obj := reflect.New(res.GoType).Interface().(scheme.Object)
	if err := json.Unmarshal([]byte(doc), obj); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(obj)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// kube-apiserver's own bytes, taken apart, stored, and put together again. With -oracle they are asked for.
func TestObjectsAreSealedAsKubeAPIServerDoes(t *testing.T) {
	const file = "testdata/protobuf/sealed.txt"
	if *kubetest.OracleURL != "" {
		recordSealed(t, file)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for line := range strings.Lines(string(text)) {
		sealed, err := base64.StdEncoding.DecodeString(strings.TrimSpace(line))
		if err != nil {
			t.Fatal(err)
		}
		envelope, err := scheme.OpenEnvelope(sealed)
		if err != nil {
			t.Fatal(err)
		}
		for _, res := range testRows() {
			if res.APIVersion() != envelope.APIVersion || res.Kind != envelope.Kind {
				continue
			}
			seen++
			if got := resealed(t, res, sealed); !bytes.Equal(got, sealed) {
				t.Errorf("%s %s\n got %q\nwant %q", res.APIVersion(), res.Kind, got, sealed)
			}
		}
	}
	if seen < 80 {
		t.Errorf("%d objects", seen)
	}
}

// resealed stores what is in an envelope, and seals what was stored.
func resealed(t *testing.T, res *scheme.Resource, sealed []byte) []byte {
	obj, _, err := res.Decode(sealed, string(scheme.ProtobufFormat), "")
	if err != nil {
		t.Fatal(err)
	}
	rev := obj.GetResourceVersion()
	stored, revAt, err := res.EncodeStored(obj)
	if err != nil {
		t.Fatal(err)
	}
	stored = []byte(string(stored[:revAt]) + rev + string(stored[revAt:]))
	got, err := (&response.View{Res: res, Media: response.MediaType{Format: scheme.ProtobufFormat}}).AppendProtobuf(nil, &store.Record{JSON: stored})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func recordSealed(t *testing.T, file string) {
	var lines bytes.Buffer
	for _, doc := range kubetest.ReadDocuments(t, "../../testdata/defaults/objects.yaml") {
		gvk := kubetest.Decode(t, doc).GetObjectKind().GroupVersionKind()
		code, answer := kubetest.AskOracle(t, "POST", kubetest.CollectionPath(gvk)+"?dryRun=All", doc, onlyProtobuf)
		if code != http.StatusCreated {
			t.Logf("%v: %d", gvk, code)
			continue
		}
		fmt.Fprintln(&lines, base64.StdEncoding.EncodeToString(answer))
	}
	if err := os.MkdirAll("testdata/protobuf", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, lines.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}
