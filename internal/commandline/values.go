package commandline

// This file has what several commands' flags and answers are made of: flags that may be repeated, and the version that the build has left.

import (
	"errors"
	"runtime/debug"
	"strings"
)

// BuildVersion is what the Go command has written into the program: the module's version, or the commit that it was built from.
func BuildVersion() string {
	build, ok := debug.ReadBuildInfo()
	if !ok {
		return "(unknown)"
	}
	if build.Main.Version != "" && build.Main.Version != "(devel)" {
		return build.Main.Version
	}
	for _, setting := range build.Settings {
		if setting.Key == "vcs.revision" {
			return setting.Value
		}
	}
	return "(devel)"
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

// Listed is the value of a flag that may be repeated, each time with a comma-separated list.
func Listed(list *[]string) func(string) error {
	return func(values string) error {
		*list = append(*list, strings.FieldsFunc(values, func(r rune) bool { return r == ',' })...)
		return nil
	}
}
