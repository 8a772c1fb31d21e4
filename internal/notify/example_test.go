package notify_test

import (
	"context"
	"fmt"

	"apilet/internal/notify"
	"apilet/internal/store"
)

// Who follows the pods of one node is woken by what concerns that node, and sleeps through all else.
func Example() {
	st, err := store.Open("", store.Options{Ephemeral: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer st.Close()
	n := notify.New(st)
	go n.Run(nil)
	defer n.Close()

	kubelet := n.Subscribe(notify.Interest{Resource: "//pods/", Span: "//pods/", Field: "spec.nodeName", Value: "n1"})
	defer kubelet.Close()
	kubelet.MarkIdle(st.Revision())
	for i, node := range []string{"n2", "n1"} {
		doc := []byte(`{"metadata":{"name":"web","resourceVersion":""},"spec":{"nodeName":"` + node + `"}}`)
		key := fmt.Sprintf("//pods/default/web-%d", i)
		if _, err := st.Commit(context.Background(), store.Change{Op: store.OpCreate, Key: key, JSON: doc, RevAt: 45}); err != nil {
			fmt.Println(err)
		}
	}
	<-kubelet.C
	fmt.Println("nothing of its own up to revision", kubelet.QuietRevision(), "of", st.Revision())
	// Output:
	// nothing of its own up to revision 1 of 2
}
