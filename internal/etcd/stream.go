//go:build !noetcd

package etcd

// This file opens etcd's watch directly as a gRPC stream. The watch of the etcd client passes each
// message through four goroutines, because it supports multiple watches per stream and resumes them
// automatically. This is not needed here, since there is only one watch, and follow.go already
// resumes it from the revision of the replica. This halves the latency of a single write.

import (
	"context"
	"errors"
	"math"
	"sync/atomic"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

const takenMessages = 256 // maximum number of messages waiting for the replica; further ones wait in etcd

// A watchStream is an open watch.
type watchStream struct {
	stream   pb.Watch_WatchClient
	cancel   context.CancelFunc
	arrived  chan *pb.WatchResponse // closed at the end of the stream
	err      error                  // the reason for the end of the stream, set before arrived is closed
	received atomic.Bool            // a message has arrived
}

// openWatch watches all keys below the prefix, starting at revision from. The caller must close the
// stream.
func (c *Cluster) openWatch(ctx context.Context, from int64) (*watchStream, error) {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	stream, err := pb.NewWatchClient(c.client.ActiveConnection()).Watch(ctx, grpc.MaxCallRecvMsgSize(math.MaxInt32))
	if err == nil {
		prefix := c.lay.Prefix()
		err = stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: &pb.WatchCreateRequest{
			Key: []byte(prefix), RangeEnd: []byte(clientv3.GetPrefixRangeEnd(prefix)), StartRevision: from, ProgressNotify: true}}})
	}
	if err != nil {
		cancel()
		return nil, broken{rpctypes.Error(err)}
	}
	w := &watchStream{stream: stream, cancel: cancel, arrived: make(chan *pb.WatchResponse, takenMessages)}
	go w.receive(ctx)
	return w, nil
}

// receive queues messages while the replica is still processing previous ones. etcd sends a
// separate message for each write. If the replica is busy, multiple messages are written in one
// transaction. Otherwise each message is written immediately.
func (w *watchStream) receive(ctx context.Context) {
	defer close(w.arrived)
	for {
		news, err := w.stream.Recv()
		if err != nil {
			w.err = broken{rpctypes.Error(err)}
			return
		}
		w.received.Store(true)
		select {
		case w.arrived <- news:
		case <-ctx.Done():
			w.err = ctx.Err()
			return
		}
	}
}

// askProgress requests a progress message. Only one goroutine may call it. It does nothing if the
// stream has already ended.
func (w *watchStream) askProgress() {
	_ = w.stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{ProgressRequest: &pb.WatchProgressRequest{}}})
}

func (w *watchStream) close() { w.cancel() }

// broken is returned when the stream has ended, usually because the connection was lost. A new
// stream may be available immediately.
type broken struct{ error }

func (b broken) Unwrap() error { return b.error }

// mayResume reports whether the watch can be reopened without logging the error. A member without a
// leader is worth logging.
func mayResume(err error) bool {
	var b broken
	return errors.As(err, &b) && !errors.Is(err, rpctypes.ErrNoLeader)
}

// refusal returns the error that a message contains instead of events, or nil.
func refusal(news *pb.WatchResponse) error {
	switch {
	case news.Header == nil:
		return broken{errors.New("etcd's watch has sent a response without a revision")}
	case news.CompactRevision != 0:
		return rpctypes.ErrCompacted
	case news.Canceled && news.CancelReason != "":
		return errors.New(news.CancelReason)
	case news.Canceled:
		return rpctypes.ErrFutureRev
	}
	return nil
}

// isProgress reports whether a message confirms that all events up to its revision have been sent.
func isProgress(news *pb.WatchResponse) bool {
	return len(news.Events) == 0 && !news.Created
}
