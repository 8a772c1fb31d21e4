package nodebootstrap

// This file is what the command does in the API: it creates bindings, and asks as the kubelet whether the server lets
// the node in, and keeps it from writing to others.

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"github.com/tidwall/gjson"

	"apilet/internal/kubeconfig"
)

const (
	bindingsPath = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
	answerLimit  = 64 << 10
)

// bindings let kubelets that come with a bootstrap token request a certificate, and have the requests for certificates
// of nodes approved by kube-controller-manager. The default roles already bind the users of kube-proxy,
// kube-controller-manager and kube-scheduler.
var bindings = []struct{ name, role, group string }{
	{"apilet:node-bootstrap", "system:node-bootstrapper", "system:bootstrappers"},
	{"apilet:approve-node-bootstrap", "system:certificates.k8s.io:certificatesigningrequests:nodeclient", "system:bootstrappers"},
	{"apilet:approve-node-rotation", "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient", "system:nodes"},
}

// createBindings creates the bindings that do not exist.
func createBindings(ctx context.Context, admin *kubeconfig.Client, out io.Writer) error {
	const group = "rbac.authorization.k8s.io"
	for _, b := range bindings {
		body, err := json.Marshal(map[string]any{
			"apiVersion": group + "/v1", "kind": "ClusterRoleBinding", "metadata": map[string]any{"name": b.name},
			"roleRef":  map[string]any{"apiGroup": group, "kind": "ClusterRole", "name": b.role},
			"subjects": []any{map[string]any{"apiGroup": group, "kind": "Group", "name": b.group}},
		})
		if err != nil {
			return err
		}
		code, answer, err := admin.PostTo(ctx, bindingsPath, body, answerLimit)
		state := "created"
		switch {
		case err != nil:
			return err
		case code == http.StatusConflict:
			state = "exists"
		case code != http.StatusCreated:
			return fmt.Errorf("cannot create ClusterRoleBinding %s: %s", b.name, refusal(code, answer))
		}
		fmt.Fprintf(out, "clusterrolebinding %s: %s\n", b.name, state)
	}
	return nil
}

// refusal returns the message of a Status, or the code.
func refusal(code int, answer []byte) string {
	if message := gjson.GetBytes(answer, "message").String(); message != "" {
		return message
	}
	return fmt.Sprintf("the server answers %d %s", code, http.StatusText(code))
}

// try creates Nodes as the kubelet would, without storing them.
func (n *node) try(ctx context.Context, warnings io.Writer) error {
	kubelet, err := kubeconfig.Remote{Kubeconfig: n.dir + "/kubelet.kubeconfig", Agent: agent}.Client()
	if err != nil {
		return err
	}
	code, answer, err := createNode(ctx, kubelet, n.name)
	switch {
	case err != nil:
		return fmt.Errorf("the files are written, but the kubelet cannot reach the server: %w", err)
	case code == http.StatusUnauthorized:
		return fmt.Errorf("the files are written, but the server does not trust their certificates: --cert-dir %s is not the folder of its authority", n.certDir)
	case code == http.StatusForbidden:
		return fmt.Errorf("the files are written, but the server does not let the kubelet in (start it with --authorization-mode Node,RBAC): %s", refusal(code, answer))
	case code != http.StatusCreated && code != http.StatusConflict:
		return fmt.Errorf("the files are written, but the kubelet cannot register: %s", refusal(code, answer))
	}
	if code, _, err := createNode(ctx, kubelet, n.name+"-other"); err != nil {
		return err
	} else if code == http.StatusCreated {
		fmt.Fprintln(warnings, "warning: a node may write to other nodes: start the server with --enable-admission-plugins NodeRestriction")
	}
	return nil
}

func createNode(ctx context.Context, kubelet *kubeconfig.Client, name string) (code int, answer []byte, err error) {
	body, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": name}})
	if err != nil {
		return 0, nil, err
	}
	return kubelet.PostTo(ctx, "/api/v1/nodes?dryRun=All", body, answerLimit)
}
