package auth

import (
	"strings"
	"testing"
)

func TestPatternsMatchWholeOrigins(t *testing.T) {
	for _, c := range []struct{ pattern, allowed, refused string }{
		{`https://example.com`, "https://example.com https://exampleXcom", "https://example.com.evil.org https://exampleXcom.evil.org https://example.com:8443 http://example.com null"},
		{`^https://good\.example$`, "https://good.example", "https://good.example:1 https://goodxexample https://evil.good.example"},
		{`//example\.com(:|$)`, "https://example.com http://example.com http://example.com:8080", "https://example.com.evil.org https://evil.org//example.com https://example.com:x https://example.com:1.evil.org"},
		{`^https://example\.com(:|$)`, "https://example.com https://example.com:8443", "http://example.com https://example.com:8443.evil.org https://example.comx"},
		{`^https://a\.example$|^https://b\.example$`, "https://a.example https://b.example", "https://a.example.b.example https://c.example"},
		{`^https://[^.]+\.example\.com$|//b:`, "https://x.example.com http://b:1", "https://x.y.example.com https://b https://ab:1"},
		{`//\[::1\]:`, "http://[::1]:80", "http://[::1] http://[::1]:80x"},
	} {
		a, err := New(Config{Insecure: true, CORSOrigins: []string{c.pattern}})
		if err != nil {
			t.Fatal(err)
		}
		for origin := range strings.FieldsSeq(c.allowed) {
			if !a.matchesOrigin(origin) {
				t.Errorf("%s does not match %s", c.pattern, origin)
			}
		}
		for origin := range strings.FieldsSeq(c.refused) {
			if a.matchesOrigin(origin) {
				t.Errorf("%s matches %s", c.pattern, origin)
			}
		}
	}
}

func TestPatternsWithoutEndsAreRefused(t *testing.T) {
	const pins = "regular expression does not pin to start/end of host in the origin header, help: "
	for pattern, want := range map[string]string{"": "empty value in --cors-allowed-origins, help: ", " ": "empty value", "good": pins, "^good": pins, "good$": pins, ".*": pins,
		"(": "missing closing )", `//a:\Qx`: "missing closing )"} {
		if _, err := New(Config{CORSOrigins: []string{`^https://a$`, pattern}}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", pattern, err, want)
		}
	}
}
