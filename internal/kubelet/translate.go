package kubelet

// This file translates the newest WebSocket protocols for kubelets before 1.36, which only support
// the same streams over SPDY. If a kubelet declares support in the status of its Node, WebSockets
// are proxied unchanged.
//
//	the client's WebSocket                      the kubelet's SPDY
//	v5.channel.k8s.io (exec, attach)            a stream for each channel: error, stdin, stdout, stderr, resize
//	SPDY/3.1+portforward.k8s.io (portforward)   the bytes of the binary messages

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"golang.org/x/net/websocket"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"apilet/internal/request"
)

const (
	// in the declared features of a Node
	knowsWebSockets = "ExtendWebSocketsToKubelet"
	// prefix of the protocol of a tunnel
	tunnelPrefix = "SPDY/3.1+"
	portForward  = "portforward.k8s.io"
	// interval of pings to the kubelet
	pings = 5 * time.Second
	// maximum size in bytes of the status of a command
	maxStatus = 64 << 10
)

// isTranslated reports whether the request uses one of the protocols that this file translates.
func isTranslated(r *http.Request, options runtime.Object) bool {
	if _, forward := options.(*corev1.PodPortForwardOptions); forward {
		return wsstream.IsWebSocketRequestWithTunnelingProtocol(r)
	}
	return wsstream.IsWebSocketRequestWithStreamCloseProtocol(r)
}

// translate connects a WebSocket with the SPDY streams of a kubelet.
func (c *Connector) translate(w http.ResponseWriter, r *http.Request, user request.User, to *location, options runtime.Object) error {
	out, ctx, done, err := c.Forward.Stream(w, r, user)
	if err != nil {
		return err
	}
	defer done()
	switch o := options.(type) {
	case *corev1.PodPortForwardOptions:
		return to.tunnel(ctx, out, r)
	case *corev1.PodExecOptions:
		return to.run(ctx, out, r, channels{o.Stdin, o.Stdout, o.Stderr, o.TTY})
	case *corev1.PodAttachOptions:
		return to.run(ctx, out, r, channels{o.Stdin, o.Stdout, o.Stderr, o.TTY})
	}
	return fmt.Errorf("%T has no streams", options)
}

// dialSPDY opens an upgraded connection to the kubelet. It is closed when ctx ends.
func (to *location) dialSPDY(ctx context.Context, protocol string) (net.Conn, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, to.url.String(), nil)
	if err != nil {
		return nil, err
	}
	r.Header = http.Header{"Connection": {"Upgrade"}, "Upgrade": {"SPDY/3.1"}, httpstream.HeaderProtocolVersion: {protocol}}
	answer, err := to.stream.RoundTrip(r)
	if err != nil {
		return nil, fmt.Errorf("error dialing backend: %w", err)
	}
	if answer.StatusCode == http.StatusSwitchingProtocols {
		return &spdyConn{ReadWriteCloser: answer.Body.(io.ReadWriteCloser)}, nil
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(answer.Body, maxRefusal)) // as much as could be read
	return nil, fmt.Errorf("unable to upgrade connection: %s", text)
}

// spdyConn turns the body of a 101 response into a net.Conn. Its addresses are empty, since
// spdystream does not use them.
type spdyConn struct {
	io.ReadWriteCloser
	net.Conn
}

func (c *spdyConn) Read(p []byte) (int, error)  { return c.ReadWriteCloser.Read(p) }
func (c *spdyConn) Write(p []byte) (int, error) { return c.ReadWriteCloser.Write(p) }
func (c *spdyConn) Close() error                { return c.ReadWriteCloser.Close() }
func (c *spdyConn) LocalAddr() net.Addr         { return &net.TCPAddr{} }
func (c *spdyConn) RemoteAddr() net.Addr        { return &net.TCPAddr{} }

// tunnel copies the bytes of a port-forwarding connection between the client's WebSocket messages
// and the kubelet.
func (to *location) tunnel(ctx context.Context, w http.ResponseWriter, r *http.Request) error {
	conn, err := to.dialSPDY(ctx, portForward)
	if err != nil {
		return withoutReason(err)
	}
	defer conn.Close()
	server := websocket.Server{
		Handshake: func(config *websocket.Config, _ *http.Request) error {
			config.Protocol = []string{tunnelPrefix + portForward}
			return nil
		},
		Handler: func(ws *websocket.Conn) {
			ws.PayloadType = websocket.BinaryFrame
			stop := context.AfterFunc(ctx, func() { ws.Close() })
			defer stop()
			go func() {
				_, _ = io.Copy(conn, ws) // the other copy reports the end
				conn.Close()
			}()
			_, _ = io.Copy(ws, conn)
		}}
	server.ServeHTTP(w, r)
	return nil
}

