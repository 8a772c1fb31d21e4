//go:build !unix

package apitest

import "testing"

// Descriptors skips a test that needs many open files.
func Descriptors(t testing.TB, _ uint64) { t.Skip("the limit of open files is unknown here") }
