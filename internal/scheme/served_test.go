package scheme

import (
	"fmt"
	"os"
	"path"
	"reflect"
	"slices"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	registrationv1alpha1 "k8s.io/api/admissionregistration/v1alpha1"
	registrationv1beta1 "k8s.io/api/admissionregistration/v1beta1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	resourcev1alpha3 "k8s.io/api/resource/v1alpha3"
	resourcev1beta2 "k8s.io/api/resource/v1beta2"
	storagemigrationv1beta1 "k8s.io/api/storagemigration/v1beta1"
)

// shape is what a Go type looks like in JSON and in protobuf.
func shape(t reflect.Type, above ...reflect.Type) string {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice:
		return t.Kind().String() + " " + shape(t.Elem(), above...)
	case reflect.Map:
		return "map " + shape(t.Key()) + " " + shape(t.Elem(), above...)
	case reflect.Struct:
	default:
		return t.Kind().String()
	}
	if slices.Contains(above, t) {
		return "again"
	}
	var out strings.Builder
	for i := range t.NumField() {
		f := t.Field(i)
		fmt.Fprintf(&out, "\n%s%s %s: %s", strings.Repeat(" ", len(above)), f.Tag.Get("json"), f.Tag.Get("protobuf"), shape(f.Type, append(above, t)...))
	}
	return out.String()
}

// TestOptionalVersionsAreAsTheirTypesSay: k8s.io/api has types of their own for these versions, with the same fields, which the binary goes without.
func TestOptionalVersionsAreAsTheirTypesSay(t *testing.T) {
	types := []any{certificatesv1beta1.ClusterTrustBundle{},
		registrationv1beta1.MutatingAdmissionPolicy{}, registrationv1beta1.MutatingAdmissionPolicyBinding{},
		registrationv1alpha1.MutatingAdmissionPolicy{}, registrationv1alpha1.MutatingAdmissionPolicyBinding{},
		resourcev1beta2.DeviceClass{}, resourcev1beta2.DeviceTaintRule{}, resourcev1beta2.ResourceClaim{}, resourcev1beta2.ResourceClaimTemplate{},
		resourcev1beta2.ResourceSlice{}, resourcev1alpha3.DeviceTaintRule{}, storagemigrationv1beta1.StorageVersionMigration{}}
	if len(types) != len(Optional) {
		t.Fatal(len(types), "types for", len(Optional), "rows")
	}
	for i, res := range Optional {
		own := reflect.TypeOf(types[i])
		if own.Name() != res.Kind || path.Base(own.PkgPath()) != res.Version {
			t.Fatalf("%s %s is compared with %v", res.APIVersion(), res.Kind, own)
		}
		served, stored := strings.Split(shape(own), "\n"), strings.Split(shape(res.GoType), "\n")
		for i := range max(len(served), len(stored)) {
			if i >= len(served) || i >= len(stored) || served[i] != stored[i] {
				t.Errorf("%s %s: %q is %q", res.APIVersion(), res.Kind, served[min(i, len(served)-1)], stored[min(i, len(stored)-1)])
				break
			}
		}
		if want := lifecycleOf(reflect.New(own).Interface()); *want != *res.Deprecation {
			t.Errorf("%s %s has the lifecycle %v, want %v", res.APIVersion(), res.Kind, *res.Deprecation, *want)
		}
		if want := introducedIn(reflect.New(own).Interface()); want != res.Introduced {
			t.Errorf("%s %s was introduced in %d, want %d", res.APIVersion(), res.Kind, res.Introduced, want)
		}
		stable := NewRegistry().Lookup(res.StorageGroup, "v1", res.Plural)
		if stable == nil || stable.Base != res.Base || stable.Namespaced != res.Namespaced || stable.Generation != res.Generation {
			t.Errorf("%s %s is stored as nothing that is", res.APIVersion(), res.Kind)
		}
	}
}

