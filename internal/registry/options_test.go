package registry

import (
	"net/http/httptest"
	"strings"
	"testing"

	"apilet/internal/scheme"
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
		options, err := readDeleteOptions(httptest.NewRecorder(), httptest.NewRequest("DELETE", "/?"+query, nil), pods)
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
