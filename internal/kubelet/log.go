package kubelet

// This file serves GET pods/log.

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"apilet/internal/apierror"
	"apilet/internal/kinds/validation"
	"apilet/internal/request"
	"apilet/internal/response"
)

// maxRefusal is the maximum number of bytes of a kubelet's error that are returned to the client.
const maxRefusal = 50_000

// serveLog streams the log of a container. If the client follows the log, the response lasts until
// the client or the kubelet closes it.
func (c *Connector) serveLog(w http.ResponseWriter, r *http.Request, rec *request.Request) error {
	options, err := validation.PodLogOptions(rec.Info.Name, r.URL.Query())
	if err != nil {
		return err
	}
	to, err := c.ofLog(rec.Info.Namespace, rec.Info.Name, options)
	switch {
	case err != nil:
		return withoutReason(err)
	case to == nil:
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	out, ctx, done, err := c.Forward.Stream(w, r, rec.User)
	if err != nil {
		return err
	}
	defer done()
	ask, err := http.NewRequestWithContext(ctx, http.MethodGet, to.url.String(), nil)
	if err != nil {
		return withoutReason(err)
	}
	client := http.Client{Transport: to.plain, CheckRedirect: func(*http.Request, []*http.Request) error { return errRedirect }}
	answer, err := client.Do(ask)
	if err != nil {
		return withoutReason(err)
	}
	defer answer.Body.Close()
	if err := refusal(answer, rec.Info.Name); err != nil {
		return err
	}
	if wsstream.IsWebSocketRequest(r) {
		// The buffer is needed because wsstream ignores bytes that are returned together
		// with io.EOF.
		body := bufio.NewReader(answer.Body)
		// errors cannot be reported because the client is gone
		_ = wsstream.NewReader(body, true, wsstream.NewDefaultReaderProtocols()).Copy(out, r)
		return nil
	}
	out.Header().Set("Content-Type", "text/plain")
	out.WriteHeader(http.StatusOK)
	// the client sees immediately that the log was found
	_ = http.NewResponseController(out).Flush()
	if !options.Follow {
		out = w // w does not flush each part
	}
	if _, err := io.Copy(out, answer.Body); err != nil && ctx.Err() == nil {
		// the client must not mistake a partial log for a complete one
		return response.ErrAborted
	}
	return nil
}

var errRedirect = errors.New("redirects forbidden")

// refusal returns the error for an unsuccessful response of a kubelet, with kube-apiserver's text.
func refusal(answer *http.Response, pod string) error {
	code := answer.StatusCode
	if code >= http.StatusOK && code <= http.StatusPartialContent {
		return nil
	}
	// the body is the connection, which may never end
	if code == http.StatusSwitchingProtocols {
		return apierror.InternalWithoutReason("the kubelet answered a request for a log with status 101")
	}
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxRefusal))
	switch {
	case err != nil:
		return apierrors.NewInternalError(err)
	case code == http.StatusInternalServerError:
		return apierrors.NewInternalError(fmt.Errorf("%s", text))
	case code == http.StatusBadRequest:
		return apierrors.NewBadRequest(string(text))
	}
	return apierrors.NewGenericServerResponse(apierror.UpstreamCode(code), "", schema.GroupResource{Resource: "pods/log"}, pod, string(text), 0, false)
}
