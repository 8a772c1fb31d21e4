package apilettest

import (
	"errors"
	"fmt"
	"syscall"
)

const executable = "apilet.exe"

// errorSharingViolation is the error code of CreateFile if another process has opened the file
// without sharing.
const errorSharingViolation syscall.Errno = 32

// tryLock opens a file without sharing it. It returns errLocked if another process has the file
// open.
func tryLock(path string) (unlock func(), err error) {
	name, err := syscall.UTF16PtrFromString(path)
	if err != nil {
		return nil, err
	}
	const shared = 0
	file, err := syscall.CreateFile(name, syscall.GENERIC_WRITE, shared, nil, syscall.OPEN_ALWAYS, syscall.FILE_ATTRIBUTE_NORMAL, 0)
	if errors.Is(err, errorSharingViolation) {
		err = errLocked
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return func() { _ = syscall.CloseHandle(file) }, nil
}
