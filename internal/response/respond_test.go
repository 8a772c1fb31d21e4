package response

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"apilet/internal/request"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

func TestNegotiation(t *testing.T) {
	const none = "406: Not Acceptable\n\nAvailable representations: application/json, application/yaml, application/vnd.kubernetes.protobuf"
	const others = "only the following media types are accepted: application/json, application/yaml, application/vnd.kubernetes.protobuf"
	const proto = "application/vnd.kubernetes.protobuf"
	const asTable = ";as=Table;g=meta.k8s.io;v=v1"
	cases := []struct {
		accept string
		want   MediaType
		err    string
	}{
		{accept: "", want: MediaType{Format: scheme.JSONFormat}},
		{accept: "*/*", want: MediaType{Format: scheme.JSONFormat}},
		{accept: "application/json", want: MediaType{Format: scheme.JSONFormat}},
		{accept: "application/*", want: MediaType{Format: scheme.JSONFormat}},
		{accept: "application/*, text/html;q=0.9", want: MediaType{Format: scheme.JSONFormat}},
		{accept: proto + ",application/json", want: MediaType{Format: scheme.ProtobufFormat}},
		{accept: proto + ", */*", want: MediaType{Format: scheme.ProtobufFormat}},
		{accept: "*/*, " + proto, want: MediaType{Format: scheme.ProtobufFormat}},
		{accept: "application/json, " + proto, want: MediaType{Format: scheme.JSONFormat}},
		{accept: "application/json;q=0.1, " + proto, want: MediaType{Format: scheme.ProtobufFormat}},
		{accept: proto + ";q=0.1, application/json", want: MediaType{Format: scheme.JSONFormat}},
		{accept: proto + ";q=0", want: MediaType{Format: scheme.ProtobufFormat}},
		{accept: proto + ";stream=watch", want: MediaType{Format: scheme.ProtobufFormat}},
		{accept: proto + ";stream=foo", err: others},
		{accept: proto + ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1", want: MediaType{Format: scheme.ProtobufFormat, As: "PartialObjectMetadata", Version: "v1"}},
		{accept: proto + asTable, err: others},
		{accept: proto + asTable + ",application/json", want: MediaType{Format: scheme.JSONFormat}},
		{accept: proto + asTable + "," + proto, want: MediaType{Format: scheme.ProtobufFormat}},
		{accept: "application/json" + asTable + "," + proto, want: MediaType{Format: scheme.JSONFormat, As: "Table", Version: "v1"}},
		{accept: "application/json;charset=utf-8", want: MediaType{Format: scheme.JSONFormat}},
		{accept: "application/json;stream=watch", want: MediaType{Format: scheme.JSONFormat}},
		{accept: "application/json;stream=foo", err: others},
		{accept: "application/json;q=0", want: MediaType{Format: scheme.JSONFormat}},
		{accept: "application/json;pretty=1", want: MediaType{Format: scheme.JSONFormat, Pretty: true}},
		{accept: "application/yaml", want: MediaType{Format: scheme.YAMLFormat}},
		{accept: "application/yaml, application/json", want: MediaType{Format: scheme.YAMLFormat}},
		{accept: "application/json;q=0.1, application/yaml;q=0.9", want: MediaType{Format: scheme.YAMLFormat}},
		{accept: "*/*, application/yaml", want: MediaType{Format: scheme.YAMLFormat}},
		{accept: "text/html, application/json;q=0.5", want: MediaType{Format: scheme.JSONFormat}},
		{accept: "application/json" + asTable, want: MediaType{Format: scheme.JSONFormat, As: "Table", Version: "v1"}},
		{accept: "application/json; as=Table; v=v1beta1; g=meta.k8s.io", want: MediaType{Format: scheme.JSONFormat, As: "Table", Version: "v1beta1"}},
		{accept: "application/yaml" + asTable, want: MediaType{Format: scheme.YAMLFormat, As: "Table", Version: "v1"}},
		{accept: "application/json;as=Table;v=v9;g=meta.k8s.io,application/json", want: MediaType{Format: scheme.JSONFormat}},
		{accept: "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json",
			want: MediaType{Format: scheme.JSONFormat, As: "Table", Version: "v1"}},
		{accept: "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1", err: others},
		{accept: "application/json;as=Table;g=meta.k8s.io;v=v9", err: others},
		{accept: "application/json;as=Foo;g=meta.k8s.io;v=v1", err: others},
		{accept: "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList", err: others},
		{accept: "application/cbor", err: none},
		{accept: "text/html", err: none},
		{accept: "garbage", err: none},
		{accept: ",;=", err: none},
	}
	for _, c := range cases {
		t.Run(c.accept, func(t *testing.T) {
			got, err := Offer{Formats: Objects.Formats, as: []string{"Table", "PartialObjectMetadata"}}.Negotiate(c.accept)
			if c.err != "" {
				if err == nil || err.Error() != c.err || !apierrors.IsNotAcceptable(err) {
					t.Errorf("got %v, %v, want %s", got, err, c.err)
				}
				return
			}
			if err != nil || got != c.want {
				t.Errorf("got %v, %v, want %v", got, err, c.want)
			}
		})
	}
}

// What a custom resource can be, and what a document can be that has no Go type.
func TestNegotiationWithoutProtobuf(t *testing.T) {
	const proto = "application/vnd.kubernetes.protobuf"
	const partial = ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	const all = "only the following media types are accepted: application/json, application/yaml, application/vnd.kubernetes.protobuf"
	custom := offerOf(&scheme.Resource{}, &request.Info{Verb: "list"})
	for _, c := range []struct {
		accept string
		from   Offer
		want   MediaType
		err    string
	}{
		{proto + ",application/json", custom, MediaType{Format: scheme.JSONFormat}, ""},
		{proto, custom, MediaType{}, all},
		{"text/html", custom, MediaType{}, all},
		{"application/*", custom, MediaType{Format: scheme.JSONFormat}, ""},
		{proto + partial, custom, MediaType{Format: scheme.ProtobufFormat, As: "PartialObjectMetadata", Version: "v1"}, ""},
		{proto + partial + ",application/json" + partial, custom, MediaType{Format: scheme.ProtobufFormat, As: "PartialObjectMetadata", Version: "v1"}, ""},
		{proto + ",application/json", documents, MediaType{Format: scheme.JSONFormat}, ""},
		{proto, documents, MediaType{}, "406: Not Acceptable\n\nAvailable representations: application/json, application/yaml"},
	} {
		got, err := c.from.Negotiate(c.accept)
		if got != c.want || fmt.Sprint(err) != c.err && (err != nil || c.err != "") {
			t.Errorf("%s: got %v, %v, want %v, %s", c.accept, got, err, c.want, c.err)
		}
	}
	list := offerOf(&scheme.Resource{GoType: reflect.TypeFor[corev1.Pod]()}, &request.Info{Verb: "list"})
	if _, err := list.Negotiate("text/html"); !strings.HasSuffix(fmt.Sprint(err), ", "+proto+", application/json;stream=watch, "+proto+";stream=watch") {
		t.Errorf("a list of a built-in type: %v", err)
	}
}

func TestListsAndObjectsHaveTheirOwnMetadataForms(t *testing.T) {
	res := scheme.NewRegistry().Lookup("", "v1", "namespaces")
	object, list := MediaType{As: "PartialObjectMetadata"}, MediaType{As: "PartialObjectMetadataList"}
	if object.Check(res, false) != nil || list.Check(res, true) != nil || (MediaType{As: "Table"}).Check(res, true) != nil {
		t.Error("a fitting form was refused")
	}
	if got := fmt.Sprint(object.Check(res, true)); got != "you requested PartialObjectMetadata, but the requested object is a list (*core.NamespaceList)" {
		t.Error(got)
	}
	if got := fmt.Sprint(list.Check(res, false)); got != "you requested PartialObjectMetadataList, but the requested object is not a list (*core.Namespace)" {
		t.Error(got)
	}
}

func TestErrorsBecomeStatuses(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	cases := []struct {
		name, target, accept, agent string
		err                         error
		wantCode                    int
		wantType, wantRetry, want   string
	}{
		{name: "not found", err: apierrors.NewNotFound(pods, "x"), wantCode: 404, wantType: "application/json",
			want: `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"pods \"x\" not found","reason":"NotFound","details":{"name":"x","kind":"pods"},"code":404}` + "\n"},
		{name: "wrapped", err: fmt.Errorf("while reading: %w", apierrors.NewNotFound(pods, "x")), wantCode: 404, wantType: "application/json",
			want: `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"pods \"x\" not found","reason":"NotFound","details":{"name":"x","kind":"pods"},"code":404}` + "\n"},
		{name: "YAML", accept: "application/yaml", err: apierrors.NewNotFound(pods, "x"), wantCode: 404, wantType: "application/yaml",
			want: "apiVersion: v1\ncode: 404\ndetails:\n  kind: pods\n  name: x\nkind: Status\nmessage: pods \"x\" not found\nmetadata: {}\nreason: NotFound\nstatus: Failure\n"},
		{name: "protobuf only", accept: "application/vnd.kubernetes.protobuf", err: apierrors.NewBadRequest("b"), wantCode: 400, wantType: "application/vnd.kubernetes.protobuf",
			want: "k8s\x00\n\x0c\n\x02v1\x12\x06Status\x12#\n\x06\n\x00\x12\x00\x1a\x00\x12\aFailure\x1a\x01b\"\nBadRequest0\x90\x03\x1a\x00\"\x00"},
		{name: "custom resources in protobuf, too", accept: "application/vnd.kubernetes.protobuf,application/json", err: apierrors.NewBadRequest("b"), wantCode: 400,
			wantType: "application/vnd.kubernetes.protobuf", want: "k8s\x00\n\x0c\n\x02v1\x12\x06Status\x12#\n\x06\n\x00\x12\x00\x1a\x00\x12\aFailure\x1a\x01b\"\nBadRequest0\x90\x03\x1a\x00\"\x00"},
		{name: "metadata alone", accept: "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1", err: apierrors.NewBadRequest("b"),
			wantCode: 400, wantType: "application/json",
			want: `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"b","reason":"BadRequest","code":400}` + "\n"},
		{name: "curl", agent: "curl/8", err: apierrors.NewBadRequest("b"), wantCode: 400, wantType: "application/json",
			want: "{\n  \"kind\": \"Status\",\n  \"apiVersion\": \"v1\",\n  \"metadata\": {},\n  \"status\": \"Failure\",\n  \"message\": \"b\",\n  \"reason\": \"BadRequest\",\n  \"code\": 400\n}"},
		{name: "curl, not pretty", target: "/?pretty=false", agent: "curl/8", err: apierrors.NewBadRequest("b"), wantCode: 400, wantType: "application/json",
			want: `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"b","reason":"BadRequest","code":400}` + "\n"},
		{name: "retry", err: apierrors.NewTooManyRequests("later", 7), wantCode: 429, wantType: "application/json", wantRetry: "7",
			want: `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"later","reason":"TooManyRequests","details":{"retryAfterSeconds":7},"code":429}` + "\n"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if c.target == "" {
				c.target = "/"
			}
			r := httptest.NewRequest("GET", c.target, nil)
			r.Header.Set("Accept", c.accept)
			r.Header.Set("User-Agent", c.agent)
			w := httptest.NewRecorder()
			if unexpected := WriteError(w, r, c.err); unexpected != nil {
				t.Errorf("unexpected: %v", unexpected)
			}
			if w.Code != c.wantCode || w.Body.String() != c.want {
				t.Errorf("got %d %s, want %d %s", w.Code, w.Body, c.wantCode, c.want)
			}
			if got := w.Header().Get("Content-Type"); got != c.wantType {
				t.Errorf("Content-Type is %s, want %s", got, c.wantType)
			}
			if got := w.Header().Get("Retry-After"); got != c.wantRetry {
				t.Errorf("Retry-After is %q, want %q", got, c.wantRetry)
			}
			if got := w.Header().Get("Cache-Control"); got != "no-cache, private" {
				t.Errorf("Cache-Control is %q", got)
			}
		})
	}
}

