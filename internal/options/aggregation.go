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
	f.StringVar(&o.Aggregation.ProxyCert, "proxy-client-cert-file", "", "PEM `file` with the certificate that is shown to the servers of APIServices (default: one that the server makes, in --cert-dir)")
	f.StringVar(&o.Aggregation.ProxyKey, "proxy-client-key-file", "", "PEM `file` with the key of --proxy-client-cert-file")
	f.BoolVar(&o.Aggregation.RejectRedirects, "aggregator-reject-forwarding-redirect", true, "refuse answers of those servers that send clients elsewhere")
	f.BoolVar(&o.Aggregation.Routing, "enable-aggregator-routing", false, "accepted: requests always go to the endpoints of a Service, never to its cluster IP")
	rh := &o.Auth.RequestHeader
	f.StringVar(&rh.ClientCAFile, "requestheader-client-ca-file", "", "PEM `file` of authorities; a proxy with a certificate of theirs is believed when it says in headers who asks")
	f.Func("requestheader-allowed-names", "comma-separated common `names` of such certificates (default: any)", commandline.AppendList(&rh.AllowedNames))
	f.Func("requestheader-username-headers", "comma-separated `headers` with the user's name: X-Remote-User is common", commandline.AppendList(&rh.Users))
	f.Func("requestheader-uid-headers", "comma-separated `headers` with the user's uid: X-Remote-Uid", commandline.AppendList(&rh.UIDs))
	f.Func("requestheader-group-headers", "comma-separated `headers` with the user's groups: X-Remote-Group", commandline.AppendList(&rh.Groups))
	f.Func("requestheader-extra-headers-prefix", "comma-separated `beginnings` of headers with what else is known of the user: X-Remote-Extra-", commandline.AppendList(&rh.Extras))
}

// finishAggregation returns the same errors as kube-apiserver.
func (o *Options) finishAggregation() error {
	if (o.Aggregation.ProxyCert == "") != (o.Aggregation.ProxyKey == "") {
		return errors.New("--proxy-client-cert-file and --proxy-client-key-file belong together")
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
