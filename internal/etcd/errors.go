//go:build !noetcd

package etcd

// This file converts errors of etcd, or of the connection to it, to errors of the API.

import (
	"context"
	"errors"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

var errOtherHistory = errors.New("etcd's history differs from the replica's")

// failed converts an error of etcd to the error for the client. Errors returned by etcd itself are
// mapped to code 500, just like in kube-apiserver.
func failed(err error) error {
	var etcdErr rpctypes.EtcdError
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return apierrors.NewTimeoutError("etcd did not answer in time", 0)
	case errors.Is(err, context.Canceled), errors.Is(err, errOtherHistory):
		return err
	case errors.As(err, &etcdErr) && errors.Is(etcdErr, rpctypes.ErrTimeout):
		return apierrors.NewTimeoutError(etcdErr.Error(), 0)
	}
	return apierrors.NewInternalError(err)
}
