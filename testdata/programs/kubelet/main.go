// Kubelet plays as much of a kubelet as metrics-server asks: /metrics/resource, where a node and a pod of it use a quarter and a tenth of a processor. It
// prints the Node and the Pod that lead to it.
//
//	go run ./testdata/programs/kubelet -cert cert.pem -key key.pem > nodes.json
//	kubectl create -f nodes.json && kubectl replace --subresource status -f nodes.json
package main

import (
	"crypto/tls"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"time"
)

func main() {
	cert := flag.String("cert", "cert.pem", "PEM `file` with the certificate")
	key := flag.String("key", "key.pem", "PEM `file` with its key")
	flag.Parse()
	pair, err := tls.LoadX509KeyPair(*cert, *key)
	if err != nil {
		log.Fatal(err)
	}
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}})
	if err != nil {
		log.Fatal(err)
	}
	_ = json.NewEncoder(os.Stdout).Encode(objects(listener.Addr().(*net.TCPAddr).Port)) // whoever started it sees what is missing
	log.Fatal(http.Serve(listener, http.HandlerFunc(serve)))
}

// objects are a node with 1 processor, and a pod on it.
func objects(port int) any {
	type object = map[string]any
	return object{"apiVersion": "v1", "kind": "List", "items": []object{
		{"apiVersion": "v1", "kind": "Node", "metadata": object{"name": "node-0"}, "status": object{
			"addresses": []object{{"type": "InternalIP", "address": "127.0.0.1"}}, "daemonEndpoints": object{"kubeletEndpoint": object{"Port": port}},
			"capacity": object{"cpu": "1", "memory": "1Gi"}, "allocatable": object{"cpu": "1", "memory": "1Gi"},
			"conditions": []object{{"type": "Ready", "status": "True"}}}},
		{"apiVersion": "v1", "kind": "Pod", "metadata": object{"name": "web", "namespace": "default", "labels": object{"run": "web"}},
			"spec":   object{"nodeName": "node-0", "containers": []object{{"name": "web", "image": "nginx", "resources": object{"requests": object{"cpu": "50m"}}}}},
			"status": object{"phase": "Running", "conditions": []object{{"type": "Ready", "status": "True"}}}}}}
}

var started = time.Now()

func serve(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/metrics/resource" {
		http.NotFound(w, r)
		return
	}
	now, runs := time.Now().UnixMilli(), time.Since(started).Seconds()+60
	const container = `{container="web",namespace="default",pod="web"}`
	w.Header().Set("Content-Type", "text/plain; version=0.0.4")
	fmt.Fprintf(w, "# TYPE node_cpu_usage_seconds_total counter\nnode_cpu_usage_seconds_total %f %d\n", runs/4, now)
	fmt.Fprintf(w, "# TYPE node_memory_working_set_bytes gauge\nnode_memory_working_set_bytes %d %d\n", 512<<20, now)
	fmt.Fprintf(w, "# TYPE container_cpu_usage_seconds_total counter\ncontainer_cpu_usage_seconds_total%s %f %d\n", container, runs/10, now)
	fmt.Fprintf(w, "# TYPE container_memory_working_set_bytes gauge\ncontainer_memory_working_set_bytes%s %d %d\n", container, 64<<20, now)
	fmt.Fprintf(w, "# TYPE container_start_time_seconds gauge\ncontainer_start_time_seconds%s %d %d\n", container, started.Unix()-60, now)
}
