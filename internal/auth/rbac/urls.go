package rbac

// This file is about rules for paths that are no resources': which they cover, and which of ours no asterisk does.

import (
	"apilet/internal/request"
	"strings"
)

// urlCovers: a trailing * stands for anything but the backup, which is worth more than all that roles with such rules were written for:
// that has to be named, or asked for by a master. Neither may who has a wildcard alone give others the right to it. What lies under request.PathUI
// is covered by patterns that begin so; else it takes a role that holds everything.
func urlCovers(pattern, path string) bool {
	switch {
	case pattern == path:
		return true
	case path == request.PathBackup, !strings.HasSuffix(pattern, "*"):
		return false
	}
	prefix := strings.TrimRight(pattern, "*")
	return strings.HasPrefix(path, prefix) && (len(prefix) >= len(request.PathUI) || !strings.HasPrefix(path, request.PathUI))
}
