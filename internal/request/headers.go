package request

// This file compares the names of headers the way careless programs behind a proxy read them. CGI, WSGI and PHP make one variable of several
// headers: X-Remote-User, X_Remote_User and X.Remote.User are all HTTP_X_REMOTE_USER. Code that deletes a header deletes all its spellings.

// IsHeader reports whether key is a spelling of the header name.
func IsHeader(key, name string) bool { return len(key) == len(name) && HasHeaderPrefix(key, name) }

// HasHeaderPrefix reports whether key begins with a spelling of prefix.
func HasHeaderPrefix(key, prefix string) bool {
	if len(key) < len(prefix) {
		return false
	}
	for i := range len(prefix) {
		if foldHeader(key[i]) != foldHeader(prefix[i]) {
			return false
		}
	}
	return true
}

// foldHeader returns a letter in lower case, a digit as it is, and a dash for every other character.
func foldHeader(c byte) byte {
	switch {
	case 'A' <= c && c <= 'Z':
		return c + 'a' - 'A'
	case 'a' <= c && c <= 'z', '0' <= c && c <= '9':
		return c
	}
	return '-'
}
