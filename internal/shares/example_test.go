package shares_test

import (
	"fmt"

	"apilet/internal/request"
	"apilet/internal/shares"
)

// One owner has at most a quarter of the places, so that others find some.
func ExamplePlaces() {
	places := shares.NewPlaces(8)
	alice, bob := request.User{Name: "alice"}, request.User{Name: "bob"}
	take := func(u request.User) (ok bool) { _, ok = places.Take(u); return ok }
	fmt.Println(take(alice), take(alice), take(alice), take(bob))
	// Output:
	// true true false true
}
