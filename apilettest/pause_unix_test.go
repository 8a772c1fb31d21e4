//go:build unix

package apilettest

import "testing"

func TestPause(t *testing.T) {
	t.Parallel()
	s := fake(t)
	if err := s.Run(); err != nil {
		t.Fatal(err)
	}
	s.Pause()
	s.Resume()
	dial(t, s.URL())
	s.Pause()
	s.Kill()
}
