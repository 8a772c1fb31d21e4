package examples

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"apilet/apilettest"
)

// TestInformer receives a Secret that is created after the informer's first list.
func TestInformer(t *testing.T) {
	t.Parallel()
	s := apilettest.Start(t)
	config, err := clientcmd.RESTConfigFromKubeConfig(s.Kubeconfig())
	check(t, err)
	clients, err := kubernetes.NewForConfig(config)
	check(t, err)

	factory := informers.NewSharedInformerFactory(clients, 0)
	added := make(chan *corev1.Secret, 1) // of one event
	informer := factory.Core().V1().Secrets().Informer()
	_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(o any) { added <- o.(*corev1.Secret) }})
	check(t, err)
	factory.Start(t.Context().Done())
	t.Cleanup(factory.Shutdown)
	cache.WaitForCacheSync(t.Context().Done(), informer.HasSynced)

	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "password"}}
	_, err = clients.CoreV1().Secrets("default").Create(t.Context(), secret, metav1.CreateOptions{})
	check(t, err)
	if got := <-added; got.Name != "password" {
		t.Errorf("the informer has seen %s, want password", got.Name)
	}
}
