package options

// This file defines the flags for aggregated API servers, to which this server forwards requests,
// and for authenticating proxies, which forward requests to this server. Both use the same headers.
// The --requestheader- flags configure the server that receives a request.

import (
	"errors"
	"flag"
	"fmt"
	"strings"

	"apilet/internal/commandline"
)

// Aggregation contains the flags for requests to aggregated API servers.
type Aggregation struct {
	// The flags --proxy-client-cert-file and --proxy-client-key-file. If they are "", the server
	// creates a certificate.
	ProxyCert, ProxyKey string
	RejectRedirects     bool // --aggregator-reject-forwarding-redirect
	Routing             bool // --enable-aggregator-routing; this server always connects to endpoints
}

func (o *Options) defineAggregation(f *flag.FlagSet) {
	f.StringVar(&o.Aggregation.ProxyCert, "proxy-client-cert-file", "", "PEM `file` with the client certificate for aggregated API servers (default: a generated one in --cert-dir)")
	f.StringVar(&o.Aggregation.ProxyKey, "proxy-client-key-file", "", "PEM `file` with the key of --proxy-client-cert-file")
	f.BoolVar(&o.Aggregation.RejectRedirects, "aggregator-reject-forwarding-redirect", true, "refuse redirects from aggregated API servers")
	f.BoolVar(&o.Aggregation.Routing, "enable-aggregator-routing", false, "accepted for compatibility: requests always go to the endpoints of a Service, never to its cluster IP")
	rh := &o.Auth.RequestHeader
	f.StringVar(&rh.ClientCAFile, "requestheader-client-ca-file", "", "PEM `file` with the CAs of authenticating proxies, whose headers contain the user")
	f.Func("requestheader-allowed-names", "comma-separated common `names` of the proxies' certificates (default: any)", commandline.AppendList(&rh.AllowedNames))
	f.Func("requestheader-username-headers", "comma-separated `headers` with the user name, such as X-Remote-User", commandline.AppendList(&rh.Users))
	f.Func("requestheader-uid-headers", "comma-separated `headers` with the uid, such as X-Remote-Uid", commandline.AppendList(&rh.UIDs))
	f.Func("requestheader-group-headers", "comma-separated `headers` with the groups, such as X-Remote-Group", commandline.AppendList(&rh.Groups))
	f.Func("requestheader-extra-headers-prefix", "comma-separated `prefixes` of headers with extra user information, such as X-Remote-Extra-", commandline.AppendList(&rh.Extras))
}

// finishAggregation returns the same errors as kube-apiserver.
func (o *Options) finishAggregation() error {
	if (o.Aggregation.ProxyCert == "") != (o.Aggregation.ProxyKey == "") {
		return errors.New("--proxy-client-cert-file and --proxy-client-key-file must be set together")
	}
	rh := &o.Auth.RequestHeader
	for _, list := range []struct {
		name   string
		values []string
	}{{"username-headers", rh.Users}, {"uid-headers", rh.UIDs}, {"group-headers", rh.Groups}, {"extra-headers-prefix", rh.Extras}, {"allowed-names", rh.AllowedNames}} {
		for i, value := range list.values {
			if list.values[i] = strings.TrimSpace(value); list.values[i] == "" {
				return fmt.Errorf("empty value in \"requestheader-%s\"", list.name)
			}
		}
	}
	return nil
}
