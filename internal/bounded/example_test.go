package bounded_test

import (
	"fmt"

	"apilet/internal/bounded"
)

// A quantity of a few characters can be a number of two milliards of digits. Such a text is refused before anything parses it.
func ExampleCheckQuantity() {
	for _, text := range []string{"100m", "1.5Gi", "1e3", "1e-2147483648"} {
		fmt.Println(text, bounded.CheckQuantity(text))
	}
	// Output:
	// 100m <nil>
	// 1.5Gi <nil>
	// 1e3 <nil>
	// 1e-2147483648 quantities must have at most 64 characters and an exponent of at most two digits
}
