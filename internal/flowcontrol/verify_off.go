//go:build !verify

package flowcontrol

// verifyLocked does nothing in builds without the tag verify. See verify.go.
func (l *Level) verifyLocked() {}
