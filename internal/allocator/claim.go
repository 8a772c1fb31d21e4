package allocator

// This file implements claims. A claim reserves an address or a node port for a Service before the
// Service is written, for all servers on one store.
//
//	address     an IPAddress object whose name is the address; the server that creates it has the address
//	node port   a bit in the range of all node ports; the server that sets it has the port. It is only used if
//	            several servers share the store (Shared)
//
// Both use the same format as kube-apiserver, so that it can use the same store. A claim is written
// before its Service, and released if the write of the Service fails or when a later write no
// longer needs it. After a crash between the two writes, the repair corrects the claims
// (repair.go).

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/tidwall/gjson"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"

	"apilet/internal/scheme"
	"apilet/internal/store"
)

const (
	addressRange = "/networking.k8s.io/ipaddresses/"
	portRange    = "//rangeallocations//servicenodeports" // a key in the store, not a served resource
	allocatedBy  = "ipallocator.k8s.io"
	rangeRounds  = 64 // maximum number of attempts to change the range of node ports

	// claimedFields are the managedFields of an IPAddress.
	claimedFields = `{"f:metadata":{"f:labels":{".":{},"f:ipaddress.kubernetes.io/ip-family":{},"f:ipaddress.kubernetes.io/managed-by":{}}},` +
		`"f:spec":{"f:parentRef":{".":{},"f:name":{},"f:namespace":{},"f:resource":{}}}}`
)

// ErrAlreadyClaimed is returned if the value has been claimed by another server.
var ErrAlreadyClaimed = errors.New("another server has given it out")

var addressType = scheme.GroupVersion(networkingv1.GroupName, "v1", scheme.Row[networkingv1.IPAddress](0, "ipaddresses", ""))[0]
var portsType = scheme.GroupVersion("", "v1", scheme.Row[corev1.RangeAllocation](0, "rangeallocations", ""))[0]

// ---- Addresses

// A claim is a stored IPAddress.
type claim struct {
	owner   string // the key of the Service; "" if the IPAddress belongs to another object
	managed bool   // created by an allocator, so that the repair may delete it
	created time.Time
}

// claimOf parses an IPAddress.
func claimOf(json []byte) (c claim) {
	parent := gjson.GetBytes(json, "spec.parentRef")
	if parent.Get("group").String() == "" && parent.Get("resource").String() == "services" {
		c.owner = serviceRange + parent.Get("namespace").String() + "/" + parent.Get("name").String()
	}
	meta := gjson.GetBytes(json, "metadata")
	c.managed = meta.Get(`labels.ipaddress\.kubernetes\.io/managed-by`).String() == allocatedBy
	c.created, _ = time.Parse(time.RFC3339, meta.Get("creationTimestamp").String())
	return c
}

// claimAddress creates an IPAddress for a Service. It returns ErrAlreadyClaimed if it exists.
func (a *Allocator) claimAddress(ctx context.Context, address, service string) error {
	addr, err := netip.ParseAddr(address)
	if err != nil {
		return err
	}
	_, namespace, name, _ := scheme.SplitKey(service)
	family := corev1.IPv4Protocol
	if addr.Is6() {
		family = corev1.IPv6Protocol
	}
	now := metav1.Now().Rfc3339Copy()
	obj := &networkingv1.IPAddress{ObjectMeta: metav1.ObjectMeta{Name: addr.String(), UID: uuid.NewUUID(), CreationTimestamp: now,
		Labels: map[string]string{networkingv1.LabelIPAddressFamily: string(family), networkingv1.LabelManagedBy: allocatedBy}}}
	obj.Spec.ParentRef = &networkingv1.ParentReference{Resource: "services", Namespace: namespace, Name: name}
	if a.Manager != "" {
		obj.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: a.Manager, Operation: metav1.ManagedFieldsOperationUpdate, Time: &now,
			APIVersion: addressType.APIVersion(), FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(claimedFields)}}
	}
	json, revAt, err := addressType.EncodeStored(obj)
	if err != nil {
		return err
	}
	key := addressType.Key("", obj.Name)
	_, err = a.st.Commit(ctx, store.Change{Op: store.OpCreate, Key: key, JSON: json, RevAt: revAt})
	if errors.Is(err, store.ErrExists) {
		if _, found := a.st.Get(key); errors.Is(found, store.ErrDamaged) { // the owner of a damaged IPAddress is unknown
			_, err = a.st.Commit(ctx, store.Change{Op: store.OpUpdate, Key: key, JSON: json, RevAt: revAt, Damaged: true})
		}
	}
	if errors.Is(err, store.ErrExists) || errors.Is(err, store.ErrDeleting) || errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrNotFound) {
		return ErrAlreadyClaimed
	}
	return err
}

// freeAddress deletes the IPAddress of a Service. If the IPAddress has another owner or has
// changed, it does nothing.
func (a *Allocator) freeAddress(ctx context.Context, address, service string) error {
	rec, err := a.st.Get(addressType.Key("", address))
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil || claimOf(rec.JSON).owner != service {
		return err
	}
	json, revAt := scheme.WithoutRevision(rec.JSON)
	_, err = a.st.Commit(ctx, store.Change{Op: store.OpDelete, Key: rec.Key, Expect: rec.Rev, JSON: json, RevAt: revAt})
	if errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrConflict) {
		return nil
	}
	return err
}

