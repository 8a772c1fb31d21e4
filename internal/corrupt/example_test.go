package corrupt_test

import (
	"context"
	"fmt"

	"github.com/rs/zerolog"

	"apilet/internal/corrupt"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

// An object that cannot be decoded is found and counted; when it goes, the matter has settled itself.
func ExampleObjects_Scan() {
	st, err := store.Open("", store.Options{Ephemeral: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer st.Close()
	doc := []byte(`{"metadata":{"name":"bad","resourceVersion":""}]`)
	rec, err := st.Commit(context.Background(), store.Change{Op: store.OpCreate, Key: "//configmaps/shop/bad", JSON: doc, RevAt: 45})
	if err != nil {
		fmt.Println(err)
		return
	}
	lost := corrupt.NewObjects(st, zerolog.Nop())
	fmt.Println(lost.Scan(context.Background(), corrupt.NewDecodeCheck(scheme.NewRegistry())), lost.Count(), lost.Check() != nil)

	_, err = st.Commit(context.Background(), store.Change{Op: store.OpDelete, Key: rec.Key, Expect: rec.Rev, JSON: doc, RevAt: 45})
	fmt.Println(err, lost.Count(), lost.Check())
	// Output:
	// <nil> 1 true
	// <nil> 0 <nil>
}
