package defaults

import (
	"fmt"
)

func podOf(name, node string) string {
	return fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"serviceAccountName":"app","nodeName":%q,"containers":[{"name":"c","image":"i"}]}}`, name, node)
}
