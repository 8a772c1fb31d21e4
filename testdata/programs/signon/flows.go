package main

// This file implements the endpoints that are used to log in with a name and a password (OpenID
// Connect).
//
//	/authorize   a form; then a code for a program on this machine (authorization code, with PKCE)
//	/device      the same form, for a code that another device shows (device code)
//	/token       a token for one of these codes, for a name and a password, or for a refresh token
//
// A code is valid for a minute and can be used once. All users have the same password, so that
// wrong passwords can be tested.

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"html/template"
	"log"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

const (
	client     = "apilet"
	deviceFlow = "urn:ietf:params:oauth:grant-type:device_code"
	goodFor    = time.Minute
)

// A grant contains the user and the parameters of a code.
type grant struct {
	user                       string // "" until a user has approved it
	nonce, challenge, redirect string
	until                      time.Time
}

// A desk issues tokens.
type desk struct {
	key    *ecdsa.PrivateKey
	issuer string
	people map[string][]string // groups by user

	mu     sync.Mutex // guards the fields below
	grants map[string]*grant
	device map[string]string // the device's secret code, by the displayed code
}

// parsePeople parses jane=dev,ops;bob=
func parsePeople(text string) map[string][]string {
	people := map[string][]string{}
	for _, one := range strings.Split(text, ";") {
		name, groups, _ := strings.Cut(one, "=")
		people[name] = strings.FieldsFunc(groups, func(r rune) bool { return r == ',' })
	}
	return people
}

func (d *desk) routes(mux *http.ServeMux) {
	mux.HandleFunc("/authorize", d.authorize)
	mux.HandleFunc("POST /device/code", d.begin)
	mux.HandleFunc("/device", d.approve)
	mux.HandleFunc("POST /token", d.token)
}

var form = template.Must(template.New("").Parse(`<!doctype html><title>signon</title><p>{{.}}<form method=post>
<input name=name placeholder=name autofocus> <input name=password type=password> <button>Sign on</button></form>`))

// who returns the name of the user if the form was submitted with the correct password. Before
// that, and if the password is wrong, it shows the form.
func (d *desk) who(w http.ResponseWriter, r *http.Request) string {
	say := "Who are you?"
	if r.Method == http.MethodPost {
		if name := r.PostFormValue("name"); d.knows(name, r.PostFormValue("password")) {
			return name
		}
		w.WriteHeader(http.StatusForbidden)
		say = "That is not so."
	}
	_ = form.Execute(w, say) // otherwise the client is gone
	return ""
}

func (d *desk) knows(name, word string) bool {
	_, known := d.people[name]
	return known && subtle.ConstantTimeCompare([]byte(word), []byte(*password)) == 1
}

// keep stores a grant under an unguessable code.
func (d *desk) keep(g *grant, lasts time.Duration) (code string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for code, g := range d.grants {
		if time.Now().After(g.until) {
			delete(d.grants, code)
		}
	}
	code = rand.Text()
	g.until = time.Now().Add(lasts)
	d.grants[code] = g
	return code
}

// take removes the grant and returns it. It returns nil if the code is not valid. If the grant has
// not been approved by a user yet, it is not removed.
func (d *desk) take(code string) *grant {
	d.mu.Lock()
	defer d.mu.Unlock()
	g := d.grants[code]
	if g == nil || time.Now().After(g.until) {
		return nil
	}
	if g.user != "" {
		delete(d.grants, code)
	}
	return g
}

// authorize sends a code to a program on this machine.
func (d *desk) authorize(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	back, err := url.Parse(q.Get("redirect_uri"))
	ip := net.IP(nil)
	if err == nil {
		ip = net.ParseIP(back.Hostname())
	}
	if err != nil || back.Scheme != "http" || back.Hostname() != "localhost" && !ip.IsLoopback() || q.Get("client_id") != client || q.Get("code_challenge_method") != "S256" {
		http.Error(w, "this is for "+client+", on this machine, with PKCE", http.StatusBadRequest)
		return
	}
	user := d.who(w, r)
	if user == "" {
		return
	}
	answer := back.Query()
	answer.Set("code", d.keep(&grant{user: user, nonce: q.Get("nonce"), challenge: q.Get("code_challenge"), redirect: q.Get("redirect_uri")}, goodFor))
	answer.Set("state", q.Get("state"))
	back.RawQuery = answer.Encode()
	http.Redirect(w, r, back.String(), http.StatusFound)
}

// begin returns two codes to the device, a secret code and a code for the user.
func (d *desk) begin(w http.ResponseWriter, r *http.Request) {
	kept := d.keep(&grant{}, goodFor)
	shown := rand.Text()[:8]
	d.mu.Lock()
	d.device[shown] = kept
	d.mu.Unlock()
	send(w, http.StatusOK, map[string]any{"device_code": kept, "user_code": shown, "verification_uri": d.issuer + "/device",
		"verification_uri_complete": d.issuer + "/device?user_code=" + shown, "expires_in": int(goodFor.Seconds()), "interval": 1})
}

// approve handles the form for a displayed code.
func (d *desk) approve(w http.ResponseWriter, r *http.Request) {
	user := d.who(w, r)
	if user == "" {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	shown := r.URL.Query().Get("user_code")
	g := d.grants[d.device[shown]]
	if delete(d.device, shown); g == nil {
		http.Error(w, "no device shows this code", http.StatusNotFound)
		return
	}
	g.user = user
	send(w, http.StatusOK, "Look at your device.")
}

// token issues tokens to programs.
func (d *desk) token(w http.ResponseWriter, r *http.Request) {
	var g *grant
	refuse := "invalid_grant"
	switch kind := r.PostFormValue("grant_type"); kind {
	case "password":
		if name := r.PostFormValue("username"); d.knows(name, r.PostFormValue("password")) {
			g = &grant{user: name}
		}
	case "authorization_code":
		if g = d.take(r.PostFormValue("code")); g != nil {
			sum := sha256.Sum256([]byte(r.PostFormValue("code_verifier")))
			if g.challenge != base64.RawURLEncoding.EncodeToString(sum[:]) || g.redirect != r.PostFormValue("redirect_uri") {
				g = nil
			}
		}
	case "refresh_token":
		g = d.take("refresh " + r.PostFormValue("refresh_token"))
	case deviceFlow:
		if g = d.take(r.PostFormValue("device_code")); g != nil && g.user == "" {
			g, refuse = nil, "authorization_pending"
		}
	default:
		refuse = "unsupported_grant_type"
	}
	if g == nil {
		send(w, http.StatusBadRequest, map[string]string{"error": refuse})
		return
	}
	log.Printf("%s has a token by %s", g.user, r.PostFormValue("grant_type"))
	signed, err := sign(d.key, d.issuer, g.user, d.people[g.user], g.nonce, time.Now().Add(*lasts))
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	again := rand.Text()
	d.mu.Lock()
	d.grants["refresh "+again] = &grant{user: g.user, until: time.Now().Add(time.Hour)}
	d.mu.Unlock()
	send(w, http.StatusOK, map[string]any{"access_token": rand.Text(), "token_type": "Bearer", "expires_in": int(lasts.Seconds()), "id_token": signed, "refresh_token": again})
}

func send(w http.ResponseWriter, code int, document any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(document) // otherwise the client is gone
}
