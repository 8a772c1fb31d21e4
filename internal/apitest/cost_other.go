//go:build !unix

package apitest

import "time"

func usedProcessor() (time.Duration, bool) { return 0, false }
