// Fill creates the ConfigMaps item-0000, item-0001, ... in a namespace.
//
//	go run ./testdata/programs/fill http://localhost:8080           # a thousand
//	go run ./testdata/programs/fill -n 50 -as alice http://localhost:8080
//	go run ./testdata/programs/fill -again http://localhost:8080    # writes a second version of each
//
// It uses the API over plain HTTP and stops at the first error.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
)

// An order describes the objects to create.
type order struct {
	server, namespace, as string
	n, size, clients      int
	again                 bool
}

func main() {
	var o order
	flag.IntVar(&o.n, "n", 1000, "how many `objects`")
	flag.IntVar(&o.size, "size", 200, "`bytes` of data in each")
	flag.IntVar(&o.clients, "clients", 16, "how many `requests` are on their way at once")
	flag.StringVar(&o.namespace, "namespace", "default", "the `namespace`, which has to exist")
	flag.StringVar(&o.as, "as", "", "the `user` to be, which needs the right to impersonate")
	flag.BoolVar(&o.again, "again", false, "write those that are there once more")
	flag.Parse()
	if o.server = strings.TrimSuffix(flag.Arg(0), "/"); flag.NArg() != 1 || o.n < 0 || o.clients < 1 {
		fmt.Fprintln(os.Stderr, "usage: fill [FLAGS] URL")
		os.Exit(2)
	}
	if err := o.make(); err != nil {
		fmt.Fprintln(os.Stderr, "fill:", err)
		os.Exit(1)
	}
	verb := "made"
	if o.again {
		verb = "written again"
	}
	fmt.Printf("%d ConfigMaps %s in namespace %s\n", o.n, verb, o.namespace)
}

// make sends requests from several clients until a request fails.
func (o *order) make() error {
	var (
		next   atomic.Int64
		wg     sync.WaitGroup
		failed = make(chan error, o.clients)
	)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: o.clients}}
	for range o.clients {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= o.n {
					return
				}
				if err := o.write(client, i); err != nil {
					next.Store(int64(o.n)) // stops the other clients
					failed <- err
					return
				}
			}
		})
	}
	wg.Wait()
	close(failed)
	return <-failed
}

// write creates an object or overwrites an existing object.
func (o *order) write(client *http.Client, i int) error {
	name, version := fmt.Sprintf("item-%04d", i), "1"
	method, url := http.MethodPost, o.server+"/api/v1/namespaces/"+o.namespace+"/configmaps"
	if o.again {
		method, url, version = http.MethodPut, url+"/"+name, "2"
	}
	body, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]any{"name": name, "labels": map[string]string{"parity": [...]string{"even", "odd"}[i%2]}},
		"data":     map[string]string{"version": version, "padding": strings.Repeat("x", o.size)},
	})
	if err != nil {
		return err
	}
	req, err := http.NewRequest(method, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	if o.as != "" {
		req.Header.Set("Impersonate-User", o.as)
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode/100 != 2 {
		err = errors.New(resp.Status + ": " + string(text))
	}
	return err
}
