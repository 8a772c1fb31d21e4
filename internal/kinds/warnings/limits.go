package warnings

// This file prevents Kubernetes' functions from being called with long lists if they compare each
// element with all others.

import (
	"k8s.io/apimachinery/pkg/runtime"
	podutil "k8s.io/kubernetes/pkg/api/pod"
	"k8s.io/kubernetes/pkg/apis/core"

	"apilet/internal/scheme/internalversion"
)

const (
	// maxComparisons is the maximum number of pairs of ports with the same number, or of files in
	// the same volume.
	maxComparisons = 5000
	maxPathBytes   = 4 << 20 // bytes of all compared paths
)

// costly reports whether the warnings about obj take too long to compute. Only Pods and objects
// with a Pod template can be costly. The constants above are the limits.
func costly(obj runtime.Object) bool {
	spec := internalversion.PodSpecOf(obj)
	return spec != nil && (portComparisons(spec) > maxComparisons || !comparablePaths(spec.Volumes))
}

// portComparisons returns the number of pairs of ports that have the same number and protocol.
func portComparisons(spec *core.PodSpec) (pairs int) {
	type key struct {
		number   int32
		protocol core.Protocol
	}
	var count map[key]int
	for c := range podutil.ContainerIter(spec, podutil.AllContainers) {
		for _, port := range c.Ports {
			if count == nil {
				count = map[key]int{}
			}
			at := key{port.ContainerPort, port.Protocol}
			pairs += count[at]
			count[at]++
		}
	}
	return pairs
}

// comparablePaths reports whether the paths of the files in each volume may be compared with each
// other.
func comparablePaths(volumes []core.Volume) bool {
	pairs, bytes := 0, 0
	for i := range volumes {
		n, length := pathsIn(&volumes[i])
		pairs += n * (n - 1) / 2
		bytes += n * length
	}
	return pairs <= maxComparisons && bytes <= maxPathBytes
}

// pathsIn returns the number of paths in a volume and their total length.
func pathsIn(v *core.Volume) (n, length int) {
	add := func(path string) { n, length = n+1, length+len(path) }
	keys := func(items []core.KeyToPath) {
		for i := range items {
			add(items[i].Path)
		}
	}
	files := func(items []core.DownwardAPIVolumeFile) {
		for i := range items {
			add(items[i].Path)
		}
	}
	if v.ConfigMap != nil {
		keys(v.ConfigMap.Items)
	}
	if v.Secret != nil {
		keys(v.Secret.Items)
	}
	if v.DownwardAPI != nil {
		files(v.DownwardAPI.Items)
	}
	if v.Projected == nil {
		return n, length
	}
	for i := range v.Projected.Sources {
		source := &v.Projected.Sources[i]
		if source.ConfigMap != nil {
			keys(source.ConfigMap.Items)
		}
		if source.Secret != nil {
			keys(source.Secret.Items)
		}
		if source.DownwardAPI != nil {
			files(source.DownwardAPI.Items)
		}
		if source.ServiceAccountToken != nil {
			add(source.ServiceAccountToken.Path)
		}
		if source.ClusterTrustBundle != nil {
			add(source.ClusterTrustBundle.Path)
		}
		if c := source.PodCertificate; c != nil {
			add(c.CertificateChainPath)
			add(c.KeyPath)
			add(c.CredentialBundlePath)
		}
	}
	return n, length
}
