//go:build !noetcd

package etcd

// This file opens etcd's watch as a stream of gRPC's. The client's library has one, which hands each message through four goroutines: for its
// many watches on one stream, and to take it up again at once when the stream breaks. Here is one watch, and who follows takes it up again
// anyway, at the replica's revision. A lone write is followed in half the time so.

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

const takenMessages = 256 // of the watch wait for the replica; behind them etcd keeps what comes

// A watchStream is a watch that is open.
type watchStream struct {
	stream  pb.Watch_WatchClient
	cancel  context.CancelFunc
	arrived chan *pb.WatchResponse // closed at the end
	err     error                  // why it has ended; there when arrived is closed
	begun   atomic.Bool            // something has come
}

// openWatch watches everything below the prefix, from a revision on. The caller closes it.
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

// receive lets messages gather while the replica is busy with those before. etcd sends each write by itself; a busy replica takes over many
// in one transaction, an idle one each at once.
func (w *watchStream) receive(ctx context.Context) {
	defer close(w.arrived)
	for {
		news, err := w.stream.Recv()
		if err != nil {
			w.err = broken{rpctypes.Error(err)}
			return
		}
		w.begun.Store(true)
		select {
		case w.arrived <- news:
		case <-ctx.Done():
			w.err = ctx.Err()
			return
		}
	}
}

// askProgress has etcd say how far the watch is. One goroutine calls it; when the watch has ended, it does nothing.
func (w *watchStream) askProgress() {
	_ = w.stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{ProgressRequest: &pb.WatchProgressRequest{}}})
}

func (w *watchStream) close() { w.cancel() }

// broken is the error of a stream that has ended, mostly with its connection: another one may be there at once.
type broken struct{ error }

func (b broken) Unwrap() error { return b.error }

// mayResume tells whether to open the watch again without a word. That a member has no leader is worth one.
func mayResume(err error) bool {
	var b broken
	return errors.As(err, &b) && !errors.Is(err, rpctypes.ErrNoLeader)
}

// refusal is what a message of the watch says instead of news; nil if it does not.
func refusal(news *pb.WatchResponse) error {
	switch {
	case news.Header == nil:
		return broken{errors.New("etcd's watch has told something without a revision")}
	case news.CompactRevision != 0:
		return rpctypes.ErrCompacted
	case news.Canceled && news.CancelReason != "":
		return errors.New(news.CancelReason)
	case news.Canceled:
		return rpctypes.ErrFutureRev
	}
	return nil
}

// isProgress tells whether a message says that everything up to its revision has been told.
func isProgress(news *pb.WatchResponse) bool {
	return len(news.Events) == 0 && !news.Created
}
