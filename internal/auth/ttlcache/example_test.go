package ttlcache_test

import (
	"crypto/sha256"
	"fmt"
	"time"

	"apilet/internal/auth/ttlcache"
)

// A token that was good is good for ten seconds more, without a look at its signature.
func ExampleCache() {
	checked, now := ttlcache.Cache[string]{MaxEntries: 4096}, time.Now()
	token := sha256.Sum256([]byte("eyJ..."))
	checked.Put(token, "jane", now, now.Add(10*time.Second))
	fmt.Println(checked.Get(token, now.Add(9*time.Second)))
	fmt.Println(checked.Get(token, now.Add(10*time.Second)))
	// Output:
	// jane true
	//  false
}
