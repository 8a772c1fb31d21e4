package options

// This file defines the flags for connections to kubelets. They are the same as in kube-apiserver.

import (
	"errors"
	"flag"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"apilet/internal/commandline"
)

// Kubelet says how kubelets are reached.
type Kubelet struct {
	CertFile, KeyFile string // client certificate and key; "" means that the server issues its own
	CAFile            string // CA of the kubelets' certificates; "" means that they are not verified
	AddressTypes      []corev1.NodeAddressType
	Timeout           time.Duration // for connecting
}

func (o *Options) defineKubelet(f *flag.FlagSet) {
	k := &o.Kubelet
	f.StringVar(&k.CertFile, "kubelet-client-certificate", "", "PEM `file` with the client certificate for kubelets (default: a generated one for the user apiserver-kubelet-client)")
	f.StringVar(&k.KeyFile, "kubelet-client-key", "", "PEM `file` with the key of --kubelet-client-certificate")
	f.StringVar(&k.CAFile, "kubelet-certificate-authority", "", "PEM `file` with CAs to verify kubelets (default: kubelets are not verified)")
	k.AddressTypes = []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP, corev1.NodeHostName, corev1.NodeInternalDNS, corev1.NodeExternalDNS}
	f.Func("kubelet-preferred-address-types", "comma-separated `types` of Node addresses for connections to kubelets, in order of preference (default InternalIP,ExternalIP,Hostname,InternalDNS,ExternalDNS)", func(text string) error {
		names, err := commandline.SplitList(text)
		k.AddressTypes = nil
		for _, name := range names {
			k.AddressTypes = append(k.AddressTypes, corev1.NodeAddressType(name))
		}
		return err
	})
	f.DurationVar(&k.Timeout, "kubelet-timeout", 5*time.Second, "timeout for connecting to a kubelet; 0 means no limit")
}

// finishKubelet returns an error for flags that do not fit together.
func (o *Options) finishKubelet() error {
	known := []corev1.NodeAddressType{corev1.NodeHostName, corev1.NodeInternalDNS, corev1.NodeInternalIP, corev1.NodeExternalDNS, corev1.NodeExternalIP}
	for _, name := range o.Kubelet.AddressTypes {
		if !slices.Contains(known, name) {
			return fmt.Errorf("--kubelet-preferred-address-types: %q is none of %v", name, known)
		}
	}
	switch {
	case (o.Kubelet.CertFile == "") != (o.Kubelet.KeyFile == ""):
		return errors.New("--kubelet-client-certificate and --kubelet-client-key must be set together")
	case o.Kubelet.Timeout < 0:
		return fmt.Errorf("--kubelet-timeout: %s is negative (0 means no limit)", o.Kubelet.Timeout)
	}
	return nil
}
