package unreadable_test

import (
	"context"
	"fmt"

	"github.com/rs/zerolog"

	"apilet/internal/scheme"
	"apilet/internal/store"
	"apilet/internal/unreadable"
)

// An object that cannot be decoded is found and counted; when it goes, the matter has settled itself.
func ExampleUnreadables_Survey() {
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
	lost := unreadable.NewUnreadables(st, zerolog.Nop())
	fmt.Println(lost.Survey(context.Background(), unreadable.NewDecodeCheck(scheme.NewRegistry())), lost.Count(), lost.Check() != nil)

	_, err = st.Commit(context.Background(), store.Change{Op: store.OpDelete, Key: rec.Key, Expect: rec.Rev, JSON: doc, RevAt: 45})
	fmt.Println(err, lost.Count(), lost.Check())
	// Output:
	// <nil> 1 true
	// <nil> 0 <nil>
}
