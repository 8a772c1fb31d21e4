// Kubelet simulates a kubelet for metrics-server. It serves /metrics/resource, with a quarter of a
// CPU for the node and a tenth for each pod. It prints a Node with its address. It also prints a
// Pod if no names are given.
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
	"strings"
	"time"
)

func main() {
	cert := flag.String("cert", "cert.pem", "PEM `file` with the certificate")
	key := flag.String("key", "key.pem", "PEM `file` with its key")
	pods := flag.String("pods", "", "comma-separated `names` of the pods that others make (default: web, which is printed)")
	flag.Parse()
	pair, err := tls.LoadX509KeyPair(*cert, *key)
	if err != nil {
		log.Fatal(err)
	}
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}})
	if err != nil {
		log.Fatal(err)
	}
	node, pod := objects(listener.Addr().(*net.TCPAddr).Port)
	list, names := []object{node, pod}, []string{"web"}
	if *pods != "" {
		list, names = list[:1], strings.Split(*pods, ",")
	}
	// the user notices incomplete output
	_ = json.NewEncoder(os.Stdout).Encode(object{"apiVersion": "v1", "kind": "List", "items": list})
	log.Fatal(http.Serve(listener, &kubelet{names, time.Now()}))
}

type object = map[string]any

// objects returns a node with one CPU and a pod running on it.
func objects(port int) (node, pod object) {
	node = object{"apiVersion": "v1", "kind": "Node", "metadata": object{"name": "node-0"}, "status": object{
		"addresses": []object{{"type": "InternalIP", "address": "127.0.0.1"}}, "daemonEndpoints": object{"kubeletEndpoint": object{"Port": port}},
		"capacity": object{"cpu": "1", "memory": "1Gi"}, "allocatable": object{"cpu": "1", "memory": "1Gi"},
		"conditions": []object{{"type": "Ready", "status": "True"}}}}
	pod = object{"apiVersion": "v1", "kind": "Pod", "metadata": object{"name": "web", "namespace": "default", "labels": object{"run": "web"}},
		"spec":   object{"nodeName": "node-0", "containers": []object{{"name": "web", "image": "nginx", "resources": object{"requests": object{"cpu": "50m"}}}}},
		"status": object{"phase": "Running", "conditions": []object{{"type": "Ready", "status": "True"}}}}
	return node, pod
}

// A kubelet simulates pods that have run since it started.
type kubelet struct {
	pods    []string
	started time.Time
}

func (k *kubelet) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/metrics/resource" {
		http.NotFound(w, r)
		return
	}
	now, runs := time.Now().UnixMilli(), time.Since(k.started).Seconds()+60
	w.Header().Set("Content-Type", "text/plain; version=0.0.4")
	fmt.Fprintf(w, "# TYPE node_cpu_usage_seconds_total counter\nnode_cpu_usage_seconds_total %f %d\n", runs/4, now)
	fmt.Fprintf(w, "# TYPE node_memory_working_set_bytes gauge\nnode_memory_working_set_bytes %d %d\n", 512<<20, now)
	for _, series := range []struct {
		name, kind string
		value      float64
	}{{"container_cpu_usage_seconds_total", "counter", runs / 10}, {"container_memory_working_set_bytes", "gauge", 64 << 20},
		{"container_start_time_seconds", "gauge", float64(k.started.Unix() - 60)}} {
		fmt.Fprintf(w, "# TYPE %s %s\n", series.name, series.kind)
		for _, pod := range k.pods {
			fmt.Fprintf(w, "%s{container=\"web\",namespace=\"default\",pod=%q} %f %d\n", series.name, pod, series.value, now)
		}
	}
}
