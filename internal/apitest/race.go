//go:build race

package apitest

// Race reports whether the tests run with the race detector.
const Race = true
