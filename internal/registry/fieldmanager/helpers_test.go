package fieldmanager

import (
	"fmt"
	"strings"
)

// numbered is n copies of a format with one number.
func numbered(n int, format string) string {
	var out strings.Builder
	for i := range n {
		fmt.Fprintf(&out, format, i)
	}
	return out.String()
}

func deploymentJSON(containers int) string {
	var list []string
	for i := range containers {
		list = append(list, fmt.Sprintf(`{"name":"c%d","image":"registry.example.com/app:%d","ports":[{"containerPort":%d,"protocol":"TCP"}],`+
			`"env":[{"name":"A","value":"1"},{"name":"B","value":"2"}],"resources":{"limits":{"cpu":"100m","memory":"64Mi"}},"imagePullPolicy":"IfNotPresent"}`, i, i, 8000+i))
	}
	return `{"kind":"Deployment","apiVersion":"apps/v1","metadata":{"name":"d","namespace":"default","uid":"1","resourceVersion":"7","labels":{"app":"x"}},` +
		`"spec":{"replicas":2,"selector":{"matchLabels":{"app":"x"}},"template":{"metadata":{"labels":{"app":"x"}},"spec":{"containers":[` +
		strings.Join(list, ",") + `],"restartPolicy":"Always"}},"strategy":{"type":"Recreate"}},"status":{}}`
}
