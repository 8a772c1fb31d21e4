package rbac

import (
	"strings"
)

// ask parses "bob,group,... VERB GROUP RESOURCE[/SUB] NAMESPACE[/NAME]" or "bob VERB /path"; - is empty.
func ask(text string) *Access {
	words := strings.Fields(strings.ReplaceAll(text, "-", ""))
	names := strings.Split(words[0], ",")
	q := &Access{User: names[0], Groups: names[1:], Verb: words[1]}
	if strings.HasPrefix(words[2], "/") {
		q.Path = words[2]
		return q
	}
	words = strings.Fields(text)
	q.ResourceRequest, q.Group = true, strings.Trim(words[2], "-")
	q.Resource, q.Subresource, _ = strings.Cut(words[3], "/")
	q.Namespace, q.Name, _ = strings.Cut(strings.Trim(words[4], "-"), "/")
	return q
}
