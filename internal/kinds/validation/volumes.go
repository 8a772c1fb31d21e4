package validation

// This file: where volumes come from. Pods and PersistentVolumes share most sources; a PersistentVolume's have a namespace more. The rules
// are those of k8s.io/kubernetes, pkg/apis/core/validation (validateVolumeSource, ValidatePersistentVolumeSpec and the claims'), and of
// pkg/apis/storage/validation for classes, drivers, capacities and attachments. Each source is a method, its lines are the fields.

import (
	"fmt"
	"net"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metavalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"apilet/internal/apierror"
)

var (
	hostPathTypes       = []string{"", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"}
	certificateKeyTypes = []string{"RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519"}
	azureCachingModes   = []string{"None", "ReadOnly", "ReadWrite"}
	azureDiskKinds      = []string{"Dedicated", "Managed", "Shared"}
	envFields           = []string{"metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName", "status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs"}
	volumeFields        = []string{"metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"}
	downwardFields      = append([]string{"metadata.annotations", "metadata.labels", "spec.restartPolicy", "spec.schedulerName", "status.phase"}, envFields...)
	resourceFields      = []string{"limits.cpu", "limits.ephemeral-storage", "limits.memory", "requests.cpu", "requests.ephemeral-storage", "requests.memory"}
	iscsiNames          = map[string]*regexp.Regexp{"iqn": regexp.MustCompile(`iqn\.\d{4}-\d{2}\.([[:alnum:]-.]+)(:[^,;*&$|\s]+)$`), "eui": regexp.MustCompile(`^eui.[[:alnum:]]{16}$`), "naa": regexp.MustCompile(`^naa.[[:alnum:]]{32}$`)}
	pullPolicies        = []string{"Always", "IfNotPresent", "Never"}
	accessModes         = []string{"ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"}
	reclaimPolicies     = []string{"Delete", "Recycle", "Retain"}
	volumeModes         = []string{"Block", "Filesystem"}
)

// A volumeChecker checks sources of volumes. podName is that of the Pod whose volume it is; pod is false in a template.
type volumeChecker struct {
	*Checker
	pod     bool
	podName string
}

// source is the one member of a volume that says where it comes from.
func (c volumeChecker) source(p *field.Path, v *corev1.Volume) {
	one := &choice{Checker: c.Checker, p: p, what: "volume type"}
	if v.EmptyDir != nil {
		one.count++
		limit := v.EmptyDir.SizeLimit
		c.Forbid(p, "emptyDir.sizeLimit", limit != nil && limit.Sign() < 0, "SizeLimit field must be a valid resource quantity")
	}
	c.nodeAndDiskSource(one, p, v)
	c.networkSource(one, p, v)
	c.cloudSource(one, p, v)
	if s := v.StorageOS; s != nil && one.first("storageos") {
		c.Name(p.Child("storageos"), "volumeName", s.VolumeName, isLabel)
		c.Maybe(p.Child("storageos"), "volumeNamespace", s.VolumeNamespace, isLabel)
		if s.SecretRef != nil {
			c.Filled(p.Child("storageos", "secretRef"), "name", s.SecretRef.Name)
		}
	}
	if v.Projected != nil && one.first("projected") {
		c.projected(p.Child("projected"), v.Projected)
	}
	if s := v.ScaleIO; s != nil && one.first("scaleIO") {
		c.Filled(p.Child("scaleIO"), "gateway", s.Gateway, "system", s.System, "volumeName", s.VolumeName)
	}
	if s := v.CSI; s != nil && one.first("csi") {
		c.driverName(p.Child("csi"), "driver", s.Driver)
		if ref := s.NodePublishSecretRef; ref != nil && ref.Name == "" {
			c.Required(p.Child("csi", "nodePublishSecretRef"), "name", "")
		} else if ref != nil {
			c.Words(p.Child("csi"), "name", ref.Name, isSubdomain)
		}
	}
	if v.Ephemeral != nil && one.first("ephemeral") {
		c.ephemeralVolume(p, v)
	}
	if v.Image != nil && one.first("image") {
		c.Need(p.Child("image"), "reference", !c.pod || v.Image.Reference != "", "")
		c.Known(p.Child("image"), "pullPolicy", string(v.Image.PullPolicy), pullPolicies)
	}
	c.Need(p, "", one.count > 0, "must specify a volume type")
}

func (c volumeChecker) nodeAndDiskSource(one *choice, p *field.Path, v *corev1.Volume) {
	if v.HostPath != nil && one.first("hostPath") {
		c.hostPath(p.Child("hostPath"), v.HostPath)
	}
	if s := v.GitRepo; s != nil && one.first("gitRepo") {
		c.Filled(p.Child("gitRepo"), "repository", s.Repository)
		c.Words(p.Child("gitRepo"), "directory", s.Directory, isDescending)
	}
	if s := v.GCEPersistentDisk; s != nil && one.first("gcePersistentDisk") {
		c.disk(p.Child("persistentDisk"), "pdName", s.PDName, s.Partition)
	}
	if s := v.AWSElasticBlockStore; s != nil && one.first("awsElasticBlockStore") {
		c.disk(p.Child("awsElasticBlockStore"), "volumeID", s.VolumeID, s.Partition)
	}
	if s := v.Secret; s != nil && one.first("secret") {
		c.Filled(p.Child("secret"), "secretName", s.SecretName)
		c.fileMode(p.Child("secret"), "defaultMode", s.DefaultMode)
		c.keysToPaths(p.Child("secret", "items"), s.Items)
	}
}

func (c volumeChecker) networkSource(one *choice, p *field.Path, v *corev1.Volume) {
	if v.NFS != nil && one.first("nfs") {
		c.nfs(p.Child("nfs"), v.NFS)
	}
	if s := v.ISCSI; s != nil {
		if one.first("iscsi") {
			c.iscsi(p.Child("iscsi"), iscsiSource{
				portal: s.TargetPortal, name: s.IQN, lun: s.Lun, initiator: s.InitiatorName,
				lacksSecret: (s.DiscoveryCHAPAuth || s.SessionCHAPAuth) && s.SecretRef == nil, prefixWords: "must be valid format starting with iqn, eui, or naa",
			})
		}
		if s.InitiatorName != nil && len(v.Name+":"+s.TargetPortal) > 64 {
			c.Invalid(p, "name", v.Name, portalTooLong)
		}
	}
	if s := v.Glusterfs; s != nil && one.first("glusterfs") {
		c.Filled(p.Child("glusterfs"), "endpoints", s.EndpointsName, "path", s.Path)
	}
	if v.Flocker != nil && one.first("flocker") {
		c.flocker(p.Child("flocker"), v.Flocker)
	}
	if s := v.PersistentVolumeClaim; s != nil && one.first("persistentVolumeClaim") {
		c.Filled(p.Child("persistentVolumeClaim"), "claimName", s.ClaimName)
	}
	if s := v.RBD; s != nil && one.first("rbd") {
		c.Need(p.Child("rbd"), "monitors", len(s.CephMonitors) > 0, "")
		c.Filled(p.Child("rbd"), "image", s.RBDImage)
	}
	if s := v.Cinder; s != nil && one.first("cinder") {
		c.Filled(p.Child("cinder"), "volumeID", s.VolumeID)
		c.Need(p.Child("cinder"), "secretRef.name", s.SecretRef == nil || s.SecretRef.Name != "", "")
	}
	if s := v.CephFS; s != nil && one.first("cephFS") {
		c.Need(p.Child("cephfs"), "monitors", len(s.Monitors) > 0, "")
	}
	if v.Quobyte != nil && one.first("quobyte") {
		c.quobyte(p.Child("quobyte"), v.Quobyte)
	}
	if s := v.DownwardAPI; s != nil && one.first("downwarAPI") { // Kubernetes' spelling
		c.fileMode(p.Child("downwardAPI"), "defaultMode", s.DefaultMode)
		for i := range s.Items {
			c.downwardFile(p.Child("downwardAPI"), &s.Items[i])
		}
	}
}

func (c volumeChecker) cloudSource(one *choice, p *field.Path, v *corev1.Volume) {
	if v.FC != nil && one.first("fc") {
		c.fibreChannel(p.Child("fc"), v.FC)
	}
	if s := v.FlexVolume; s != nil && one.first("flexVolume") {
		c.flexVolume(p.Child("flexVolume"), s.Driver, s.Options)
	}
	if s := v.ConfigMap; s != nil && one.first("configMap") {
		c.Filled(p.Child("configMap"), "name", s.Name)
		c.fileMode(p.Child("configMap"), "defaultMode", s.DefaultMode)
		c.keysToPaths(p.Child("configMap", "items"), s.Items)
	}
	if s := v.AzureFile; s != nil && one.first("azureFile") {
		c.Filled(p.Child("azureFile"), "secretName", s.SecretName, "shareName", s.ShareName)
	}
	c.cloudDisks(one, p, cloudDisks{v.VsphereVolume, v.PhotonPersistentDisk, v.PortworxVolume, v.AzureDisk})
}

// cloudDisks are the sources that a pod's volume and a PersistentVolume have in common.
type cloudDisks struct {
	vsphere  *corev1.VsphereVirtualDiskVolumeSource
	photon   *corev1.PhotonPersistentDiskVolumeSource
	portworx *corev1.PortworxVolumeSource
	azure    *corev1.AzureDiskVolumeSource
}

func (c volumeChecker) cloudDisks(one *choice, p *field.Path, v cloudDisks) {
	if v.vsphere != nil && one.first("vsphereVolume") {
		c.Filled(p.Child("vsphereVolume"), "volumePath", v.vsphere.VolumePath)
	}
	if v.photon != nil && one.first("photonPersistentDisk") {
		c.Filled(p.Child("photonPersistentDisk"), "pdID", v.photon.PdID)
	}
	if v.portworx != nil && one.first("portworxVolume") {
		c.Filled(p.Child("portworxVolume"), "volumeID", v.portworx.VolumeID)
	}
	if v.azure != nil && one.first("azureDisk") {
		c.azureDisk(p.Child("azureDisk"), v.azure)
	}
}

func (c volumeChecker) ephemeralVolume(p *field.Path, v *corev1.Volume) {
	template := v.Ephemeral.VolumeClaimTemplate
	if template == nil {
		c.Required(p, "ephemeral.volumeClaimTemplate", "")
	} else {
		tp := p.Child("ephemeral", "volumeClaimTemplate")
		c.Add(metavalidation.ValidateAnnotations(template.Annotations, tp.Child("metadata", "annotations"))...)
		c.labels(tp, "metadata.labels", template.Labels)
		c.onlyLabelsAndAnnotations(tp.Child("metadata"), &template.ObjectMeta)
		c.claimSpec(tp.Child("spec"), &template.Spec)
	}
	if c.podName != "" && v.Name != "" {
		claim := c.podName + "-" + v.Name
		for _, message := range isSubdomain(claim) {
			c.Invalid(p, "name", v.Name, fmt.Sprintf("PVC name %q: %v", claim, message))
		}
	}
}

// onlyLabelsAndAnnotations refuses other metadata, which a claim's template would lose.
func (c volumeChecker) onlyLabelsAndAnnotations(p *field.Path, meta *metav1.ObjectMeta) {
	value := reflect.ValueOf(meta).Elem()
	for i := range value.NumField() {
		if name := value.Type().Field(i).Name; name != "Labels" && name != "Annotations" {
			c.Forbid(p, strings.ToLower(name[:1])+name[1:], !value.Field(i).IsZero(), "cannot be set")
		}
	}
}

func (c volumeChecker) fileMode(p *field.Path, name string, mode *int32) {
	if mode != nil && (*mode < 0 || *mode > 0o777) {
		c.Invalid(p, name, *mode, "must be a number between 0 and 0777 (octal), both inclusive")
	}
}

func (c volumeChecker) keysToPaths(p *field.Path, items []corev1.KeyToPath) {
	for i := range items {
		c.Filled(p.Index(i), "key", items[i].Key, "path", items[i].Path)
		c.Words(p.Index(i), "path", items[i].Path, isLocalPath)
		c.fileMode(p.Index(i), "mode", items[i].Mode)
	}
}

func (c volumeChecker) downwardFile(p *field.Path, file *corev1.DownwardAPIVolumeFile) {
	c.Filled(p, "path", file.Path)
	c.Words(p, "path", file.Path, isLocalPath)
	switch {
	case file.FieldRef != nil:
		fieldRef(c.Checker, p.Child("fieldRef"), file.FieldRef, volumeFields)
		if file.ResourceFieldRef != nil {
			c.Invalid(p, "", "resource", "fieldRef and resourceFieldRef can not be specified simultaneously")
		}
	case file.ResourceFieldRef != nil && file.ResourceFieldRef.ContainerName == "":
		c.Required(p, "resourceFieldRef.containerName", "")
	case file.ResourceFieldRef != nil:
		resourceFieldRef(c.Checker, p.Child("resourceFieldRef"), file.ResourceFieldRef)
	default:
		c.Required(p, "", "one of fieldRef and resourceFieldRef is required")
	}
	c.fileMode(p, "mode", file.Mode)
}

// projected also finds two sources that write one file.
func (c volumeChecker) projected(p *field.Path, projected *corev1.ProjectedVolumeSource) {
	c.fileMode(p, "defaultMode", projected.DefaultMode)
	files := set{}
	file := func(path, blame string) {
		if path != "" && files[path] {
			c.Invalid(p, "", blame, "conflicting duplicate paths")
		}
		files[path] = true
	}
	for i := range projected.Sources {
		source, sp := &projected.Sources[i], p.Child("sources").Index(i)
		sources := 0
		if s := source.Secret; s != nil {
			sources++
			c.projectedKeys(sp.Child("secret"), s.Name, s.Items, file)
		}
		if s := source.ConfigMap; s != nil {
			sources++
			c.projectedKeys(sp.Child("configMap"), s.Name, s.Items, file)
		}
		if s := source.DownwardAPI; s != nil {
			sources++
			for j := range s.Items {
				c.downwardFile(sp.Child("downwardAPI"), &s.Items[j])
				file(s.Items[j].Path, s.Items[j].Path)
			}
		}
		if source.ServiceAccountToken != nil {
			sources++
			c.projectedToken(p, sp.Child("serviceAccountToken"), source.ServiceAccountToken)
		}
		if source.ClusterTrustBundle != nil {
			sources++
			c.trustBundle(sp.Child("clusterTrustBundle"), source.ClusterTrustBundle)
			file(source.ClusterTrustBundle.Path, source.ClusterTrustBundle.Path)
		}
		if source.PodCertificate != nil {
			sources++
			c.podCertificate(sp.Child("podCertificate"), source.PodCertificate, file)
		}
		c.Forbid(sp, "", sources > 1, "may not specify more than 1 volume type per source")
	}
}

func (c volumeChecker) projectedKeys(p *field.Path, name string, items []corev1.KeyToPath, file func(path, blame string)) {
	c.Filled(p, "name", name)
	for i := range items {
		c.Filled(p.Child("items").Index(i), "key", items[i].Key, "path", items[i].Path)
		c.Words(p.Child("items").Index(i), "path", items[i].Path, isLocalPath)
		c.fileMode(p.Child("items").Index(i), "mode", items[i].Mode)
		file(items[i].Path, name)
	}
}

func (c volumeChecker) projectedToken(volume, p *field.Path, token *corev1.ServiceAccountTokenProjection) {
	if seconds := *token.ExpirationSeconds; seconds < 600 {
		c.Invalid(p, "expirationSeconds", seconds, "may not specify a duration less than 10 minutes")
	} else if seconds > 1<<32 {
		c.Invalid(p, "expirationSeconds", seconds, "may not specify a duration larger than 2^32 seconds")
	}
	c.Name(volume, "path", token.Path, isLocalPath)
}

func (c volumeChecker) trustBundle(p *field.Path, bundle *corev1.ClusterTrustBundleProjection) {
	switch {
	case bundle.Name != nil && bundle.SignerName != nil:
		c.Invalid(p, "", bundle, "only one of name and signerName may be used")
	case bundle.Name != nil:
		c.Need(p, "name", *bundle.Name != "", "must be a valid object name")
		for _, message := range isSubdomain((*bundle.Name)[strings.LastIndex(*bundle.Name, ":")+1:]) {
			c.Invalid(p, "name", *bundle.Name, "not a valid clustertrustbundlename: "+message)
		}
		if bundle.LabelSelector != nil {
			c.Invalid(p, "labelSelector", bundle.LabelSelector, "labelSelector must be unset if name is specified")
		}
	case bundle.SignerName != nil:
		c.Need(p, "signerName", *bundle.SignerName != "", "must be a valid signer name")
		c.signerName(p.Child("signerName"), *bundle.SignerName)
		c.selector(p, "labelSelector", bundle.LabelSelector)
	default:
		c.Required(p, "", "either name or signerName must be specified")
	}
	c.Filled(p, "path", bundle.Path)
	c.Words(p, "path", bundle.Path, isLocalPath)
}

func (c volumeChecker) podCertificate(p *field.Path, certificate *corev1.PodCertificateProjection, file func(path, blame string)) {
	c.signerName(p.Child("signerName"), certificate.SignerName)
	c.OneOf(p, "keyType", certificate.KeyType, certificateKeyTypes)
	if seconds := certificate.MaxExpirationSeconds; seconds != nil {
		host, _, _ := strings.Cut(certificate.SignerName, "/")
		most := int32(91 * 24 * 3600)
		if host == "kubernetes.io" || strings.HasSuffix(host, ".kubernetes.io") {
			most = 24 * 3600
		}
		if *seconds < 3600 {
			c.Invalid(p, "maxExpirationSeconds", *seconds, "if provided, maxExpirationSeconds must be >= 3600")
		}
		if *seconds > most {
			c.Invalid(p, "maxExpirationSeconds", *seconds, fmt.Sprintf("if provided, maxExpirationSeconds must be <= %d", most))
		}
	}
	paths := 0
	for _, pair := range [...][2]string{
		{"credentialBundlePath", certificate.CredentialBundlePath}, {"keyPath", certificate.KeyPath}, {"certificateChainPath", certificate.CertificateChainPath},
	} {
		if pair[1] != "" {
			paths++
			c.Words(p, pair[0], pair[1], isLocalPath)
			file(pair[1], pair[1])
		}
	}
	c.Need(p, "", paths > 0, "specify at least one of credentialBundlePath, keyPath, and certificateChainPath")
}

// signerName is example.com/name.
func (c volumeChecker) signerName(p *field.Path, name string) {
	domain, rest, ok := strings.Cut(name, "/")
	switch {
	case name == "":
		c.Required(p, "", "")
		return
	case !ok || strings.Contains(rest, "/"):
		c.Invalid(p, "", name, "must be a fully qualified domain and path of the form 'example.com/signer-name'")
		return
	}
	c.everyPart(p, domain, isLabel)
	if !strings.Contains(domain, ".") {
		c.Invalid(p, "", domain, "should be a domain with at least two segments separated by dots")
	}
	c.everyPart(p, rest, isSubdomain)
	if len(name) > 571 {
		c.Add(field.TooLong(p, "", 571))
	}
}

// everyPart stops at the first part that is wrong.
func (c volumeChecker) everyPart(p *field.Path, dotted string, f Format) {
	for _, part := range strings.Split(dotted, ".") {
		if messages := f(part); len(messages) > 0 {
			for _, message := range messages {
				c.Invalid(p, "", dotted, fmt.Sprintf("validating label %q: %s", part, message))
			}
			return
		}
	}
}

// ---- sources of volumes that pods and PersistentVolumes share ----

const portalTooLong = "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if iscsi.initiatorName is specified."

func (c volumeChecker) hostPath(p *field.Path, source *corev1.HostPathVolumeSource) {
	if source.Path == "" {
		c.Required(p, "path", "")
		return
	}
	c.Words(p, "path", source.Path, noBacksteps)
	oneOfRef(c.Checker, p, "type", source.Type, hostPathTypes)
}

func (c volumeChecker) disk(p *field.Path, name, value string, partition int32) {
	c.Filled(p, name, value)
	if partition < 0 || partition > 255 {
		c.Invalid(p, "partition", partition, "must be between 1 and 255, inclusive")
	}
}

func (c volumeChecker) nfs(p *field.Path, source *corev1.NFSVolumeSource) {
	c.Filled(p, "server", source.Server, "path", source.Path)
	if !path.IsAbs(source.Path) {
		c.Invalid(p, "path", source.Path, "must be an absolute path")
	}
}

// iscsiSource is what both kinds of iSCSI volumes have; prefixWords is what is said of a name with an unknown prefix.
type iscsiSource struct {
	portal, name string
	lun          int32
	initiator    *string
	lacksSecret  bool
	prefixWords  string
}

func (c volumeChecker) iscsi(p *field.Path, source iscsiSource) {
	c.Filled(p, "targetPortal", source.portal)
	if source.name == "" {
		c.Required(p, "iqn", "")
	} else {
		c.iscsiName(p, "iqn", source.name, source.prefixWords)
	}
	c.within(p, "lun", int64(source.lun), 0, 255)
	c.Need(p, "secretRef", !source.lacksSecret, "")
	if source.initiator != nil {
		c.iscsiName(p, "initiatorname", *source.initiator, source.prefixWords)
	}
}

func (c volumeChecker) iscsiName(p *field.Path, name, value, prefixWords string) {
	if pattern := iscsiNames[value[:min(3, len(value))]]; pattern == nil {
		c.Invalid(p, name, value, prefixWords)
	} else if !pattern.MatchString(value) {
		c.Invalid(p, name, value, "must be valid format")
	}
}

func (c volumeChecker) flocker(p *field.Path, source *corev1.FlockerVolumeSource) {
	c.Need(p, "", source.DatasetName != "" || source.DatasetUUID != "", "one of datasetName and datasetUUID is required")
	if source.DatasetName != "" && source.DatasetUUID != "" {
		c.Invalid(p, "", "resource", "datasetName and datasetUUID can not be specified simultaneously")
	}
	if strings.Contains(source.DatasetName, "/") {
		c.Invalid(p, "datasetName", source.DatasetName, "must not contain '/'")
	}
}

func (c volumeChecker) quobyte(p *field.Path, source *corev1.QuobyteVolumeSource) {
	const hosts = "must be a host:port pair or multiple pairs separated by commas"
	switch {
	case source.Registry == "":
		c.Required(p, "registry", hosts)
	case len(source.Tenant) >= 65:
		c.Required(p, "tenant", "must be a UUID and may not exceed a length of 64 characters")
	default:
		for _, host := range strings.Split(source.Registry, ",") {
			if _, _, err := net.SplitHostPort(host); err != nil {
				c.Invalid(p, "registry", source.Registry, hosts)
			}
		}
	}
	c.Filled(p, "volume", source.Volume)
}

func (c volumeChecker) fibreChannel(p *field.Path, source *corev1.FCVolumeSource) {
	names, ids := len(source.TargetWWNs), len(source.WWIDs)
	c.Need(p, "targetWWNs", names > 0 || ids > 0, "must specify either targetWWNs or wwids, but not both")
	if names > 0 && ids > 0 {
		c.Invalid(p, "targetWWNs", source.TargetWWNs, "targetWWNs and wwids can not be specified simultaneously")
	}
	if names > 0 && source.Lun == nil {
		c.Required(p, "lun", "lun is required if targetWWNs is specified")
	} else if names > 0 {
		c.within(p, "lun", int64(*source.Lun), 0, 255)
	}
}

func (c volumeChecker) flexVolume(p *field.Path, driver string, options map[string]string) {
	c.Filled(p, "driver", driver)
	for _, key := range sortedKeys(options) {
		domain, _, _ := strings.Cut(key, "/")
		domain = "." + strings.ToLower(domain)
		if strings.HasSuffix(domain, ".kubernetes.io") || strings.HasSuffix(domain, ".k8s.io") {
			c.Invalid(p.Child("options").Key(key), "", key, "kubernetes.io and k8s.io namespaces are reserved")
		}
	}
}

func (c volumeChecker) azureDisk(p *field.Path, disk *corev1.AzureDiskVolumeSource) {
	c.Filled(p, "diskName", disk.DiskName, "diskURI", disk.DataDiskURI)
	oneOfRef(c.Checker, p, "cachingMode", disk.CachingMode, azureCachingModes)
	oneOfRef(c.Checker, p, "kind", disk.Kind, azureDiskKinds)
	if disk.Kind == nil {
		return
	}
	if managed := *disk.Kind == corev1.AzureManagedDisk; managed && !strings.HasPrefix(disk.DataDiskURI, "/subscriptions/") {
		c.Unsupported(p, "diskURI", disk.DataDiskURI, []string{"/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}"})
	} else if !managed && !strings.HasPrefix(disk.DataDiskURI, "https://") {
		c.Unsupported(p, "diskURI", disk.DataDiskURI, []string{"https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd"})
	}
}

func (c volumeChecker) driverName(p *field.Path, name, driver string) {
	if driver == "" {
		c.Required(p, name, "")
		return
	}
	if len(driver) > 63 {
		c.Add(field.TooLong(at(p, name), "", 63))
	}
	for _, message := range isSubdomain(strings.ToLower(driver)) {
		c.Invalid(p, name, driver, message)
	}
}

func noBacksteps(s string) []string {
	if slices.Contains(strings.Split(s, "/"), "..") {
		return []string{"must not contain '..'"}
	}
	return nil
}

// isDescending is for a relative path that stays below where it starts.
func isDescending(s string) []string {
	if path.IsAbs(s) {
		return append([]string{"must be a relative path"}, noBacksteps(s)...)
	}
	return noBacksteps(s)
}

// isLocalPath also keeps the names beginning with two dots for the kubelet.
func isLocalPath(s string) []string {
	messages := isDescending(s)
	if strings.HasPrefix(s, "..") && !strings.HasPrefix(s, "../") {
		messages = append(messages, "must not start with '..'")
	}
	return messages
}

// fieldRef is the downward API's way to a field of the pod.
func fieldRef(c *Checker, p *field.Path, ref *corev1.ObjectFieldSelector, allowed []string) {
	if ref.FieldPath == "" {
		c.Required(p, "fieldPath", "")
		return
	}
	name, subscript, subscripted := strings.Cut(strings.TrimSuffix(ref.FieldPath, "']"), "['")
	subscripted = subscripted && strings.HasSuffix(ref.FieldPath, "']") && name != ""
	switch {
	case ref.APIVersion != "v1":
		c.Invalid(p, "fieldPath", ref.FieldPath, "error converting fieldPath: unsupported pod version: "+ref.APIVersion)
	case subscripted && name == "metadata.annotations":
		c.Words(p, "", strings.ToLower(subscript), isQualifiedName)
	case subscripted && name == "metadata.labels":
		c.Words(p, "", subscript, isQualifiedName)
	case subscripted:
		c.Invalid(p, "fieldPath", ref.FieldPath, "error converting fieldPath: field label does not support subscript: "+ref.FieldPath)
	case !slices.Contains(downwardFields, ref.FieldPath) && ref.FieldPath != "spec.host":
		c.Invalid(p, "fieldPath", ref.FieldPath, "error converting fieldPath: field label not supported: "+ref.FieldPath)
	case !slices.Contains(allowed, ref.FieldPath) && ref.FieldPath != "spec.host":
		c.Unsupported(p, "fieldPath", ref.FieldPath, allowed)
	}
}

func resourceFieldRef(c *Checker, p *field.Path, ref *corev1.ResourceFieldSelector) {
	hugePages := strings.HasPrefix(ref.Resource, "requests.hugepages-") || strings.HasPrefix(ref.Resource, "limits.hugepages-")
	if ref.Resource == "" {
		c.Required(p, "resource", "")
	} else if !hugePages {
		c.OneOf(p, "resource", ref.Resource, resourceFields)
	}
	divisor(c, p, ref, hugePages)
}

func divisor(c *Checker, p *field.Path, ref *corev1.ResourceFieldSelector, hugePages bool) {
	if ref.Divisor.IsZero() {
		return
	}
	_, kind, _ := strings.Cut(ref.Resource, ".")
	allowed, of := "1, 1k, 1M, 1G, 1T, 1P, 1E, 1Ki, 1Mi, 1Gi, 1Ti, 1Pi, 1Ei", kind
	switch {
	case kind == "cpu":
		allowed = "1m and 1"
	case kind == "ephemeral-storage":
		of = "local ephemeral storage"
	case hugePages:
		of = "hugepages"
	case kind != "memory":
		return
	}
	values := strings.Split(strings.ReplaceAll(allowed, " and ", ", "), ", ")
	if !slices.Contains(values, ref.Divisor.String()) {
		c.Invalid(p, "divisor", ref.Resource, fmt.Sprintf("only divisor's values %s are supported with the %s resource", allowed, of))
	}
}

// ---- PersistentVolumes and claims ----

// accessModes also keeps ReadWriteOncePod alone.
func (c volumeChecker) accessModes(p *field.Path, modes []corev1.PersistentVolumeAccessMode) {
	alone, others := false, false
	for _, mode := range modes {
		c.OneOf(p, "accessModes", string(mode), accessModes)
		alone = alone || mode == corev1.ReadWriteOncePod
		others = others || mode != corev1.ReadWriteOncePod && slices.Contains(accessModes, string(mode))
	}
	c.Forbid(p, "accessModes", alone && others, "may not use ReadWriteOncePod with other access modes")
}

// claimSpec is the spec of a claim, or of a claim's template.
func (c volumeChecker) claimSpec(p *field.Path, spec *corev1.PersistentVolumeClaimSpec) {
	c.Need(p, "accessModes", len(spec.AccessModes) > 0, "at least 1 access mode is required")
	c.selector(p, "selector", spec.Selector)
	c.accessModes(p, spec.AccessModes)
	size, ok := spec.Resources.Requests[corev1.ResourceStorage]
	if sp := p.Child("resources").Key("storage"); !ok {
		c.Required(sp, "", "")
	} else if size.Sign() <= 0 {
		c.Invalid(sp, "", size.String(), "must be greater than zero")
	}
	if class := spec.StorageClassName; class != nil {
		c.Maybe(p, "storageClassName", *class, isSubdomain)
	}
	oneOfRef(c.Checker, p, "volumeMode", spec.VolumeMode, volumeModes)
	c.dataSources(p, spec)
	if class := spec.VolumeAttributesClassName; class != nil {
		c.Maybe(p, "volumeAttributesClassName", *class, isSubdomain)
	}
}

// dataSources: the old and the new way of naming one must say the same.
func (c volumeChecker) dataSources(p *field.Path, spec *corev1.PersistentVolumeClaimSpec) {
	source, ref := spec.DataSource, spec.DataSourceRef
	if source != nil {
		c.dataSource(p.Child("dataSource"), source.Name, source.Kind, source.APIGroup)
	}
	if ref == nil {
		return
	}
	c.dataSource(p.Child("dataSourceRef"), ref.Name, ref.Kind, ref.APIGroup)
	elsewhere := ref.Namespace != nil && *ref.Namespace != ""
	if elsewhere {
		c.Words(p, "dataSourceRef.namespace", *ref.Namespace, isLabel)
	}
	if source == nil {
		return
	}
	if elsewhere {
		c.Invalid(p, "", p.Child("dataSource"), "may not be specified when dataSourceRef.namespace is specified")
	} else if source.Name != ref.Name || source.Kind != ref.Kind || !reflect.DeepEqual(source.APIGroup, ref.APIGroup) {
		c.Invalid(p, "", p.Child("dataSource"), "must match dataSourceRef")
	}
}

func (c volumeChecker) dataSource(p *field.Path, name, kind string, group *string) {
	c.Filled(p, "name", name, "kind", kind)
	if (group == nil || *group == "") && kind != "PersistentVolumeClaim" {
		c.Invalid(p, "", kind, "must be 'PersistentVolumeClaim' when referencing the default apiGroup")
	}
	if group != nil {
		c.Maybe(p, "apiGroup", *group, isSubdomain)
	}
}

// volumeSpec is the spec of a PersistentVolume; name is the object's.
func (c volumeChecker) volumeSpec(p *field.Path, name string, spec *corev1.PersistentVolumeSpec) {
	c.Need(p, "accessModes", len(spec.AccessModes) > 0, "")
	c.accessModes(p, spec.AccessModes)
	c.capacity(p, spec.Capacity)
	c.OneOf(p, "persistentVolumeReclaimPolicy", string(spec.PersistentVolumeReclaimPolicy), reclaimPolicies)
	c.nodeAffinity(p, spec.NodeAffinity)
	c.persistentSource(p, name, spec)
	c.Forbid(p, "persistentVolumeReclaimPolicy",
		spec.HostPath != nil && path.Clean(spec.HostPath.Path) == "/" && spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRecycle,
		"may not be 'recycle' for a hostPath mount of '/'")
	c.Maybe(p, "storageClassName", spec.StorageClassName, isSubdomain)
	oneOfRef(c.Checker, p, "volumeMode", spec.VolumeMode, volumeModes)
	if class := spec.VolumeAttributesClassName; class != nil {
		if *class == "" {
			c.Required(p, "volumeAttributesClassName", "an empty string is disallowed")
		}
		c.Maybe(p, "volumeAttributesClassName", *class, isSubdomain)
		c.Need(p, "csi", spec.CSI != nil, "has to be specified when using volumeAttributesClassName")
	}
}

// inlineSpec is a volume that a VolumeAttachment describes itself.
func (c volumeChecker) inlineSpec(p *field.Path, spec *corev1.PersistentVolumeSpec) {
	const inline = "may not be specified in the context of inline volumes"
	c.Forbid(p, "claimRef", spec.ClaimRef != nil, inline)
	c.Forbid(p, "capacity", len(spec.Capacity) > 0, inline)
	c.Need(p, "csi", spec.CSI != nil, "has to be specified in the context of inline volumes")
	c.Need(p, "accessModes", len(spec.AccessModes) > 0, "")
	c.accessModes(p, spec.AccessModes)
	policy := spec.PersistentVolumeReclaimPolicy
	c.Forbid(p, "persistentVolumeReclaimPolicy", policy != "" && policy != corev1.PersistentVolumeReclaimRetain, "may only be Retain in the context of inline volumes")
	c.Forbid(p, "nodeAffinity", spec.NodeAffinity != nil, inline)
	c.persistentSource(p, "", spec)
	c.Forbid(p, "storageClassName", spec.StorageClassName != "", inline)
	mode := spec.VolumeMode
	c.Forbid(p, "volumeMode", mode != nil && *mode != corev1.PersistentVolumeFilesystem, "may not specify volumeMode other than Filesystem in the context of inline volumes")
}

func (c volumeChecker) capacity(p *field.Path, capacity corev1.ResourceList) {
	c.Need(p, "capacity", len(capacity) > 0, "")
	if _, ok := capacity[corev1.ResourceStorage]; !ok || len(capacity) > 1 {
		c.Unsupported(p, "capacity", capacity, []string{"storage"})
	}
	for _, name := range sortedKeys(capacity) {
		size := capacity[name]
		if size.Value() < 0 {
			c.Invalid(p.Child("capacity").Key(string(name)), "", size.Value(), "must be a valid resource quantity")
		}
		if size.Sign() <= 0 {
			c.Invalid(p.Child("capacity").Key(string(name)), "", size.String(), "must be greater than zero")
		}
	}
}

func (c volumeChecker) nodeAffinity(p *field.Path, affinity *corev1.VolumeNodeAffinity) {
	if affinity == nil {
		return
	}
	if affinity.Required == nil {
		c.Required(p, "nodeAffinity.required", "must specify required node constraints")
		return
	}
	placementChecker{c.Checker}.nodeSelector(p.Child("nodeAffinity", "required"), affinity.Required)
}

// persistentSource is the one member that says where a PersistentVolume comes from.
func (c volumeChecker) persistentSource(p *field.Path, name string, v *corev1.PersistentVolumeSpec) {
	one := &choice{Checker: c.Checker, p: p, what: "volume type"}
	if v.HostPath != nil && one.first("hostPath") {
		c.hostPath(p.Child("hostPath"), v.HostPath)
	}
	if s := v.GCEPersistentDisk; s != nil && one.first("gcePersistentDisk") {
		c.disk(p.Child("persistentDisk"), "pdName", s.PDName, s.Partition)
	}
	if s := v.AWSElasticBlockStore; s != nil && one.first("awsElasticBlockStore") {
		c.disk(p.Child("awsElasticBlockStore"), "volumeID", s.VolumeID, s.Partition)
	}
	c.persistentNetworkSource(one, p, name, v)
	c.persistentCloudSource(one, p, v)
	if v.Local != nil && one.first("local") {
		if v.Local.Path == "" {
			c.Required(p, "local.path", "")
		} else {
			c.Words(p, "local.path", v.Local.Path, noBacksteps)
		}
		c.Need(p, "nodeAffinity", v.NodeAffinity != nil, "Local volume requires node affinity")
	}
	if s := v.StorageOS; s != nil && one.first("storageos") {
		c.Name(p.Child("storageos"), "volumeName", s.VolumeName, isLabel)
		c.Maybe(p.Child("storageos"), "volumeNamespace", s.VolumeNamespace, isLabel)
		if s.SecretRef != nil {
			c.Filled(p.Child("storageos", "secretRef"), "name", s.SecretRef.Name, "namespace", s.SecretRef.Namespace)
		}
	}
	if v.CSI != nil && one.first("csi") {
		c.persistentCSI(p.Child("csi"), v.CSI)
	}
	c.Need(p, "", one.count > 0, "must specify a volume type")
}

func (c volumeChecker) persistentNetworkSource(one *choice, p *field.Path, name string, v *corev1.PersistentVolumeSpec) {
	if s := v.Glusterfs; s != nil && one.first("glusterfs") {
		c.Filled(p.Child("glusterfs"), "endpoints", s.EndpointsName, "path", s.Path)
		if s.EndpointsNamespace != nil && *s.EndpointsNamespace == "" {
			c.Invalid(p, "glusterfs.endpointsNamespace", "", "if the endpointnamespace is set, it must be a valid namespace name")
		} else if s.EndpointsNamespace != nil {
			c.Words(p, "glusterfs.endpointsNamespace", *s.EndpointsNamespace, isLabel)
		}
	}
	if v.Flocker != nil && one.first("flocker") {
		c.flocker(p.Child("flocker"), v.Flocker)
	}
	if v.NFS != nil && one.first("nfs") {
		c.nfs(p.Child("nfs"), v.NFS)
	}
	if s := v.RBD; s != nil && one.first("rbd") {
		c.Need(p.Child("rbd"), "monitors", len(s.CephMonitors) > 0, "")
		c.Filled(p.Child("rbd"), "image", s.RBDImage)
	}
	if v.Quobyte != nil && one.first("quobyte") {
		c.quobyte(p.Child("quobyte"), v.Quobyte)
	}
	if s := v.CephFS; s != nil && one.first("cephFS") {
		c.Need(p.Child("cephfs"), "monitors", len(s.Monitors) > 0, "")
	}
	if s := v.ISCSI; s != nil && one.first("iscsi") {
		if s.InitiatorName != nil && len(name+":"+s.TargetPortal) > 64 {
			c.Invalid(p, "iscsi.targetportal", s.TargetPortal, portalTooLong)
		}
		c.iscsi(p.Child("iscsi"), iscsiSource{
			portal: s.TargetPortal, name: s.IQN, lun: s.Lun, initiator: s.InitiatorName,
			lacksSecret: (s.DiscoveryCHAPAuth || s.SessionCHAPAuth) && s.SecretRef == nil, prefixWords: "must be valid format",
		})
		c.Need(p, "iscsi.secretRef.name", s.SecretRef == nil || s.SecretRef.Name != "", "")
	}
	if s := v.Cinder; s != nil && one.first("cinder") {
		c.Filled(p.Child("cinder"), "volumeID", s.VolumeID)
		if s.SecretRef != nil {
			c.Filled(p.Child("cinder", "secretRef"), "name", s.SecretRef.Name, "namespace", s.SecretRef.Namespace)
		}
	}
	if v.FC != nil && one.first("fc") {
		c.fibreChannel(p.Child("fc"), v.FC)
	}
}

func (c volumeChecker) persistentCloudSource(one *choice, p *field.Path, v *corev1.PersistentVolumeSpec) {
	if s := v.FlexVolume; s != nil {
		one.count++ // beside another source it is not refused
		c.flexVolume(p.Child("flexVolume"), s.Driver, s.Options)
	}
	if s := v.AzureFile; s != nil && one.first("azureFile") {
		c.Filled(p.Child("azureFile"), "secretName", s.SecretName, "shareName", s.ShareName)
		c.Need(p, "azureFile.secretNamespace", s.SecretNamespace == nil || *s.SecretNamespace != "", "")
	}
	c.cloudDisks(one, p, cloudDisks{v.VsphereVolume, v.PhotonPersistentDisk, v.PortworxVolume, v.AzureDisk})
	if s := v.ScaleIO; s != nil && one.first("scaleIO") {
		c.Filled(p.Child("scaleIO"), "gateway", s.Gateway, "system", s.System, "volumeName", s.VolumeName)
	}
}

func (c volumeChecker) persistentCSI(p *field.Path, source *corev1.CSIPersistentVolumeSource) {
	c.driverName(p, "driver", source.Driver)
	c.Filled(p, "volumeHandle", source.VolumeHandle)
	for _, secret := range [...]struct {
		name string
		ref  *corev1.SecretReference
	}{
		{"controllerPublishSecretRef", source.ControllerPublishSecretRef}, {"controllerExpandSecretRef", source.ControllerExpandSecretRef},
		{"nodePublishSecretRef", source.NodePublishSecretRef}, {"nodeExpandSecretRef", source.NodeExpandSecretRef},
	} {
		if secret.ref != nil {
			c.Name(p.Child(secret.name), "name", secret.ref.Name, isSubdomain)
			c.Name(p.Child(secret.name), "namespace", secret.ref.Namespace, isLabel)
		}
	}
}

// updateVolume keeps a PersistentVolume's source; a secret for growing may be added.
func (c volumeChecker) updateVolume(pv, old *corev1.PersistentVolume) {
	p := field.NewPath("spec")
	c.volumeSpec(p, pv.Name, &pv.Spec)
	source := pv.Spec.PersistentVolumeSource.DeepCopy()
	if before := old.Spec.CSI; before != nil && before.ControllerExpandSecretRef == nil && source.CSI != nil {
		source.CSI.ControllerExpandSecretRef = nil
	}
	if !equality.Semantic.DeepEqual(source, &old.Spec.PersistentVolumeSource) {
		c.Forbid(p, "persistentvolumesource", true,
			"spec.persistentvolumesource is immutable after creation\n"+DifferenceOf(old.Spec.PersistentVolumeSource, *source))
	}
	c.Same(field.NewPath("volumeMode"), "", pv.Spec.VolumeMode, old.Spec.VolumeMode)
	if affinity := old.Spec.NodeAffinity; affinity != nil && !equality.Semantic.DeepEqual(pv.Spec.NodeAffinity, affinity) {
		c.Invalid(field.NewPath("nodeAffinity"), "", pv.Spec.NodeAffinity, "field is immutable, except for updating from beta label to GA")
	}
	class := old.Spec.VolumeAttributesClassName
	c.Forbid(p, "volumeAttributesClassName", class != nil && pv.Spec.VolumeAttributesClassName == nil, "update from non-nil value to nil is forbidden")
}

// mountOptions: the annotation of long ago is for few kinds of volumes; the field that has taken its place is for more.
func (c volumeChecker) mountOptions(pv *corev1.PersistentVolume) {
	const key = "volume.beta.kubernetes.io/mount-options"
	s := &pv.Spec.PersistentVolumeSource
	takes := s.GCEPersistentDisk != nil || s.AWSElasticBlockStore != nil || s.Glusterfs != nil || s.NFS != nil || s.RBD != nil || s.Quobyte != nil ||
		s.ISCSI != nil || s.Cinder != nil || s.CephFS != nil || s.AzureFile != nil || s.VsphereVolume != nil || s.AzureDisk != nil || s.PhotonPersistentDisk != nil
	_, set := pv.Annotations[key]
	c.Forbid(field.NewPath("metadata", "annotations", key), "", set && !takes, "may not specify mount options for this volume type")
}

// classMayMove says that an update gives a claim the class that it had by its annotation, or one where it had none. Else the annotation stays.
func (c volumeChecker) classMayMove(claim, old *corev1.PersistentVolumeClaim) bool {
	const key = corev1.BetaStorageClassAnnotation
	was, had := old.Annotations[key]
	is, has := claim.Annotations[key]
	class := claim.Spec.StorageClassName
	named := old.Spec.StorageClassName == nil && class != nil
	if named && had && *class == was && (!has || is == was) {
		return true
	}
	c.Same(field.NewPath("metadata", "annotations", key), "", is, was)
	return named && (!had || *class == was)
}

// updateClaim keeps a claim's spec but for its size and class once it is bound, and for the volume that it is bound to.
func (c volumeChecker) updateClaim(claim, old *corev1.PersistentVolumeClaim) {
	p := field.NewPath("spec")
	c.claimSpec(p, &claim.Spec)
	spec, before := claim.Spec.DeepCopy(), old.Spec
	if before.VolumeName == "" {
		before.VolumeName = spec.VolumeName
	}
	if c.classMayMove(claim, old) {
		spec.StorageClassName = nil
	}
	if claim.Status.Phase == corev1.ClaimBound {
		if spec.Resources.Requests != nil {
			spec.Resources.Requests[corev1.ResourceStorage] = old.Spec.Resources.Requests[corev1.ResourceStorage]
		}
		spec.VolumeAttributesClassName = old.Spec.VolumeAttributesClassName
	}
	if !equality.Semantic.DeepEqual(*spec, before) {
		c.Forbid(p, "", true,
			"spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims\n"+DifferenceOf(before, *spec))
	}
	size, was := claim.Spec.Resources.Requests[corev1.ResourceStorage], old.Spec.Resources.Requests[corev1.ResourceStorage]
	if size.Cmp(was) < 0 && size.Cmp(old.Status.Capacity[corev1.ResourceStorage]) <= 0 {
		c.Forbid(p, "resources.requests.storage", true, "field can not be less than status.capacity")
	}
	c.Same(field.NewPath("volumeMode"), "", claim.Spec.VolumeMode, old.Spec.VolumeMode)
	if class := claim.Spec.VolumeAttributesClassName; old.Status.CurrentVolumeAttributesClassName != nil {
		const set = " is forbidden when status.currentVolumeAttributesClassName is not nil"
		changed := !equality.Semantic.DeepEqual(class, old.Spec.VolumeAttributesClassName)
		c.Forbid(p, "volumeAttributesClassName", changed && class == nil, "update to nil"+set)
		c.Forbid(p, "volumeAttributesClassName", changed && class != nil && *class == "", "update to empty string"+set)
	}
}

// ---- the storage group ----

var (
	bindingModes    = []string{"Immediate", "WaitForFirstConsumer"}
	classPolicies   = []string{"Delete", "Retain"}
	fsGroupModes    = []string{"File", "None", "ReadWriteOnceWithFSType"}
	lifecycleModes  = []string{"Persistent", "Ephemeral"}
	parametersCount = 512
	parametersSize  = 256 << 10
)

func (c volumeChecker) storageClass(class, old *storagev1.StorageClass) {
	c.provisioner(field.NewPath("provisioner"), class.Provisioner)
	c.parameters(field.NewPath("parameters"), class.Parameters)
	if policy := class.ReclaimPolicy; policy != nil && *policy != "" {
		c.OneOf(field.NewPath("reclaimPolicy"), "", string(*policy), classPolicies)
	}
	oneOfRef(c.Checker, field.NewPath("volumeBindingMode"), "", class.VolumeBindingMode, bindingModes)
	seen := set{}
	for i, term := range class.AllowedTopologies {
		tp := field.NewPath("allowedTopologies").Index(i)
		c.topologyTerm(tp, &term)
		for range class.AllowedTopologies { // to Kubernetes an empty term is like each of those not looked at yet
			if len(term.MatchLabelExpressions) == 0 && len(c.Errs) <= apierror.MaxErrors {
				c.Add(field.Duplicate(tp.Child("matchLabelExpressions"), ""))
			}
		}
		text := fmt.Sprintf("%q", term.MatchLabelExpressions)
		if seen[text] {
			c.Add(field.Duplicate(tp.Child("matchLabelExpressions"), ""))
		}
		seen[text] = true
	}
	if old != nil {
		c.Same(field.NewPath("parameters"), "", class.Parameters, old.Parameters)
		c.Same(field.NewPath("provisioner"), "", class.Provisioner, old.Provisioner)
		c.Same(field.NewPath("reclaimPolicy"), "", class.ReclaimPolicy, old.ReclaimPolicy)
		c.Same(field.NewPath("volumeBindingMode"), "", class.VolumeBindingMode, old.VolumeBindingMode)
	}
}

func (c volumeChecker) topologyTerm(p *field.Path, term *corev1.TopologySelectorTerm) {
	keys := set{}
	for i, requirement := range term.MatchLabelExpressions {
		rp, values := p.Child("matchLabelExpressions").Index(i), set{}
		c.Need(rp, "values", len(requirement.Values) > 0, "")
		for j, value := range requirement.Values {
			c.unique(rp.Child("values").Index(j), "", values, value)
		}
		c.labelName(rp, "key", requirement.Key)
		c.unique(rp, "key", keys, requirement.Key)
	}
}

func (c volumeChecker) provisioner(p *field.Path, name string) {
	c.Name(p, "", strings.ToLower(name), isQualifiedName)
}

func (c volumeChecker) parameters(p *field.Path, parameters map[string]string) {
	if len(parameters) > parametersCount {
		c.Add(field.TooLong(p, "", parametersCount))
		return
	}
	size := 0
	for key, value := range parameters {
		if key == "" {
			c.Invalid(p, "", key, "field can not be empty.")
		}
		size += len(key) + len(value)
	}
	if size > parametersSize {
		c.Add(field.TooLong(p, "", parametersSize))
	}
}

func (c volumeChecker) attributesClass(class, old *storagev1.VolumeAttributesClass) {
	if old != nil {
		c.Forbid(field.NewPath("driverName"), "", class.DriverName != old.DriverName, "updates to driverName are forbidden.")
		c.Forbid(field.NewPath("parameters"), "", !equality.Semantic.DeepEqual(class.Parameters, old.Parameters), "updates to parameters are forbidden.")
	}
	c.provisioner(field.NewPath("driverName"), class.DriverName)
	c.parameters(field.NewPath("parameters"), class.Parameters)
	c.Need(field.NewPath("parameters"), "", len(class.Parameters) > 0, "must contain at least one key/value pair")
}

func (c volumeChecker) csiDriver(driver, old *storagev1.CSIDriver) {
	p, spec := field.NewPath("spec"), &driver.Spec
	oneOfRef(c.Checker, p, "fsGroupPolicy", spec.FSGroupPolicy, fsGroupModes)
	audiences := set{}
	for i, request := range spec.TokenRequests {
		rp := p.Child("tokenRequests").Index(i)
		if audiences[request.Audience] {
			c.unique(rp, "audience", audiences, request.Audience)
			continue
		}
		audiences[request.Audience] = true
		if seconds := request.ExpirationSeconds; seconds != nil && *seconds < 600 {
			c.Invalid(rp, "expirationSeconds", *seconds, "may not specify a duration less than 10 minutes")
		} else if seconds != nil && *seconds > 1<<32 {
			c.Invalid(rp, "expirationSeconds", *seconds, "may not specify a duration larger than 2^32 seconds")
		}
	}
	for _, mode := range spec.VolumeLifecycleModes {
		c.OneOf(p, "volumeLifecycleModes", string(mode), lifecycleModes)
	}
	if period := spec.NodeAllocatableUpdatePeriodSeconds; period != nil && *period < 10 {
		c.Invalid(p, "nodeAllocatableUpdatePeriodSeconds", *period, "must be greater than or equal to 10 seconds")
	}
	if inSecrets := spec.ServiceAccountTokenInSecrets; inSecrets != nil && len(spec.TokenRequests) == 0 {
		c.Invalid(p, "serviceAccountTokenInSecrets", *inSecrets, "serviceAccountTokenInSecrets is set but no tokenRequests are specified")
	}
	if old != nil {
		c.Same(p, "attachedRequired", spec.AttachRequired, old.Spec.AttachRequired)
		c.Same(p, "volumeLifecycleModes", spec.VolumeLifecycleModes, old.Spec.VolumeLifecycleModes)
	}
}

func (c volumeChecker) csiNode(node, old *storagev1.CSINode) {
	p, names := field.NewPath("spec", "drivers"), set{}
	for i := range node.Spec.Drivers {
		driver, dp := &node.Spec.Drivers[i], p.Index(i)
		c.driverName(dp, "name", driver.Name)
		c.Filled(dp, "nodeID", driver.NodeID)
		if len(driver.NodeID) > 256 {
			c.Invalid(dp, "nodeID", driver.NodeID, "must be 256 characters or less")
		}
		if driver.Allocatable != nil {
			nonNegativeRef(c.Checker, dp, "allocatable.count", driver.Allocatable.Count)
		}
		c.unique(dp, "name", names, driver.Name)
		keys := set{}
		for _, key := range driver.TopologyKeys {
			c.Need(dp, "", key != "", key)
			c.unique(dp, "", keys, key)
			c.Words(dp, "", key, isQualifiedName)
		}
	}
	if old == nil {
		return
	}
	installed := map[string]storagev1.CSINodeDriver{}
	for _, driver := range old.Spec.Drivers {
		driver.Allocatable = nil
		installed[driver.Name] = driver
	}
	for _, driver := range node.Spec.Drivers {
		driver.Allocatable = nil
		if before, ok := installed[driver.Name]; ok {
			c.Same(p, "", driver, before)
		}
	}
}

func (c volumeChecker) attachment(attachment, old *storagev1.VolumeAttachment) {
	p, spec := field.NewPath("spec"), &attachment.Spec
	c.driverName(p, "attacher", spec.Attacher)
	const exactlyOne = "must specify exactly one of inlineVolumeSpec and persistentVolumeName"
	switch inline, name := spec.Source.InlineVolumeSpec, spec.Source.PersistentVolumeName; {
	case inline == nil && name == nil:
		c.Required(p, "source", exactlyOne)
	case inline != nil && name != nil:
		c.Forbid(p, "source", true, exactlyOne)
	case inline != nil:
		c.inlineSpec(p.Child("source", "inlineVolumeSpec"), inline)
	case *name == "":
		c.Required(p, "source.persistentVolumeName", "must specify non empty persistentVolumeName")
	}
	c.Words(p, "nodeName", spec.NodeName, isSubdomain)
	c.maybeRef(p, "source.persistentVolumeName", spec.Source.PersistentVolumeName, isSubdomain)
	if old != nil && !equality.Semantic.DeepEqual(spec, &old.Spec) {
		c.Invalid(p, "", *spec, metavalidation.FieldImmutableErrorMsg)
	}
}

func (c volumeChecker) storageCapacity(capacity, old *storagev1.CSIStorageCapacity) {
	c.selector(field.NewPath("nodeTopology"), "", capacity.NodeTopology)
	c.Words(field.NewPath("storageClassName"), "", capacity.StorageClassName, isSubdomain)
	if size := capacity.Capacity; size != nil && size.Sign() < 0 {
		c.Invalid(field.NewPath("capacity"), "", size.String(), "must be greater than or equal to 0")
	}
	if old != nil {
		c.Same(field.NewPath("nodeTopology"), "", capacity.NodeTopology, old.NodeTopology)
		c.Same(field.NewPath("storageClassName"), "", capacity.StorageClassName, old.StorageClassName)
	}
}
