package boltfile

import (
	"os"
	"sync"
)

// A metaMap is the two meta pages in memory: the same pages of the kernel as those in bbolt's map, in a map of its own that never moves. Where
// memory is not mapped so, there are none in it.
type metaMap struct {
	mu    sync.RWMutex // guards pages, and what they are of from being unmapped
	pages []byte       // nil before open and after close
}

func (m *metaMap) open(file *os.File, pageSize int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pages = mapStart(file, 2*pageSize)
}

// close lets go of the file: one that is mapped keeps its file system busy.
func (m *metaMap) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.pages != nil {
		unmap(m.pages)
		m.pages = nil
	}
}

// sound tells whether one of the pages is a meta page.
func (m *metaMap) sound(pageSize int) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	for page := m.pages; len(page) > 0; page = page[pageSize:] {
		if _, ok := decodeMeta(page[:metaSize]); ok {
			return true
		}
	}
	return false
}
