package deprecations

// This file interprets the deprecation of a version: whether it is in effect, and the text of the
// warning.

import (
	"fmt"
	"slices"

	"apilet/internal/request"
	"apilet/internal/scheme"
)

// InEffect reports whether d is deprecated in the given version of Kubernetes, {major, minor}.
// The version {0, 0} means unknown and counts as the newest.
func InEffect(d *scheme.Deprecation, server [2]int) bool {
	if d == nil || d.Deprecated == [2]int{} {
		return false
	}
	return server == [2]int{} || slices.Compare(d.Deprecated[:], server[:]) <= 0
}

// RemovedRelease returns the first release without the version, such as "1.25", or "" if it is
// unknown.
func RemovedRelease(d *scheme.Deprecation) string {
	if d.Removed == [2]int{} {
		return ""
	}
	return fmt.Sprintf("%d.%d", d.Removed[0], d.Removed[1])
}

// Warning returns the warning for a deprecated version. For lists, kind is the kind of
// an item; for subresources, it is the kind of the subresource's object.
func Warning(group, version, kind string, d *scheme.Deprecation) string {
	text := fmt.Sprintf("%s %s is deprecated in v%d.%d+", scheme.GroupVersionString(group, version), kind, d.Deprecated[0], d.Deprecated[1])
	if release := RemovedRelease(d); release != "" {
		text += ", unavailable in v" + release + "+"
	}
	if d.Replaced != "" {
		text += "; use " + Replacement(d)
	}
	return text
}

// Replacement returns the API to use instead, or "" if it is unknown.
func Replacement(d *scheme.Deprecation) string {
	if d.Replaced == "" {
		return ""
	}
	return scheme.GroupVersionString(d.ReplacementGroup, d.ReplacementVersion) + " " + d.Replaced
}

// UseOf returns the use of the version of res by a request, without the user agent and the
// subresource.
func UseOf(rec *request.Request, res *scheme.Resource) Use {
	return Use{User: rec.User.Name, Verb: rec.Info.Verb, Group: res.Group, Version: res.Version, Resource: res.Plural,
		Removed: RemovedRelease(res.Deprecation), UseInstead: Replacement(res.Deprecation)}
}
