package continuetoken

import (
	"bytes"
	"encoding/base64"
	"strings"
	"testing"

	"apilet/internal/apitest"
	"apilet/internal/selector"
)

func testMatcher(prefix string) *selector.Matcher {
	return &selector.Matcher{Prefix: prefix, Span: prefix}
}

func testKey(n byte) []byte { return bytes.Repeat([]byte{n}, 32) }

func TestTokenRoundTrip(t *testing.T) {
	t.Parallel()
	codec, list := NewCodec([][]byte{testKey(1)}), testMatcher("//configmaps/p1/")
	for _, token := range []Token{
		{Rev: 1, Start: "a\x00", Remaining: 3, Lineage: 7},
		{Rev: 1 << 62, Start: strings.Repeat("n", 253) + "\x00", Remaining: -1, Lineage: 1<<32 - 1},
		{Start: "é\x00\xff", Remaining: 1 << 62},
	} {
		text := codec.Seal(token, list)
		got, err := codec.Open(text, list)
		if err != nil || *got != token {
			t.Errorf("sealed %+v, opened %+v, %v", token, got, err)
		}
		if again := codec.Seal(token, list); again != text {
			t.Errorf("equal input gave %s and %s", text, again)
		}
	}
}

func TestTokenWithAFlippedBitIsRefused(t *testing.T) {
	t.Parallel()
	codec, list := NewCodec([][]byte{testKey(1), testKey(2)}), testMatcher("//configmaps/p1/")
	text := codec.Seal(Token{Rev: 77, Start: "b\x00", Remaining: 3, Lineage: 5}, list)
	raw, _ := base64.RawURLEncoding.DecodeString(text)
	for bit := range len(raw) * 8 {
		forged := bytes.Clone(raw)
		forged[bit/8] ^= 1 << (bit % 8)
		if _, err := codec.Open(base64.RawURLEncoding.EncodeToString(forged), list); err == nil {
			t.Errorf("bit %d of the bytes may be flipped", bit)
		}
	}
	for bit := range len(text) * 8 {
		forged := []byte(text)
		forged[bit/8] ^= 1 << (bit % 8)
		if _, err := codec.Open(string(forged), list); err == nil {
			t.Errorf("bit %d of the text may be flipped: %s", bit, forged)
		}
	}
}

func TestTokenIsBoundToItsList(t *testing.T) {
	t.Parallel()
	codec := NewCodec([][]byte{testKey(1)})
	lists := []*selector.Matcher{testMatcher("//configmaps/p1/"), testMatcher("//configmaps/"), testMatcher("//secrets/p1/"), testMatcher("//configmaps/p"),
		{Prefix: "//configmaps/p1/", Selectors: "a\x00"}, {Prefix: "//configmaps/p1/", Selectors: "\x00a"}, {Prefix: "//configmaps/p1/a", Selectors: "\x00"}}
	for i, of := range lists {
		text := codec.Seal(Token{Rev: 3, Start: "b\x00"}, of)
		for j, on := range lists {
			if _, err := codec.Open(text, on); (err == nil) != (i == j) {
				t.Errorf("a token of list %d used on list %d: %v", i, j, err)
			}
		}
	}
}

func TestTokenKeysRotate(t *testing.T) {
	t.Parallel()
	list, token := testMatcher("//configmaps/p1/"), Token{Rev: 3, Start: "b\x00", Remaining: -1}
	sealed := func(c *Codec) string { return c.Seal(token, list) }
	before, both, after := NewCodec([][]byte{testKey(1)}), NewCodec([][]byte{testKey(2), testKey(1)}), NewCodec([][]byte{testKey(2)})
	for _, c := range []struct {
		title string
		text  string
		codec *Codec
		ok    bool
	}{
		{"old token, both keys", sealed(before), both, true},
		{"new token, both keys", sealed(both), both, true},
		{"new token, new key", sealed(both), after, true},
		{"new token, old key", sealed(both), before, false},
		{"old token, new key", sealed(before), after, false},
	} {
		if _, err := c.codec.Open(c.text, list); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.title, err)
		}
	}
}

func TestTokenTellsNoName(t *testing.T) {
	t.Parallel()
	const secret = "launch-codes"
	text := NewCodec([][]byte{testKey(1)}).Seal(Token{Rev: 3, Start: secret + "\x00"}, testMatcher("//secrets/p1/"))
	raw, _ := base64.RawURLEncoding.DecodeString(text)
	if strings.Contains(text, secret) || bytes.Contains(raw, []byte(secret)) || bytes.Contains(raw, []byte("p1")) {
		t.Errorf("a name is readable in %q", raw)
	}
}

func FuzzContinueToken(f *testing.F) {
	codec, list := NewCodec([][]byte{testKey(1), testKey(2)}), testMatcher("//configmaps/p1/")
	sealed := map[string]bool{}
	for _, start := range []string{"", "a\x00", "b\x00"} {
		for _, rev := range []int64{0, 1, 300} {
			text := codec.Seal(Token{Rev: rev, Start: start, Remaining: rev - 1}, list)
			sealed[text] = true
			f.Add(text)
		}
	}
	f.Add("")
	f.Fuzz(func(t *testing.T, text string) {
		if _, err := codec.Open(text, list); err == nil && !sealed[text] {
			t.Errorf("a token that was never sealed is accepted: %q", text)
		}
	})
}

// TestKeyFilesAreReadWhole checks that a line that is too long is an error, and does not end the
// file silently.
func TestKeyFilesAreReadWhole(t *testing.T) {
	t.Parallel()
	key := base64.StdEncoding.EncodeToString(make([]byte, 32))
	for text, want := range map[string]int{key: 1, key + "\n\n" + key + "\n": 2, key + "\n" + strings.Repeat(key, 2000): 0, "": 0, "x": 0} {
		keys, err := ReadKeys(apitest.TempFile(t, "keys", text))
		if len(keys) != want || (err == nil) != (want > 0) {
			t.Errorf("%.60s: got %d keys, %v; want %d", text, len(keys), err, want)
		}
	}
}
