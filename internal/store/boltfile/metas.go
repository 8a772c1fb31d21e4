package boltfile

import (
	"os"
	"sync"
)

// A metaMap is a mapping of the two meta pages. It shares its pages with the mapping of bbolt, but
// it never moves. It is empty if the system does not support such mappings.
type metaMap struct {
	mu    sync.RWMutex // guards pages and prevents them from being unmapped while in use
	pages []byte       // nil before open and after close
}

func (m *metaMap) open(file *os.File, pageSize int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pages = mapStart(file, 2*pageSize)
}

// close unmaps the pages, because a mapped file keeps its file system busy.
func (m *metaMap) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.pages != nil {
		unmap(m.pages)
		m.pages = nil
	}
}

// sound reports whether one of the pages is a valid meta page.
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
