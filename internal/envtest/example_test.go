package envtest_test

import (
	"flag"
	"fmt"
	"os"

	"apilet/internal/envtest"
)

// What kube-apiserver is asked for becomes what apilet understands; the rest is named, and what nobody knows is an error.
func ExampleTranslateAPIServer() {
	own := flag.NewFlagSet("apilet", flag.ContinueOnError)
	own.String("cert-dir", "", "")
	own.String("listen", "", "")
	own.Bool("ephemeral", false, "")
	_, err := envtest.TranslateAPIServer([]string{"--cert-dir=/tmp/certs", "--no-such-flag"}, own, os.Stdout)
	fmt.Println(err)
	fmt.Println(envtest.ProgramName("/usr/local/kubebuilder/bin/etcd"))
	// Output:
	// unknown flag: --no-such-flag
	// etcd
}
