package certs

// This file: files with secrets in them that others may read. The server makes its own for its owner alone (mode 0600), and a copy, a
// restored backup or a careless umask may have changed that since:
//
//	ca.key         whoever has it is whom they like         taken from others, or the server does not start
//	apiserver.key  whoever has it is this server            taken from others, and made anew: that costs nobody anything
//	its folder     who may write there replaces both        taken from others, if it is the server's own
//	the data file  every Secret, and the key of tokens      taken from others
//	files of flags somebody else keeps them                 left alone, with a word in the log
//
// The log has a word for each, since what was read meanwhile stays known. Windows has no such modes.

import (
	"fmt"
	"os"
	"runtime"

	"github.com/rs/zerolog"
)

const (
	forOthers    = 0o077 // what a mode gives to anybody but the owner
	forEverybody = 0o004 // mounted secrets are often the group's
	othersWrite  = 0o022
)

// Hide takes a file from all but its owner, and says whether they had it. A file that is not there is nobody's.
func Hide(log zerolog.Logger, path string) (exposed bool, err error) {
	mode := modeOf(path)
	if mode&forOthers == 0 {
		return false, nil
	}
	err = os.Chmod(path, mode&^forOthers)
	if modeOf(path)&forOthers != 0 { // also where modes are those of the mount
		return true, fmt.Errorf("%s holds secrets, others may read it (mode %04o), and that cannot be changed: %v", path, mode, err)
	}
	log.Warn().Str("file", path).Str("mode", fmt.Sprintf("%04o", mode)).
		Msg("others could read this file, which holds secrets; they no longer can, but what was read stays known")
	return true, nil
}

// closeFolder takes a folder of keys from others who may replace what is in it. One that all share (/tmp), or that somebody else owns (a volume
// of a container), is left as it is, with a word in the log like the other.
func closeFolder(log zerolog.Logger, dir string) {
	mode := modeOf(dir)
	if mode&othersWrite == 0 {
		return
	}
	text := "others could replace the keys in this folder; they no longer can, but what is there now may be theirs: if in doubt remove it"
	info, err := os.Stat(dir)
	if shared := err == nil && info.Mode()&os.ModeSticky != 0; !shared {
		err = os.Chmod(dir, info.Mode()&^othersWrite)
	}
	if modeOf(dir)&othersWrite != 0 {
		text = "others can replace the keys in this folder, and so become whom they like; that cannot be changed here"
	}
	log.Warn().Err(err).Str("folder", dir).Str("mode", fmt.Sprintf("%04o", mode)).Msg(text)
}

// TellExposed names the files that everybody may read.
func TellExposed(log zerolog.Logger, paths ...string) {
	for _, path := range paths {
		if mode := modeOf(path); mode&forEverybody != 0 {
			log.Warn().Str("file", path).Str("mode", fmt.Sprintf("%04o", mode)).Msg("every user of this machine can read this file, which holds secrets")
		}
	}
}

// modeOf is 0 for what is no file, or has no mode.
func modeOf(path string) os.FileMode {
	info, err := os.Stat(path)
	if err != nil || path == "" || runtime.GOOS == "windows" {
		return 0
	}
	return info.Mode().Perm()
}