// ---- Node ports

// ports are the bits of the range of node ports. Bit 0 is the first port.
type ports struct {
	bits *big.Int
	rev  int64 // revision of the record; 0 if it does not exist
}

// readPorts reads the range from this server's store.
func (a *Allocator) readPorts() (ports, error) {
	rec, err := a.st.Get(portRange)
	if errors.Is(err, store.ErrNotFound) {
		return ports{bits: new(big.Int)}, nil
	}
	if err != nil {
		return ports{}, err
	}
	obj, err := portsType.DecodeStored(rec.JSON)
	if err != nil {
		return ports{}, err
	}
	r := obj.(*corev1.RangeAllocation)
	if r.Range != nodePorts {
		return ports{}, fmt.Errorf("the range of node ports in use is %q, and this server's is %s", r.Range, nodePorts)
	}
	return ports{new(big.Int).SetBytes(r.Data), rec.Rev}, nil
}

// has reports whether a port is claimed.
func (p ports) has(port int32) bool {
	return p.bits != nil && inNodePorts(port) && p.bits.Bit(int(port-firstNodePort)) == 1
}

// changePorts changes the range, and retries after conflicts. change reports whether it has changed
// the bits.
func (a *Allocator) changePorts(ctx context.Context, change func(bits *big.Int) (bool, error)) error {
	a.portLock.Lock()
	defer a.portLock.Unlock()
	for range rangeRounds {
		p, err := a.readPorts()
		if err != nil {
			return err
		}
		if changed, err := change(p.bits); err != nil || !changed && p.rev != 0 {
			return err
		}
		json, revAt, err := portsType.EncodeStored(&corev1.RangeAllocation{Range: nodePorts, Data: p.bits.Bytes()})
		if err != nil {
			return err
		}
		c := store.Change{Op: store.OpUpdate, Key: portRange, Expect: p.rev, JSON: json, RevAt: revAt}
		if p.rev == 0 {
			c.Op = store.OpCreate
		}
		_, err = a.st.Commit(ctx, c)
		if !errors.Is(err, store.ErrConflict) && !errors.Is(err, store.ErrExists) && !errors.Is(err, store.ErrNotFound) {
			return err
		}
	}
	return apierrors.NewServerTimeout(corev1.Resource("services"), "allocate node ports for", 0)
}

// claimPorts sets the bits of ports. It returns ErrAlreadyClaimed if one is already set.
func (a *Allocator) claimPorts(ctx context.Context, wanted []int32) error {
	if !a.Shared || len(wanted) == 0 {
		return nil
	}
	return a.changePorts(ctx, func(bits *big.Int) (bool, error) {
		for _, port := range wanted {
			if bits.Bit(int(port-firstNodePort)) == 1 {
				return false, ErrAlreadyClaimed
			}
		}
		for _, port := range wanted {
			bits.SetBit(bits, int(port-firstNodePort), 1)
		}
		return true, nil
	})
}

func (a *Allocator) freePorts(ctx context.Context, unused []int32) error {
	if !a.Shared || len(unused) == 0 {
		return nil
	}
	return a.changePorts(ctx, func(bits *big.Int) (changed bool, err error) {
		for _, port := range unused {
			changed = changed || bits.Bit(int(port-firstNodePort)) == 1
			bits.SetBit(bits, int(port-firstNodePort), 0)
		}
		return changed, nil
	})
}

// ---- Releasing claims

// ReleaseUnused must be called after a write of a Service. It releases the values that are no
// longer used. before and after contain the stored JSON. If the Service was deleted, after is nil.
// Failures are left to the repair, because the write has already happened.
func (a *Allocator) ReleaseUnused(ctx context.Context, key string, before, after []byte) {
	if !strings.HasPrefix(key, serviceRange) {
		return
	}
	kept := map[string]bool{}
	eachValue(after, func(text string) { kept[text] = true })
	var lost []string
	eachValue(before, func(text string) {
		if !kept[text] {
			kept[text] = true
			lost = append(lost, text)
		}
	})
	a.releaseClaims(ctx, key, lost)
}

// releaseClaims releases the claims of a Service, except for values that a stored Service has or
// that are assigned to a request.
func (a *Allocator) releaseClaims(ctx context.Context, service string, texts []string) {
	if len(texts) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	var addresses []string
	var unused []int32
	a.mu.Lock()
	err := a.catchUp()
	for _, text := range texts {
		if err != nil || a.taken[text] != "" || a.pending[text] {
			continue
		}
		if port, notPort := strconv.Atoi(text); notPort != nil {
			addresses = append(addresses, text)
		} else if inNodePorts(int32(port)) {
			unused = append(unused, int32(port))
		}
	}
	a.mu.Unlock()
	for _, address := range addresses {
		err = errors.Join(err, a.freeAddress(ctx, address, service))
	}
	if err = errors.Join(err, a.freePorts(ctx, unused)); err != nil && a.Report != nil {
		a.Report(fmt.Errorf("giving back what %s had: %w", service, err))
	}
}

// inDoubt reports whether a write that returned err may have happened or may still happen.
func inDoubt(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || apierrors.IsTimeout(err) || apierrors.IsInternalError(err)
}
