package auth_test

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"apilet/internal/auth/bootstraptoken"
	"apilet/internal/store"
	"apilet/internal/store/storetest"
)

// write stores a Secret as the registry does, and returns its revision.
func write(t *testing.T, st *store.Store, secret *corev1.Secret) int64 {
	t.Helper()
	const revision = `"resourceVersion":"`
	secret.ResourceVersion = "0"
	doc, err := json.Marshal(secret)
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.Index(doc, []byte(revision)) + len(revision)
	doc = slices.Delete(doc, at, at+1)
	rec, err := st.Commit(t.Context(), store.Change{Op: store.OpCreate, Key: "//secrets/" + secret.Namespace + "/" + secret.Name, JSON: doc, RevAt: at})
	if err != nil {
		t.Fatal(err)
	}
	return rec.Rev
}

func data(pairs ...string) map[string][]byte {
	all := map[string][]byte{"token-id": []byte("abcdef"), "token-secret": []byte("0123456789abcdef"), "usage-bootstrap-authentication": []byte("true")}
	for _, pair := range pairs {
		key, value, _ := strings.Cut(pair, "=")
		if all[key] = []byte(value); value == "" {
			delete(all, key)
		}
	}
	return all
}

func TestOnlyValidTokensAuthenticate(t *testing.T) {
	t.Parallel()
	const good = "abcdef.0123456789abcdef"
	inOneHour, anHourAgo := time.Now().Add(time.Hour).UTC().Format(time.RFC3339), time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)
	for _, c := range []struct {
		name, token string
		secret      corev1.Secret // of kube-system and the right type, if it does not say otherwise
		groups      string        // "": the token is rejected
		logged      string
	}{
		{"as small as possible", good, corev1.Secret{Data: data()}, "system:bootstrappers system:authenticated", ""},
		{"with groups", good, corev1.Secret{Data: data("auth-extra-groups=system:bootstrappers:z,system:bootstrappers:a,system:bootstrappers:z")},
			"system:bootstrappers system:bootstrappers:a system:bootstrappers:z system:authenticated", ""},
		{"before its end", good, corev1.Secret{Data: data("expiration=" + inOneHour)}, "system:bootstrappers system:authenticated", ""},

		{"after its end", good, corev1.Secret{Data: data("expiration=" + anHourAgo)}, "", "has expired"},
		{"with an unreadable end", good, corev1.Secret{Data: data("expiration=tomorrow")}, "", "has expired"},
		{"with another secret", "abcdef.0123456789abcdee", corev1.Secret{Data: data()}, "", "invalid value for key token-secret"},
		{"with a longer stored secret", good, corev1.Secret{Data: data("token-secret=0123456789abcdef0")}, "", "invalid value for key token-secret"},
		{"with another secret, after its end", "abcdef.0123456789abcdee", corev1.Secret{Data: data("expiration="+anHourAgo, "token-id=abcdee")}, "", "invalid value for key token-secret"},
		{"without a stored secret", good, corev1.Secret{Data: data("token-secret=")}, "", "invalid value for key token-secret"},
		{"with another id", good, corev1.Secret{Data: data("token-id=abcdee")}, "", "invalid value for key token-id"},
		{"for signing only", good, corev1.Secret{Data: data("usage-bootstrap-authentication=", "usage-bootstrap-signing=true")}, "", "not marked usage-bootstrap-authentication=true"},
		{"with a usage in capitals", good, corev1.Secret{Data: data("usage-bootstrap-authentication=TRUE")}, "", "not marked"},
		{"in system:masters", good, corev1.Secret{Data: data("auth-extra-groups=system:masters")}, "", "invalid value for key auth-extra-groups"},
		{"with an empty group", good, corev1.Secret{Data: data("auth-extra-groups=system:bootstrappers:a,")}, "", "invalid value for key auth-extra-groups"},
		{"in another namespace", good, corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default"}, Data: data()}, "", "has no Secret"},
		{"of another name", good, corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-abcdeg"}, Data: data()}, "", "has no Secret"},
		{"of another type", good, corev1.Secret{Type: corev1.SecretTypeOpaque, Data: data()}, "", "has an invalid type"},
		{"without data", good, corev1.Secret{}, "", "invalid value for key token-secret"},
		{"that is being deleted", good, corev1.Secret{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &metav1.Time{Time: time.Now().Add(time.Hour)}, Finalizers: []string{"a.example/b"}},
			Data: data()}, "", "is deleted"},
		{"in capitals", strings.ToUpper(good), corev1.Secret{Data: data()}, "", ""},
		{"with a line feed", good + "\n", corev1.Secret{Data: data()}, "", ""},
		{"with a part of a path", "../abc.0123456789abcdef", corev1.Secret{Data: data()}, "", ""},
		{"without a dot", strings.Replace(good, ".", "", 1), corev1.Secret{Data: data()}, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.secret.Namespace, c.secret.Name = orElse(c.secret.Namespace, "kube-system"), orElse(c.secret.Name, "bootstrap-token-abcdef")
			c.secret.Type = corev1.SecretType(orElse(string(c.secret.Type), "bootstrap.kubernetes.io/token"))
			st := storetest.Open(t, filepath.Join(t.TempDir(), "a.db"))
			write(t, st, &c.secret)
			var log bytes.Buffer
			u, ok, err := (&bootstraptoken.Tokens{Store: st, Log: zerolog.New(&log)}).User(c.token)
			if err != nil || ok != (c.groups != "") || strings.Join(u.Groups, " ") != c.groups || ok && u.Name != "system:bootstrap:abcdef" || len(u.Extra) > 0 || u.UID != "" {
				t.Errorf("got %+v %v %v, want the groups %q", u, ok, err, c.groups)
			}
			if !strings.Contains(log.String(), c.logged) || c.logged == "" && log.Len() > 0 || strings.Contains(log.String(), "0123456789abcde") {
				t.Errorf("logged %s, want %q and no secret", log.String(), c.logged)
			}
		})
	}
}

