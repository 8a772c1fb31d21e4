package commandline

// This file has what several commands' flags and answers are made of: flags that may be repeated, and the version that the build has left.

import (
	"cmp"
	"encoding/csv"
	"errors"
	"runtime/debug"
	"slices"
	"strings"
)

// A Build is what the Go command has written into a program: nothing has to be passed to it, and who builds the same commit gets the same.
type Build struct {
	Version  string // the tag; for a commit without one what Go makes of the tag before it; "(devel)" where no version control is to be seen
	Commit   string // "" where none is to be seen
	Date     string // the commit's, in RFC 3339
	Changed  bool   // files were not as in the commit
	Go       string // the version of Go
	Platform string // linux/amd64
	Tags     string // of the build, with commas
}

// ThisBuild is the program's own.
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

// String is the version, or where there is none the commit: a word.
func (b Build) String() string {
	if b.Version == "(devel)" {
		return cmp.Or(b.Commit, b.Version)
	}
	return b.Version
}

// Lines are what a command `version` prints of the build, one thing a line.
func (b Build) Lines(program string) string {
	text := program + " " + b.String() + "\n"
	if b.Commit != "" {
		text += "commit " + b.Commit + " of " + b.Date
		if b.Changed {
			text += ", and changes that are not in it"
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

// Repeated is the value of a flag that may be repeated.
func Repeated(list *[]string) func(string) error {
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

// Listed sets a flag that may be repeated, each time with a list as SplitList reads it.
func Listed(list *[]string) func(string) error {
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
