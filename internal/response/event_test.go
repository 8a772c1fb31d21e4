package response

import (
	"testing"

	"apilet/internal/apitest"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

// TestSealedEventsAreShared checks that watches with the same view share an encoded event, and that
// watches with different views do not.
func TestSealedEventsAreShared(t *testing.T) {
	t.Parallel()
	var log EventCache
	configMaps, pods := scheme.NewRegistry().Lookup("", "v1", "configmaps"), scheme.NewRegistry().Lookup("", "v1", "pods")
	v := &View{Res: configMaps, Media: MediaType{Format: scheme.ProtobufFormat}}
	rec := &store.Record{Rev: 5, JSON: []byte(`{}`)}
	log.add(v, rec, []byte("sealed"))
	apitest.Expect(t, string(log.find(v, rec)), "sealed")
	partial := &View{Res: configMaps, Media: MediaType{Format: scheme.ProtobufFormat, As: "PartialObjectMetadata", Version: "v1"}}
	for name, found := range map[string][]byte{"another form": log.find(partial, rec), "another type": log.find(&View{Res: pods, Media: v.Media}, rec),
		"another object": log.find(v, &store.Record{Rev: 5, JSON: []byte(`{}`)}), "another revision": log.find(v, &store.Record{Rev: 6, JSON: rec.JSON})} {
		if found != nil {
			t.Errorf("%s: found %q", name, found)
		}
	}
	log.add(v, &store.Record{Rev: 5 + cachedEvents, JSON: make([]byte, MaxCachedProtobuf+1)}, []byte("large"))
	apitest.Expect(t, string(log.find(v, rec)), "sealed")
	log.add(v, &store.Record{Rev: 5 + cachedEvents, JSON: []byte(`{}`)}, []byte("next"))
	apitest.Expect(t, log.find(v, rec) == nil, true)
}