func orElse(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}

// TestTokensEndWithTheirSecrets: nothing of a token is remembered.
func TestTokensEndWithTheirSecrets(t *testing.T) {
	t.Parallel()
	st := storetest.Open(t, filepath.Join(t.TempDir(), "a.db"))
	tokens := &bootstraptoken.Tokens{Store: st, Log: zerolog.Nop()}
	expect := func(want bool) {
		t.Helper()
		if _, ok, err := tokens.User("abcdef.0123456789abcdef"); ok != want || err != nil {
			t.Errorf("got %v %v, want %v", ok, err, want)
		}
	}
	expect(false)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "bootstrap-token-abcdef"}, Type: "bootstrap.kubernetes.io/token", Data: data()}
	rev := write(t, st, secret)
	expect(true)
	storetest.MustWrite(t, st, store.OpDelete, "//secrets/kube-system/bootstrap-token-abcdef", rev, "")
	expect(false)
}

// TestUnreadableSecretsAreErrors: they authenticate nobody, and are not mistaken for unknown tokens.
func TestUnreadableSecretsAreErrors(t *testing.T) {
	t.Parallel()
	st := storetest.Open(t, filepath.Join(t.TempDir(), "a.db"))
	head := `{"metadata":{"resourceVersion":"`
	if _, err := st.Commit(t.Context(), store.Change{Op: store.OpCreate, Key: "//secrets/kube-system/bootstrap-token-abcdef", JSON: []byte(head + `"},"data":7}`), RevAt: len(head)}); err != nil {
		t.Fatal(err)
	}
	if u, ok, err := (&bootstraptoken.Tokens{Store: st, Log: zerolog.Nop()}).User("abcdef.0123456789abcdef"); ok || err == nil {
		t.Errorf("got %+v %v %v, want an error", u, ok, err)
	}
}
