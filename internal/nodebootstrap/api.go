package nodebootstrap

// This file creates the ClusterRoleBindings and checks the server's authentication, authorization
// and admission with the credentials of the kubelet.

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

// bindings allow kubelets with a bootstrap token to request a certificate, and allow
// kube-controller-manager to approve the requests of kubelets. The default bindings already cover
// kube-proxy, kube-controller-manager and kube-scheduler.
var bindings = []struct{ name, role, group string }{
	{"apilet:node-bootstrap", "system:node-bootstrapper", "system:bootstrappers"},
	{"apilet:approve-node-bootstrap", "system:certificates.k8s.io:certificatesigningrequests:nodeclient", "system:bootstrappers"},
	{"apilet:approve-node-rotation", "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient", "system:nodes"},
}

// createBindings creates the missing bindings.
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

// refusal returns the message of a Status, or the status code if there is no message.
func refusal(code int, answer []byte) string {
	if message := gjson.GetBytes(answer, "message").String(); message != "" {
		return message
	}
	return fmt.Sprintf("the server answers %d %s", code, http.StatusText(code))
}

// verify checks with dry-run requests that the kubelet can register its node, and warns if it can
// create other nodes.
func (n *node) verify(ctx context.Context, warnings io.Writer) error {
	kubelet, err := kubeconfig.Remote{Kubeconfig: n.dir + "/kubelet.kubeconfig", Agent: agent}.Client()
	if err != nil {
		return err
	}
	code, answer, err := createNode(ctx, kubelet, n.name)
	switch {
	case err != nil:
		return fmt.Errorf("the files were written, but the kubelet cannot reach the server: %w", err)
	case code == http.StatusUnauthorized:
		return fmt.Errorf("the files were written, but the server does not accept the certificates: %s is not its --cert-dir", n.certDir)
	case code == http.StatusForbidden:
		return fmt.Errorf("the files were written, but the server does not authorize the kubelet (start it with --authorization-mode Node,RBAC): %s", refusal(code, answer))
	case code != http.StatusCreated && code != http.StatusConflict:
		return fmt.Errorf("the files were written, but the kubelet cannot register its node: %s", refusal(code, answer))
	}
	if code, _, err := createNode(ctx, kubelet, n.name+"-other"); err != nil {
		return err
	} else if code == http.StatusCreated {
		fmt.Fprintln(warnings, "warning: nodes can modify each other; start the server with --enable-admission-plugins NodeRestriction")
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
