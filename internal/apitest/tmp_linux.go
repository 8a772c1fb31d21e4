package apitest

import (
	"os"
	"strings"
	"syscall"
)

// memoryFolder is the in-memory file system that Linux distributions mount for all programs.
const memoryFolder = "/dev/shm"

// memoryRoom is the free space in bytes below which temporary files stay on the disk. The tests
// need about a tenth of this.
const memoryRoom = 2 << 30

// noExec is ST_NOEXEC of statfs(2). Tests start programs that they copy or build.
const noExec = 8

// tempInMemory moves the folder for temporary files into memory if there is enough space. Most
// tests commit to data files, and a slow disk would make them wait for its syncs. GOTMPDIR keeps
// the builds of child processes in the former folder.
func tempInMemory() (done func()) {
	nothing := func() {}
	if strings.HasPrefix(os.TempDir(), memoryFolder+"/") { // a child of a test
		return nothing
	}
	var fs syscall.Statfs_t
	if err := syscall.Statfs(memoryFolder, &fs); err != nil || fs.Flags&noExec != 0 || int64(fs.Bavail)*int64(fs.Bsize) < memoryRoom {
		return nothing
	}
	dir, err := os.MkdirTemp(memoryFolder, "apilet-tests-")
	if err != nil {
		return nothing
	}
	if os.Getenv("GOTMPDIR") == "" {
		_ = os.Setenv("GOTMPDIR", os.TempDir())
	}
	_ = os.Setenv("TMPDIR", dir)
	return func() { os.RemoveAll(dir) }
}
