package deprecations

import (
	"testing"

	"apilet/internal/scheme"
)

func TestDeprecationWarnings(t *testing.T) {
	t.Parallel()
	in := [2]int{1, 36}
	old := &scheme.Deprecation{Deprecated: [2]int{1, 21}}
	removed := &scheme.Deprecation{Deprecated: [2]int{1, 21}, Removed: [2]int{1, 25}}
	replaced := &scheme.Deprecation{Deprecated: [2]int{1, 21}, Removed: [2]int{1, 25}, ReplacementGroup: "batch", ReplacementVersion: "v1", Replaced: "CronJob"}
	core := &scheme.Deprecation{Deprecated: [2]int{1, 33}, ReplacementGroup: "discovery.k8s.io", ReplacementVersion: "v1", Replaced: "EndpointSlice"}
	for _, c := range []struct {
		number, group, version, kind string
		d                            *scheme.Deprecation
		want                         string
	}{
		{"54", "batch", "v1beta1", "CronJob", old, "batch/v1beta1 CronJob is deprecated in v1.21+"},
		{"55", "batch", "v1beta1", "CronJob", removed, "batch/v1beta1 CronJob is deprecated in v1.21+, unavailable in v1.25+"},
		{"56", "batch", "v1beta1", "CronJob", replaced, "batch/v1beta1 CronJob is deprecated in v1.21+, unavailable in v1.25+; use batch/v1 CronJob"},
		{"57", "", "v1", "Endpoints", core, "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice"},
	} {
		if got := Warning(c.group, c.version, c.kind, c.d); got != c.want || !InEffect(c.d, in) {
			t.Errorf("case %s: got %q (deprecated %v), want %q", c.number, got, InEffect(c.d, in), c.want)
		}
	}
	if InEffect(core, [2]int{1, 32}) || InEffect(core, [2]int{0, 99}) || InEffect(nil, in) || InEffect(&scheme.Deprecation{}, [2]int{}) {
		t.Error("case 58: deprecated in an older server, or without a deprecation")
	}
	if !InEffect(core, [2]int{}) || !InEffect(core, [2]int{1, 33}) || !InEffect(core, [2]int{2, 0}) {
		t.Error("case 59: not deprecated in an unknown, equal or newer server")
	}
	if RemovedRelease(old) != "" || RemovedRelease(removed) != "1.25" {
		t.Errorf("RemovedRelease = %q and %q, want none and 1.25", RemovedRelease(old), RemovedRelease(removed))
	}
}
