package footprint

// This file reads /proc/self/smaps: a line for each mapping (address range, rights, file), then one for each of its figures.

import (
	"bufio"
	"errors"
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// A mapping is a range of addresses and what lies there.
type mapping struct {
	from, to uintptr
	rights   string // as r-xp
	file     string // "" or in brackets where it is none
	own      int    // KiB that are not the file's: in memory or swapped out
	resident int    // KiB
}

// GiveBack gives back the pages of files that the process has mapped to read or run alone.
func GiveBack() error {
	all, err := mappings()
	if !areOurs(all) {
		return errors.Join(err, errElsewhere)
	}
	for _, m := range all {
		if strings.HasPrefix(m.file, "/") && !strings.Contains(m.rights, "w") && m.own == 0 && m.resident > 0 {
			_, _, _ = syscall.Syscall(syscall.SYS_MADVISE, m.from, m.to-m.from, syscall.MADV_DONTNEED) // refused for what is locked
		}
	}
	return err
}

// errElsewhere is returned where /proc tells of other addresses than ours: those of an emulator in which we run.
var errElsewhere = errors.New("/proc/self/smaps does not know the code that runs")

func areOurs(all []mapping) bool {
	here, _, _, _ := runtime.Caller(0)
	return slices.ContainsFunc(all, func(m mapping) bool { return m.from <= here && here < m.to && strings.Contains(m.rights, "x") })
}

func mappings() ([]mapping, error) {
	file, err := os.Open("/proc/self/smaps")
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return readMappings(file)
}

func readMappings(from io.Reader) (all []mapping, err error) {
	lines := bufio.NewScanner(from)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		switch {
		case len(fields) >= 5 && !strings.HasSuffix(fields[0], ":"):
			all = append(all, readMapping(fields))
		case len(fields) < 2 || len(all) == 0:
		default:
			n, _ := strconv.Atoi(fields[1])
			switch m := &all[len(all)-1]; fields[0] {
			case "Rss:":
				m.resident = n
			case "Anonymous:", "Swap:":
				m.own += n
			}
		}
	}
	return all, lines.Err()
}

// readMapping reads 401000-157e000 r-xp 00001000 fe:00 1234 /usr/local/bin/apilet.
func readMapping(fields []string) (m mapping) {
	from, to, _ := strings.Cut(fields[0], "-")
	first, err := strconv.ParseUint(from, 16, strconv.IntSize)
	end, err2 := strconv.ParseUint(to, 16, strconv.IntSize)
	if err != nil || err2 != nil || end < first {
		return m
	}
	m = mapping{from: uintptr(first), to: uintptr(end), rights: fields[1]}
	if len(fields) > 5 {
		m.file = fields[5]
	}
	return m
}
