//go:build !race

package apitest

// Race says whether the tests run with the race detector.
const Race = false
