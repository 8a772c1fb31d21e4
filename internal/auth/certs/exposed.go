package certs

// This file protects files with secrets. The server creates its files with mode 0600, but a copy, a
// restored backup or a wrong umask may have changed the mode since:
//
//	file           risk if other users can access it    action
//	ca.key         they can impersonate every user      correct the mode, or do not start
//	apiserver.key  they can impersonate this server     correct the mode and replace the pair, which is free
//	its folder     they can replace both                correct the mode, if the server owns the folder
//	the data file  every Secret, and the token key      correct the mode
//	files of flags an administrator maintains them      log a warning
//
// Each case is logged, because the other users may have read the file. Windows has no such modes.

import (
	"fmt"
	"os"
	"runtime"

	"github.com/rs/zerolog"
)

const (
	groupAndOthers = 0o077 // permissions of the group and of others
	othersRead     = 0o004 // mounted secrets are often readable by the group
	othersWrite    = 0o022
)

// RestrictPermissions removes the permissions of other users from a file. exposed reports whether
// they had any. A missing file is not exposed.
func RestrictPermissions(log zerolog.Logger, path string) (exposed bool, err error) {
	mode := modeOf(path)
	if mode&groupAndOthers == 0 {
		return false, nil
	}
	err = os.Chmod(path, mode&^groupAndOthers)
	if modeOf(path)&groupAndOthers != 0 { // also if the mount determines the modes
		return true, fmt.Errorf("%s contains secrets, other users can read it (mode %04o), and the mode cannot be changed: %v", path, mode, err)
	}
	log.Warn().Str("file", path).Str("mode", fmt.Sprintf("%04o", mode)).
		Msg("others could read this file, which holds secrets; they no longer can, but what was read stays known")
	return true, nil
}

// restrictFolder removes the write permission of other users from a folder with keys, because they
// could replace its files. It does not change shared folders such as /tmp, or folders of another
// owner such as the volume of a container, but logs a warning.
func restrictFolder(log zerolog.Logger, dir string) {
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

// WarnWorldReadable logs a warning if a file can be read by every user.
func WarnWorldReadable(log zerolog.Logger, paths ...string) {
	for _, path := range paths {
		if mode := modeOf(path); mode&othersRead != 0 {
			log.Warn().Str("file", path).Str("mode", fmt.Sprintf("%04o", mode)).Msg("every user of this machine can read this file, which holds secrets")
		}
	}
}

// modeOf returns the permissions of a file. If the file does not exist, it returns 0. It returns 0
// on Windows.
func modeOf(path string) os.FileMode {
	info, err := os.Stat(path)
	if err != nil || path == "" || runtime.GOOS == "windows" {
		return 0
	}
	return info.Mode().Perm()
}
