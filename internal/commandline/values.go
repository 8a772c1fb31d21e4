package commandline

// This file contains helpers for the flags of several commands, and the build information of the
// program.

import (
	"cmp"
	"encoding/csv"
	"errors"
	"runtime/debug"
	"slices"
	"strings"
)

// A Build contains the information that the Go command has recorded in the program. It needs no
// linker flags, and two builds of the same commit have the same information.
type Build struct {
	// Version is the tag. For a commit without a tag, Go derives a version from the previous tag.
	// Without version control it is "(devel)".
	Version  string
	Commit   string // "" if it is unknown
	Date     string // the date of the commit in RFC 3339
	Changed  bool   // whether files differ from the commit
	Go       string // the version of Go
	Platform string // such as linux/amd64
	Tags     string // comma-separated build tags
}

// ThisBuild returns the build information of this program.
func ThisBuild() Build {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return Build{Version: "(unknown)"}
	}
	return buildOf(info)
}

func buildOf(info *debug.BuildInfo) Build {
	b := Build{Version: cmp.Or(info.Main.Version, "(devel)"), Go: info.GoVersion}
	set := map[string]string{}
	for _, setting := range info.Settings {
		set[setting.Key] = setting.Value
	}
	b.Commit, b.Date, b.Changed, b.Tags = set["vcs.revision"], set["vcs.time"], set["vcs.modified"] == "true", set["-tags"]
	b.Platform = set["GOOS"] + "/" + set["GOARCH"]
	return b
}

// String returns the version, or the commit if there is no version.
func (b Build) String() string {
	if b.Version == "(devel)" {
		return cmp.Or(b.Commit, b.Version)
	}
	return b.Version
}

// Lines returns the text that the command version prints.
func (b Build) Lines(program string) string {
	text := program + " " + b.String() + "\n"
	if b.Commit != "" {
		text += "commit " + b.Commit + " of " + b.Date
		if b.Changed {
			text += ", with uncommitted changes"
		}
		text += "\n"
	}
	if b.Go != "" {
		text += "built by " + b.Go + " for " + b.Platform
		if b.Tags != "" {
			text += " with -tags " + b.Tags
		}
		text += "\n"
	}
	return text
}

// AppendValue returns the function of a flag that may be repeated.
func AppendValue(list *[]string) func(string) error {
	return func(value string) error {
		if value == "" {
			return errors.New("must not be empty")
		}
		*list = append(*list, value)
		return nil
	}
}

// ErrEmptyElement is returned for a list with an empty element. In a list of patterns or names that
// grant access, an empty element might match everything.
var ErrEmptyElement = errors.New("the list has an empty element")

// AppendList returns the function of a flag that may be repeated. Each value is a list in the
// format of SplitList.
func AppendList(list *[]string) func(string) error {
	return func(text string) error {
		elements, err := SplitList(text)
		*list = append(*list, elements...)
		return err
	}
}

// SplitList returns the elements of a comma-separated list. Like kube-apiserver's flags it follows
// CSV: an element in double quotes may contain commas. An empty text is an empty list.
// SplitList returns ErrEmptyElement if an element is empty or blank.
func SplitList(text string) ([]string, error) {
	if text == "" {
		return nil, nil
	}
	rows, err := csv.NewReader(strings.NewReader(text)).ReadAll()
	switch {
	case err != nil:
		return nil, err
	case len(rows) != 1:
		return nil, errors.New("the list must be a single line")
	case slices.ContainsFunc(rows[0], func(element string) bool { return strings.TrimSpace(element) == "" }):
		return nil, ErrEmptyElement
	}
	return rows[0], nil
}
