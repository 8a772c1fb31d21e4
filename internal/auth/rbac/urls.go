package rbac

// This file matches the paths of non-resource requests against rules, including the paths that a
// wildcard does not cover.

import (
	"apilet/internal/request"
	"strings"
)

// urlCovers reports whether the pattern covers the path. There are two exceptions to a trailing *.
// The path of the backup must be named in full, because a backup reveals more than the authors of
// wildcard rules intended; system:masters may always request it. A user with only a wildcard cannot
// grant access to the backup either. For paths below request.PathUI, the pattern must begin with
// request.PathUI, or the role must allow everything.
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
