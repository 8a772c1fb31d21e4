package limits_test

import (
	"fmt"

	"apilet/internal/limits"
	"apilet/internal/request"
)

// One owner has at most a quarter of the places, so that others find some.
func ExampleSlots() {
	places := limits.NewSlots(8)
	alice, bob := request.User{Name: "alice"}, request.User{Name: "bob"}
	take := func(u request.User) (ok bool) { _, ok = places.TryAcquire(u); return ok }
	fmt.Println(take(alice), take(alice), take(alice), take(bob))
	// Output:
	// true true false true
}
