package registry

import (
	"net/http/httptest"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"apilet/internal/request"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

// The options in a DELETE's query are read as kube-apiserver reads them: what is there and empty is not the same as what is not there.
func TestDeleteOptionsInTheQuery(t *testing.T) {
	t.Parallel()
	pods := &scheme.Resource{Kind: "Pod", Plural: "pods"}
	for query, want := range map[string]string{
		"orphanDependents=":                     "orphan:true",
		"orphanDependents=FALSE":                "orphan:false",
		"gracePeriodSeconds=5&uid=u":            "grace:5 uid:u",
		"resourceVersion=7&resourceVersion=8":   "version:7",
		"gracePeriodSeconds=":                   `strconv.ParseInt: parsing "": invalid syntax`,
		"gracePeriodSeconds=long":               `strconv.ParseInt: parsing "long": invalid syntax`,
		"propagationPolicy=":                    `propagationPolicy: Unsupported value: ""`,
		"propagationPolicy=Orphan":              "policy:Orphan",
		"propagationPolicy=Never":               `propagationPolicy: Unsupported value: "Never"`,
		"orphanDependents&propagationPolicy=no": "orphanDependents and deletionPropagation cannot be both set",
	} {
		options, err := readDeleteOptions(httptest.NewRecorder(), httptest.NewRequest("DELETE", "/?"+query, nil), &request.Request{}, pods)
		var got []string
		if err != nil {
			got = append(got, err.Error())
		} else {
			if options.OrphanDependents != nil {
				got = append(got, map[bool]string{true: "orphan:true", false: "orphan:false"}[*options.OrphanDependents])
			}
			if options.GracePeriodSeconds != nil && *options.GracePeriodSeconds == 5 {
				got = append(got, "grace:5")
			}
			if options.PropagationPolicy != nil {
				got = append(got, "policy:"+string(*options.PropagationPolicy))
			}
			if p := options.Preconditions; p != nil && p.UID != nil {
				got = append(got, "uid:"+string(*p.UID))
			}
			if p := options.Preconditions; p != nil && p.ResourceVersion != nil {
				got = append(got, "version:"+*p.ResourceVersion)
			}
		}
		if text := strings.Join(got, " "); !strings.Contains(text, want) || err == nil && text != want {
			t.Errorf("%s: %s, want %s", query, text, want)
		}
	}
}

// What is too long may not be made. What is there already can shrink, and be deleted.
func TestObjectsHaveABound(t *testing.T) {
	t.Parallel()
	long := func(length int, deleting bool) *store.Record {
		return &store.Record{JSON: make([]byte, length), Deleting: deleting}
	}
	for _, c := range []struct {
		title  string
		length int
		old    *store.Record
		good   bool
	}{
		{"a new one of just that length", MaxStored, nil, true},
		{"a new one that is longer", MaxStored + 1, nil, false},
		{"one that grows beyond", MaxStored + 1, long(MaxStored, false), false},
		{"one that is too long and stays so", MaxStored + 2, long(MaxStored+2, false), true},
		{"one that is too long and grows", MaxStored + 3, long(MaxStored+2, false), false},
		{"one that is deleted and gets an owner of its fields", MaxStored + 300, long(MaxStored, true), true},
		{"one that is deleted and grows for ever", 2*MaxStored + 1, long(2*MaxStored, true), false},
	} {
		if err := checkSize(make([]byte, c.length), c.old); (err == nil) != c.good || err != nil && !apierrors.IsRequestEntityTooLargeError(err) {
			t.Errorf("%s: %v", c.title, err)
		}
	}
}
