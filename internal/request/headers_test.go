package request

import "testing"

func TestHeadersAreFoundInEverySpelling(t *testing.T) {
	for _, c := range []struct {
		key, name    string
		is, beginsSo bool
	}{
		{"X-Remote-User", "X-Remote-User", true, true}, {"X_Remote_User", "X-Remote-User", true, true}, {"x.rEMOTE-user", "X-Remote-User", true, true},
		{"X-Remote_User2", "X-Remote-User", false, true}, {"X-Remote-Use", "X-Remote-User", false, false}, {"XRemote-User", "X-Remote-User", false, false},
		{"X-Remote-Extra_A", "X_Remote_Extra_", false, true}, {"", "X", false, false}, {"Xa", "X-", false, false}, {"X1", "X-", false, false},
	} {
		if is, begins := IsHeader(c.key, c.name), HasHeaderPrefix(c.key, c.name); is != c.is || begins != c.beginsSo {
			t.Errorf("%q and %q: %v %v, want %v %v", c.key, c.name, is, begins, c.is, c.beginsSo)
		}
	}
	key, found := "X_Remote_User", false
	if n := testing.AllocsPerRun(100, func() { found = IsHeader(key, "X-Remote-User") }); n > 0 || !found {
		t.Errorf("%v allocations; every header of every request is compared", n)
	}
}
