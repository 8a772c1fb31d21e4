package datafile

// This file finds files with secrets that `git add -A` would commit. The ignore files are parsed
// here, because git may not be installed on the device. It ignores the file that git's
// setting core.excludesfile names, and does not check whether a file is already tracked.

import (
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rs/zerolog"
)

// WarnCommittable logs one warning if any of the files lies in a git work tree and is not
// ignored. It skips empty names and "-" (standard output).
func WarnCommittable(log zerolog.Logger, files ...string) {
	if tree, exposed := Committable(files...); len(exposed) > 0 {
		log.Warn().Str("worktree", tree).Strs("files", exposed).
			Msg("files with secrets lie in a git work tree, and git does not ignore them, so `git add -A` would commit them: add them to .gitignore")
	}
}

// Committable returns all files that are located in a git work tree and not ignored, along with the
// path of the work tree that contains the last one. The files need not exist.
func Committable(files ...string) (tree string, exposed []string) {
	for _, file := range files {
		if file == "" || file == "-" {
			continue
		}
		name, err := filepath.Abs(file)
		if err != nil {
			continue
		}
		if dir, err := filepath.EvalSymlinks(filepath.Dir(name)); err == nil { // git does not follow links
			name = filepath.Join(dir, filepath.Base(name))
		}
		if top := workTreeOf(filepath.Dir(name)); top != "" && !isIgnored(top, name) {
			tree, exposed = top, append(exposed, file)
		}
	}
	return tree, exposed
}

// workTreeOf returns the nearest folder that contains .git, starting with dir, or "".
func workTreeOf(dir string) string {
	for {
		if _, err := os.Lstat(filepath.Join(dir, ".git")); err == nil {
			return dir
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return ""
		}
		dir = parent
	}
}

// isIgnored reports whether git ignores a file below top. It is not possible to re-include a file
// if a parent folder is ignored.
func isIgnored(top, name string) bool {
	below, err := filepath.Rel(top, name)
	if err != nil {
		return false
	}
	rules := append(readRules(globalIgnore(), nil), readRules(excludeFile(top), nil)...)
	parts := strings.Split(filepath.ToSlash(below), "/")
	for i := range parts {
		rules = append(rules, readRules(filepath.Join(top, filepath.Join(parts[:i]...), ".gitignore"), parts[:i])...)
		ignored := false
		for _, r := range rules { // the last matching rule decides
			if r.matches(parts[:i+1], i < len(parts)-1) {
				ignored = !r.negated
			}
		}
		if ignored {
			return true
		}
	}
	return false
}

// globalIgnore returns the path of the user's ignore file.
func globalIgnore() string {
	config := os.Getenv("XDG_CONFIG_HOME")
	if config == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return ""
		}
		config = filepath.Join(home, ".config")
	}
	return filepath.Join(config, "git", "ignore")
}

// excludeFile returns the path of the repository's ignore file. In a linked work tree, .git is a
// file that contains the path of the tree's data folder, and the file commondir there contains the
// path of the repository.
func excludeFile(top string) string {
	dir := filepath.Join(top, ".git")
	if text, ok := readText(dir); ok {
		dir = resolve(top, strings.TrimPrefix(text, "gitdir:"))
	}
	if text, ok := readText(filepath.Join(dir, "commondir")); ok {
		dir = resolve(dir, text)
	}
	return filepath.Join(dir, "info", "exclude")
}

func resolve(dir, name string) string {
	if name = strings.TrimSpace(name); filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(dir, name)
}

// readText returns the content of a regular file. It does not open other files, because opening a
// named pipe would block.
func readText(name string) (text string, ok bool) {
	if info, err := os.Stat(name); err != nil || !info.Mode().IsRegular() {
		return "", false
	}
	content, err := os.ReadFile(name)
	return string(content), err == nil
}

// An ignoreRule is a pattern line of an ignore file.
type ignoreRule struct {
	at       []string // the folder of the ignore file, relative to the top
	pattern  []string // the elements of the pattern
	anchored bool     // the pattern only matches relative to that folder, not below it
	folders  bool     // the rule matches only folders
	negated  bool     // matching files are not ignored
}

// readRules reads the rules of an ignore file. A missing file has no rules.
func readRules(name string, at []string) (rules []ignoreRule) {
	text, _ := readText(name)
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, " \r\n")
		if line == "" || line[0] == '#' {
			continue
		}
		r := ignoreRule{at: at}
		line, r.negated = strings.CutPrefix(line, "!")
		line, r.folders = strings.CutSuffix(line, "/")
		r.anchored = strings.Contains(line, "/")
		line = strings.ReplaceAll(strings.TrimPrefix(line, "/"), "[!", "[^") // in the syntax of package path
		r.pattern = strings.Split(line, "/")
		rules = append(rules, r)
	}
	return rules
}

// matches reports whether the rule matches a file or folder, given as its path elements below the
// top.
func (r *ignoreRule) matches(name []string, folder bool) bool {
	if r.folders && !folder || len(name) <= len(r.at) || !slices.Equal(name[:len(r.at)], r.at) {
		return false
	}
	name = name[len(r.at):]
	if !r.anchored {
		name = name[len(name)-1:]
	}
	return matchParts(r.pattern, name)
}

// matchParts matches element by element. ** matches any number of folders; at the end of a pattern,
// it matches at least one name.
func matchParts(pattern, name []string) bool {
	switch {
	case len(pattern) == 0:
		return len(name) == 0
	case pattern[0] == "**" && len(pattern) == 1:
		return len(name) > 0
	case pattern[0] == "**":
		return matchParts(pattern[1:], name) || len(name) > 0 && matchParts(pattern, name[1:])
	case len(name) == 0:
		return false
	}
	ok, err := path.Match(pattern[0], name[0])
	return err == nil && ok && matchParts(pattern[1:], name[1:])
}
