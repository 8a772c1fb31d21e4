package rbac

// This file is about rules for paths that are no resources': which they cover, and which of ours no asterisk does.

import "strings"

// PathBackup is where the whole file is handed out, with every Secret and the keys that tokens are signed with.
const PathBackup = "/debug/backup"

// PathUI is what the page for people lies under: what it shows of other users' requests, no role of before was written to show.
const PathUI = "/debug/ui/"

// urlCovers: a trailing * stands for anything but the backup, which is worth more than all that roles with such rules were written for:
// that has to be named, or asked for by a master. Neither may who has a wildcard alone give others the right to it. What lies under PathUI
// is covered by patterns that begin so; else it takes a role that holds everything.
func urlCovers(pattern, path string) bool {
	switch {
	case pattern == path:
		return true
	case path == PathBackup, !strings.HasSuffix(pattern, "*"):
		return false
	}
	prefix := strings.TrimRight(pattern, "*")
	return strings.HasPrefix(path, prefix) && (len(prefix) >= len(PathUI) || !strings.HasPrefix(path, PathUI))
}