// channels records which streams the client requested.
type channels struct{ stdin, stdout, stderr, tty bool }

// query returns the parameters that request these streams from a kubelet.
func (of channels) query() url.Values {
	query := url.Values{}
	for name, wanted := range map[string]bool{corev1.ExecStdinParam: of.stdin, corev1.ExecStdoutParam: of.stdout, corev1.ExecStderrParam: of.stderr, corev1.ExecTTYParam: of.tty} {
		if wanted {
			query.Set(name, "1")
		}
	}
	return query
}

// open completes the client's handshake. It returns one channel for each kind of stream.
func (of channels) open(w http.ResponseWriter, r *http.Request) (*wsstream.Conn, []io.ReadWriteCloser, error) {
	kinds := []wsstream.ChannelType{remotecommand.StreamErr: wsstream.WriteChannel, remotecommand.StreamResize: wsstream.ReadChannel}
	if of.stdin {
		kinds[remotecommand.StreamStdIn] = wsstream.ReadChannel
	}
	if of.stdout {
		kinds[remotecommand.StreamStdOut] = wsstream.WriteChannel
	}
	if of.stderr {
		kinds[remotecommand.StreamStdErr] = wsstream.WriteChannel
	}
	conn := wsstream.NewConn(map[string]wsstream.ChannelProtocolConfig{remotecommand.StreamProtocolV5Name: {Binary: true, Channels: kinds}})
	_, channels, err := conn.Open(w, r)
	return conn, channels, err
}

// run copies data between the client and the command until the command ends.
func (to *location) run(ctx context.Context, w http.ResponseWriter, r *http.Request, of channels) error {
	client, channels, err := of.open(w, r)
	if err != nil {
		return nil // the client has already received a response
	}
	defer client.Close()
	stop := context.AfterFunc(ctx, func() { client.Close() })
	defer stop()
	first := remotecommand.StreamErr
	if of.stderr {
		first = remotecommand.StreamStdErr
	}
	if of.stdout {
		first = remotecommand.StreamStdOut
	}
	// Clients wait for this message. If it fails, the following writes fail as well.
	_, _ = channels[first].Write(nil)
	status, err := to.copyStreams(ctx, channels, of)
	if err != nil {
		failed := apierrors.NewInternalError(err).Status()
		status, _ = json.Marshal(&failed)
	}
	client.SetWriteDeadline(10 * time.Second)
	_, _ = channels[remotecommand.StreamErr].Write(status) // the client may be gone
	return nil
}

// copyStreams copies the streams and returns the exit status of the command.
func (to *location) copyStreams(ctx context.Context, channels []io.ReadWriteCloser, of channels) (status []byte, err error) {
	conn, err := to.dialSPDY(ctx, remotecommand.StreamProtocolV4Name)
	if err != nil {
		return nil, err
	}
	streams, err := spdy.NewClientConnectionWithPings(conn, pings)
	if err != nil {
		return nil, err
	}
	defer streams.Close()
	stop := context.AfterFunc(ctx, func() { streams.Close() })
	defer stop()
	create := func(kind string) httpstream.Stream {
		if err != nil {
			return nil
		}
		var stream httpstream.Stream
		stream, err = streams.CreateStream(http.Header{corev1.StreamType: {kind}})
		return stream
	}
	failure := create(corev1.StreamTypeError)
	var output sync.WaitGroup
	from := func(kind string, channel int) {
		if stream := create(kind); stream != nil {
			// an error ends the command's connection
			output.Go(func() { _, _ = io.Copy(channels[channel], stream) })
		}
	}
	into := func(kind string, channel int) {
		if stream := create(kind); stream != nil {
			go func() {
				_, _ = io.Copy(stream, channels[channel])
				stream.Close()
			}()
		}
	}
	if of.stdin {
		into(corev1.StreamTypeStdin, remotecommand.StreamStdIn)
	}
	if of.stdout {
		from(corev1.StreamTypeStdout, remotecommand.StreamStdOut)
	}
	if of.stderr && !of.tty {
		from(corev1.StreamTypeStderr, remotecommand.StreamStdErr)
	}
	if of.tty {
		into(corev1.StreamTypeResize, remotecommand.StreamResize)
	}
	if err != nil {
		return nil, err
	}
	if status, err = io.ReadAll(io.LimitReader(failure, maxStatus)); err != nil {
		return nil, err
	}
	output.Wait()
	if len(status) == 0 {
		if ctx.Err() != nil {
			return nil, errors.New("the connection was closed")
		}
		status, err = json.Marshal(&metav1.Status{Status: metav1.StatusSuccess})
	}
	return status, err
}
