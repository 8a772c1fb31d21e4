package etcd

// This file tests that the endpoints of the Service default/kubernetes contain the running servers.

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"apilet/apilettest"
)

const (
	ownEndpoints = "/api/v1/namespaces/default/endpoints/kubernetes"
	ownSlice     = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes"
)

// told returns the addresses of the Service default/kubernetes. Both forms must agree.
func told(s *server) (string, error) {
	var endpoints struct {
		Subsets []struct {
			Addresses []struct{ IP string }
			Ports     []struct{ Port int }
		}
	}
	var slice struct {
		Endpoints []struct{ Addresses []string }
		Ports     []struct{ Port int }
	}
	for path, into := range map[string]any{ownEndpoints: &endpoints, ownSlice: &slice} {
		code, text, err := s.try("GET", path, "", patience)
		if err == nil && code != 200 {
			err = fmt.Errorf("%d %s", code, text)
		}
		if err == nil {
			err = json.Unmarshal([]byte(text), into)
		}
		if err != nil {
			return "", err
		}
	}
	var first, second []string
	for _, subset := range endpoints.Subsets {
		for _, address := range subset.Addresses {
			first = append(first, fmt.Sprint(address.IP, " ", subset.Ports))
		}
	}
	for _, endpoint := range slice.Endpoints {
		second = append(second, fmt.Sprint(endpoint.Addresses[0], " ", slice.Ports))
	}
	if !slices.Equal(first, second) {
		return "", fmt.Errorf("Endpoints %v, EndpointSlice %v", first, second)
	}
	var addresses []string
	for _, line := range first {
		address, _, _ := strings.Cut(line, " ")
		addresses = append(addresses, address)
	}
	return strings.Join(addresses, ","), nil
}

// leads waits until all these servers return the expected addresses.
func leads(t *testing.T, want string, servers ...*server) {
	t.Helper()
	for _, s := range servers {
		apilettest.Until(t, "the endpoints are "+want, func() error {
			got, err := told(s)
			if err == nil && got != want {
				err = fmt.Errorf("they are %q", got)
			}
			return err
		})
	}
}

func masters(t *testing.T, client *clientv3.Client) (addresses []string) {
	t.Helper()
	const prefix = "/registry/masterleases/"
	answer, err := client.Get(context.Background(), prefix, clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range answer.Kvs {
		addresses = append(addresses, strings.TrimPrefix(string(kv.Key), prefix))
	}
	return addresses
}

func TestEndpointsNameWhoIsThere(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1)
	client := c.client()
	alone := c.startServer() // a single server on loopback behaves as it does with a file
	if got, err := told(alone); got != "127.0.0.1" {
		t.Errorf("%q %v", got, err)
	}
	a := c.startServer("--advertise-address", "10.1.0.1")
	leads(t, "10.1.0.1", a, alone)
	b := c.startServer("--advertise-address", "10.1.0.2")
	leads(t, "10.1.0.1,10.1.0.2", a, b, alone)
	c.startServer()
	c.startServer("--advertise-address", "10.1.0.3", "--endpoint-reconciler-type", "none")
	if got := masters(t, client); !slices.Equal(got, []string{"10.1.0.1", "10.1.0.2"}) {
		t.Errorf("%v are there", got)
	}
	b.Stop() // a stopping server removes itself before it exits
	if got := masters(t, client); !slices.Equal(got, []string{"10.1.0.1"}) && !strings.Contains(b.Log(), "stays among the endpoints") {
		t.Errorf("%v are there", got)
	}
	leads(t, "10.1.0.1", a, alone)
	b.Launch()
	b.ready()
	leads(t, "10.1.0.1,10.1.0.2", a, b, alone)
	a.do(200, "DELETE", ownSlice, "") // servers revert changes by users
	leads(t, "10.1.0.1,10.1.0.2", a, b, alone)
	b.Kill()
	leads(t, "10.1.0.1", a, alone) // some time later
	b.Launch()
	b.ready()
	leads(t, "10.1.0.1,10.1.0.2", a, b, alone)
	a.Stop()
	b.Stop()
	leads(t, "", alone)
}

// TestEndpointsBesideKubernetes checks that the endpoints of both servers are listed and are not
// overwritten.
func TestEndpointsBesideKubernetes(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1)
	client := c.client()
	a := c.startServer("--advertise-address", "10.1.0.1")
	kube := c.startKubernetes("--advertise-address", "10.9.9.9", "--storage-media-type", "application/vnd.kubernetes.protobuf")
	leads(t, "10.1.0.1,10.9.9.9", a, kube)
	b := c.startServer("--advertise-address", "10.1.0.2")
	leads(t, "10.1.0.1,10.1.0.2,10.9.9.9", a, b, kube)
	versions := func() (all string) {
		for _, path := range []string{ownEndpoints, ownSlice} {
			all += read(t, a.do(200, "GET", path, "")).Metadata.ResourceVersion + " "
		}
		return all
	}
	before := versions()
	for range 3 { // kube-apiserver checks the endpoints after renewing its lease
		next := client.Watch(context.Background(), "/registry/masterleases/10.9.9.9")
		if news := <-next; news.Err() != nil {
			t.Fatal(news.Err())
		}
	}
	if now := versions(); now != before {
		t.Errorf("the endpoints were of %s, and are of %s", before, now)
	}
	b.Stop()
	leads(t, "10.1.0.1,10.9.9.9", a, kube)
	b.Launch()
	b.ready()
	leads(t, "10.1.0.1,10.1.0.2,10.9.9.9", a, b, kube)
	b.Kill()
	leads(t, "10.1.0.1,10.9.9.9", a, kube)
	kube.Stop()
	leads(t, "10.1.0.1", a)
	kube.Launch()
	leads(t, "10.1.0.1,10.9.9.9", a)
	kube.Kill()
	leads(t, "10.1.0.1", a)
}
