package ttlcache

import (
	"testing"
	"time"
)

func TestNothingIsRememberedForTooLongNorTooMuch(t *testing.T) {
	t.Parallel()
	now := time.Now()
	m := Cache[int]{MaxEntries: 100}
	key := func(i int) Key { return Key{byte(i), byte(i >> 8)} }
	m.Put(key(1), 1, now, now)
	if _, ok := m.Get(key(1), now); ok {
		t.Error("what is over before it begins is remembered")
	}
	for i := range 60 {
		m.Put(key(i), i, now, now.Add(time.Second))
	}
	if v, ok := m.Get(key(59), now.Add(time.Second-1)); !ok || v != 59 {
		t.Errorf("got %d, %v", v, ok)
	}
	if _, ok := m.Get(key(59), now.Add(time.Second)); ok {
		t.Error("it is remembered when its time is over")
	}
	now = now.Add(time.Second)
	for i := range 41 { // the last one finds it full of what is over
		m.Put(key(1000+i), i, now, now.Add(time.Minute))
	}
	if len(m.entries) != 41 {
		t.Errorf("%d are left where 60 of 101 are over", len(m.entries))
	}
	for i := range 1000 {
		m.Put(key(i), i, now, now.Add(time.Minute))
		if _, ok := m.Get(key(i), now); !ok || len(m.entries) > 100 {
			t.Fatalf("%d of 100 are kept, the last: %v", len(m.entries), ok)
		}
	}
}

// TestLargeValuesAreBoundedInTheirSum, and one of them does not push out all others.
func TestLargeValuesAreBoundedInTheirSum(t *testing.T) {
	t.Parallel()
	now := time.Now()
	m := Cache[int]{MaxEntries: 1000, MaxBytes: 6400}
	for i := range 1000 {
		m.PutSized(Key{byte(i), byte(i >> 8)}, i, i%101, now, now.Add(time.Minute))
		sum := 0
		for _, e := range m.entries {
			sum += e.size
		}
		if _, ok := m.Get(Key{byte(i), byte(i >> 8)}, now); !ok || sum != m.bytes || sum > 6400 {
			t.Fatalf("%d bytes are kept, counted as %d; the last: %v", sum, m.bytes, ok)
		}
	}
	before := len(m.entries)
	if m.PutSized(Key{7, 7, 7}, 1, 101, now, now.Add(time.Minute)); len(m.entries) != before {
		t.Error("a value of more than a 64th is kept")
	}
	for range 10 {
		m.PutSized(Key{7, 7, 8}, 1, 100, now, now.Add(time.Minute))
	}
	if m.bytes > 6400 || m.entries[Key{7, 7, 8}].size != 100 {
		t.Errorf("%d bytes after one key was put ten times", m.bytes)
	}
}