func TestUnknownErrorsStayInTheHouse(t *testing.T) {
	secret := errors.New("/var/lib/secret: input/output error")
	w := httptest.NewRecorder()
	if WriteError(w, httptest.NewRequest("GET", "/", nil), secret) != secret {
		t.Error("the caller did not get the error to log")
	}
	if body := w.Body.String(); w.Code != http.StatusInternalServerError || strings.Contains(body, "secret") ||
		!strings.Contains(body, `"message":"Internal error occurred: `) || !strings.Contains(body, `"reason":"InternalError"`) {
		t.Errorf("got %d %s", w.Code, body)
	}
}

func TestWhatHasNoGoodYAMLStaysJSON(t *testing.T) {
	deep := strings.Repeat(`{"a":[`, 5_000) + `"}]\\"` + strings.Repeat("]}", 5_000)
	flat := "[" + strings.Repeat(`{"a":"{["},`, 1_000) + "1]"
	cases := []struct{ name, doc, wantType string }{
		{"control character", "{\"a\":\"\x7f\"}", "application/json"},
		{"deep", deep, "application/json"},
		{"wide", flat, "application/yaml"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r := httptest.NewRequest("GET", "/?pretty=true", nil)
			r.Header.Set("Accept", "application/yaml")
			w := httptest.NewRecorder()
			WriteJSON(w, r, http.StatusOK, []byte(c.doc))
			if got := w.Header().Get("Content-Type"); got != c.wantType || w.Body.Len() > 2*len(c.doc)+20 {
				t.Errorf("got %d bytes of %s, want %s", w.Body.Len(), got, c.wantType)
			}
		})
	}
}

