package footprint

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"apilet/internal/apitest"
)

func TestMain(m *testing.M) { apitest.Main(m) }

const size = 1 << 20

func mapFile(t *testing.T, name string, rights, kind int) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, bytes.Repeat([]byte("page"), size/4), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	mapped, err := syscall.Mmap(int(file.Fd()), 0, size, rights, kind)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Munmap(mapped) })
	return mapped
}

// resident is how much of a file's mapping is in memory, in KiB.
func resident(t *testing.T, name string) int {
	t.Helper()
	all, err := mappings()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		if strings.HasSuffix(m.file, "/"+name) {
			return m.resident
		}
	}
	t.Fatal(name, "is not mapped")
	return 0
}

func touch(mapped []byte) (sum int) {
	for i := 0; i < len(mapped); i += 4096 {
		sum += int(mapped[i])
	}
	return sum
}

// What is the file's goes and is there again when it is read. What the process has changed stays, whatever rights it has by now: a relocated page.
func TestPagesAreGivenBack(t *testing.T) {
	read := mapFile(t, "read", syscall.PROT_READ, syscall.MAP_SHARED)
	code := mapFile(t, "code", syscall.PROT_READ, syscall.MAP_PRIVATE)
	relocated := mapFile(t, "relocated", syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE)
	written := mapFile(t, "written", syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	sum := touch(read) + touch(code) + touch(relocated) + touch(written)
	relocated[5000] = '!'
	if err := syscall.Mprotect(relocated, syscall.PROT_READ); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"read", "code", "relocated", "written"} {
		if got := resident(t, name); got != size>>10 {
			t.Fatalf("%s: %d KiB are in memory before", name, got)
		}
	}
	if err := GiveBack(); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]int{"read": 0, "code": 0, "relocated": size >> 10, "written": size >> 10} {
		if got := resident(t, name); got != want {
			t.Errorf("%s: %d KiB are in memory, want %d", name, got, want)
		}
	}
	if relocated[5000] != '!' {
		t.Error("what the process wrote is gone")
	}
	if again := touch(read) + touch(code) + touch(relocated) + touch(written); again != sum {
		t.Error("what is read again is something else")
	}
}

func TestReadMappings(t *testing.T) {
	t.Parallel()
	all, err := readMappings(strings.NewReader(`b6f00000-b6f10000 r--p 00000000 b3:02 12 /usr/lib/a b (deleted)
Size:                 64 kB
Rss:                  12 kB
Anonymous:             4 kB
Swap:                  8 kB
VmFlags: rd mr mw me
nonsense-0 r--p 0 0 0 /x
Rss: many
`))
	if err != nil || len(all) != 2 || all[0] != (mapping{0xb6f00000, 0xb6f10000, "r--p", "/usr/lib/a", 12, 12}) || all[1] != (mapping{}) {
		t.Errorf("%+v, %v", all, err)
	}
	if areOurs(all) {
		t.Error("code is said to run in a mapping that is none of this process")
	}
}