func TestServed(t *testing.T) {
	for config, want := range map[string]string{
		"":                             "",
		"api/all=true":                 fmt.Sprint("+", len(Optional)),
		"api/all":                      fmt.Sprint("+", len(Optional)),
		"api/alpha=true":               "+3",
		"api/all=true,api/alpha=false": fmt.Sprint("+", len(Optional)-3),
		"api/alpha=false,api/all=true": fmt.Sprint("+", len(Optional)-3),
		"certificates.k8s.io/v1beta1":  "+1",
		"certificates.k8s.io/v1beta1=true, storagemigration.k8s.io/v1beta1=true":    "+2",
		"resource.k8s.io/v1beta2=true,resource.k8s.io/v1beta2/resourceslices=false": "+4",
		"certificates.k8s.io/v1beta1/clustertrustbundles=true,api/beta=false":       "+1-4",
		"batch/v1beta1=false":               "-1",
		"apps/v1=true":                      "",
		"apps/v1=false":                     "apps/v1 is always served",
		"api/all=false":                     "v1 is always served",
		"api/ga=false":                      "v1 is always served",
		"networking.k8s.io/v1beta1=perhaps": `"networking.k8s.io/v1beta1=perhaps" is neither true nor false`,
		"bogus":                             "runtime-config invalid key bogus",
		"batch/v2alpha1=true":               "",
		"example.com/v1=true":               "unknown api groups example.com/v1",
	} {
		rows, err := Served(strings.FieldsFunc(config, func(r rune) bool { return r == ',' }))
		if err != nil {
			if err.Error() != want {
				t.Errorf("%s: %v", config, err)
			}
			continue
		}
		more, fewer := 0, len(Builtins)
		for _, res := range rows {
			if slices.Contains(Builtins, res) {
				fewer--
			} else {
				more++
			}
		}
		got := ""
		if more > 0 {
			got += fmt.Sprint("+", more)
		}
		if fewer > 0 {
			got += fmt.Sprint("-", fewer)
		}
		if got != want {
			t.Errorf("%s: %s, want %s", config, got, want)
		}
	}
}

// TestServedBy names the types that differ from one version to the next. The errors are kube-apiserver's.
func TestServedBy(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		minor        int
		config, want string
	}{
		{37, "", "certificates.k8s.io/v1/clustertrustbundles admissionregistration.k8s.io/v1/mutatingadmissionpolicies"},
		{36, "", "admissionregistration.k8s.io/v1/mutatingadmissionpolicies"},
		{35, "", ""},
		{24, "", "policy/v1beta1/poddisruptionbudgets"},
		{36, "api/all", "admissionregistration.k8s.io/v1/mutatingadmissionpolicies certificates.k8s.io/v1beta1/clustertrustbundles"},
		{35, "certificates.k8s.io/v1beta1=true", "certificates.k8s.io/v1beta1/clustertrustbundles"},
		{36, "certificates.k8s.io/v1/clustertrustbundles", "cannot enable resource certificates.k8s.io/v1, Resource=clustertrustbundles in runtime-config because it is introduced at 1.37 after the current version 1.36"},
		{36, "storagemigration.k8s.io/v1=true", "cannot enable version storagemigration.k8s.io/v1 in runtime-config because all the resources have been introduced after the current version 1.36"},
	} {
		config := strings.Fields(c.config)
		rows, err := Served(config)
		if err != nil {
			t.Fatal(err)
		}
		rows, err = ServedBy(c.minor, rows, config)
		var served []string
		for _, res := range rows {
			switch name := res.APIVersion() + "/" + res.Plural; name {
			case "certificates.k8s.io/v1/clustertrustbundles", "admissionregistration.k8s.io/v1/mutatingadmissionpolicies",
				"certificates.k8s.io/v1beta1/clustertrustbundles", "policy/v1beta1/poddisruptionbudgets":
				served = append(served, name)
			}
		}
		if got := strings.Join(served, " "); err == nil && got != c.want || err != nil && err.Error() != c.want {
			t.Errorf("1.%d, %q: got %q and %v, want %q", c.minor, c.config, got, err, c.want)
		}
	}
}

// TestVersionIsThatOfTheModule: the version that the server reports is that of the Kubernetes module it is linked with.
func TestVersionIsThatOfTheModule(t *testing.T) {
	text, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "\tk8s.io/kubernetes "+KubernetesVersion+"\n") || !strings.HasPrefix(KubernetesVersion, fmt.Sprintf("v1.%d.", kubernetesMinor)) {
		t.Errorf("go.mod does not require k8s.io/kubernetes %s of minor version %d", KubernetesVersion, kubernetesMinor)
	}
}

// v1alpha1 has a default that later versions do not have.
func TestMissingParamsAreDeniedInV1alpha1(t *testing.T) {
	t.Parallel()
	rows, err := Served([]string{"admissionregistration.k8s.io/v1alpha1"})
	if err != nil {
		t.Fatal(err)
	}
	for _, version := range []string{"v1", "v1alpha1"} {
		res := NewRegistry(rows...).Lookup("admissionregistration.k8s.io", version, "mutatingadmissionpolicybindings")
		body := `{"apiVersion":"admissionregistration.k8s.io/` + version + `","kind":"MutatingAdmissionPolicyBinding","spec":{"paramRef":{}}}`
		obj, _, err := res.Decode([]byte(body), "application/json", "")
		if err != nil {
			t.Fatal(err)
		}
		action := obj.(*admissionregistrationv1.MutatingAdmissionPolicyBinding).Spec.ParamRef.ParameterNotFoundAction
		if (action != nil) != (version == "v1alpha1") {
			t.Errorf("%s: got %v", version, action)
		}
	}
}
