package request

// This file compares header names the way CGI, WSGI and PHP programs behind a proxy do. These
// programs map several headers to the same variable: X-Remote-User, X_Remote_User and X.Remote.User
// all become HTTP_X_REMOTE_USER. Code that deletes a header must therefore delete all its
// spellings.

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

// foldHeader converts letters to lower case, keeps digits, and replaces every other character by a
// dash.
func foldHeader(c byte) byte {
	switch {
	case 'A' <= c && c <= 'Z':
		return c + 'a' - 'A'
	case 'a' <= c && c <= 'z', '0' <= c && c <= '9':
		return c
	}
	return '-'
}