// A list that is 480 levels deep would be five hundred times as long with its lines indented.
func TestNoFormMultipliesADocument(t *testing.T) {
	deepAndWide := func(depth, width int) []byte {
		return []byte(`{"a":` + strings.Repeat("[", depth) + "1" + strings.Repeat(",1", width) + strings.Repeat("]", depth) + "}")
	}
	res := scheme.NewRegistry().Lookup("", "v1", "configmaps")
	for name, doc := range map[string][]byte{"deep and wide": deepAndWide(480, 500_000), "shallower": deepAndWide(20, 500_000), "deep alone": deepAndWide(5_000, 1),
		"lines of a text": []byte(`{"a":` + strings.Repeat("[", 400) + `"` + strings.Repeat(`a\n`, 400_000) + `"` + strings.Repeat("]", 400) + "}"),
		"words of a text": []byte(`{"a":` + strings.Repeat("[", 400) + `"` + strings.Repeat("a ", 600_000) + `"` + strings.Repeat("]", 400) + "}"),
		"braces in texts": []byte(`{"a":"` + strings.Repeat(`{[\"`, 400_000) + `"}`)} {
		for _, m := range []MediaType{{Format: scheme.JSONFormat, Pretty: true}, {Format: scheme.YAMLFormat}} {
			encoded, _, _ := m.Encode(doc, false)
			if len(encoded) > 4*len(doc)+1<<20 {
				t.Errorf("%s as %+v: %d bytes of %d", name, m, len(encoded), len(doc))
			}
		}
		if name == "braces in texts" || len(doc) < 1<<20 {
			continue
		}
		view := &View{Res: res, Media: MediaType{Format: scheme.YAMLFormat}}
		stored := append([]byte(`{"metadata":{"name":"m","resourceVersion":"1"},"data":`), append(doc, '}')...)
		item, err := view.yamlItem(nil, &store.Record{JSON: stored})
		if err != nil || len(item) > 4*len(stored)+1<<20 {
			t.Errorf("%s as an item of a list in YAML: %d bytes of %d, %v", name, len(item), len(doc), err)
		}
	}
	script := []byte(`{"data":{"run.sh":"` + strings.Repeat(`if [ -f \"$1\" ]; then\n  echo \"there it is\"\nfi\n`, 5_000) + `"}}`)
	if got, _, format := (MediaType{Format: scheme.YAMLFormat}).Encode(script, false); format != scheme.YAMLFormat {
		t.Errorf("a long script is %s: %.100s", format, got)
	}
	ordinary := deepAndWide(8, 1000)
	if got, _, format := (MediaType{Format: scheme.YAMLFormat}).Encode(ordinary, false); format != scheme.YAMLFormat {
		t.Errorf("an ordinary document is %s: %.100s", format, got)
	}
	if got, _, _ := (MediaType{Format: scheme.JSONFormat, Pretty: true}).Encode(ordinary, false); !strings.Contains(string(got), "\n  \"a\"") {
		t.Errorf("an ordinary document is not indented: %.100s", got)
	}
}
