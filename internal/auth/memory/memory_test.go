package memory

import (
	"testing"
	"time"
)

func TestNothingIsRememberedForTooLongNorTooMuch(t *testing.T) {
	t.Parallel()
	now := time.Now()
	m := Of[int]{Most: 100}
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
	if len(m.kept) != 41 {
		t.Errorf("%d are left where 60 of 101 are over", len(m.kept))
	}
	for i := range 1000 {
		m.Put(key(i), i, now, now.Add(time.Minute))
		if _, ok := m.Get(key(i), now); !ok || len(m.kept) > 100 {
			t.Fatalf("%d of 100 are kept, the last: %v", len(m.kept), ok)
		}
	}
}
