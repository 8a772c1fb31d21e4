//go:build race

package apitest

const race = true
