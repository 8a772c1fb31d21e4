//go:build !linux

package apitest

func tempInMemory() (done func()) { return func() {} }
