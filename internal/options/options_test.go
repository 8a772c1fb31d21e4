package options

import (
	"flag"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/util/compatibility"
	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/kubernetes/pkg/features"

	"apilet/internal/auth"
	"apilet/internal/commandline"
)

// flags are those for serving, with their defaults.
func flags() (*Options, *flag.FlagSet) {
	o, f := &Options{}, flag.NewFlagSet("apilet", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	for _, group := range o.Groups() {
		group.Define(f)
	}
	return o, f
}

// TestWhoAsksForTLS is the decision alone.
func TestWhoAsksForTLS(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		title         string
		options       Options
		own, insecure bool
		refused       string
	}{
		{"loopback", Options{Listen: "127.0.0.1:0"}, false, true, ""},
		{"beyond loopback", Options{Listen: "0.0.0.0:0"}, true, false, ""},
		{"a name", Options{Listen: "127.0.0.1:0", Names: []string{"api.example.com"}}, true, false, ""},
		{"a name, and a certificate", Options{Listen: "127.0.0.1:0", Names: []string{"api.example.com"}, TLSCert: "x", TLSKey: "y"}, false, true, ""},
		{"a folder", Options{Listen: "127.0.0.1:0", CertDir: "x"}, true, false, ""},
		{"a token file", Options{Listen: "127.0.0.1:0", Auth: auth.Config{TokenFile: "x"}}, true, false, ""},
		{"client certificates", Options{Listen: "127.0.0.1:0", Auth: auth.Config{ClientCAFile: "x"}}, true, false, ""},
		{"bootstrap tokens", Options{Listen: "127.0.0.1:0", Auth: auth.Config{BootstrapTokens: true}}, true, false, ""},
		{"a certificate", Options{Listen: "127.0.0.1:0", TLSCert: "x", TLSKey: "y"}, false, true, ""},
		{"a certificate and a folder", Options{Listen: "127.0.0.1:0", TLSCert: "x", TLSKey: "y", CertDir: "z"}, false, true, ""},
		{"a certificate and an authenticator", Options{Listen: ":0", TLSCert: "x", TLSKey: "y", Auth: auth.Config{TokenFile: "z"}}, false, false, ""},
		{"a certificate beyond loopback", Options{Listen: ":0", TLSCert: "x", TLSKey: "y"}, false, true, "without an authenticator"},
		{"half a certificate", Options{Listen: ":0", TLSCert: "x"}, false, false, "must be set together"},
	} {
		c.options.RequestTimeout = time.Minute
		err := c.options.Finish()
		if c.refused != "" {
			if err == nil || !strings.Contains(err.Error(), c.refused) {
				t.Errorf("%s: %v, want %q", c.title, err, c.refused)
			}
			continue
		}
		if err != nil || c.options.OwnCerts != c.own || c.options.Auth.Insecure != c.insecure || c.options.Auth.AlwaysAllow != c.insecure {
			t.Errorf("%s: own certificate %v, insecure %v, %v", c.title, c.options.OwnCerts, c.options.Auth.Insecure, err)
		}
	}
}

// --authorization-mode is a list, which AlwaysAllow makes the others' answers idle in.
func TestAuthorizationModes(t *testing.T) {
	t.Parallel()
	for list, want := range map[string]string{
		"": "true []", "RBAC": "false []", "Node,RBAC": "false [Node RBAC]", "RBAC,Node": "false [RBAC Node]", "Node": "false [Node]",
		"AlwaysAllow": "true []", "Node,AlwaysAllow": "true []",
		"AlwaysDeny": "false []",
		"Node,Node":  "Node is specified more than once", "RBAC,Webhook": "authorization-mode Webhook's authorization config file not passed", "ABAC": `"ABAC" is none of Node, RBAC, Webhook`,
	} {
		modes, err := commandline.SplitList(list)
		if err != nil {
			t.Fatal(err)
		}
		o := Options{Listen: "127.0.0.1:0", Authorization: modes, RequestTimeout: time.Minute}
		got := ""
		if err := o.Finish(); err != nil {
			got = err.Error()
		} else {
			got = fmt.Sprint(o.Auth.AlwaysAllow, " ", o.Auth.Modes)
		}
		if !strings.Contains(got, want) {
			t.Errorf("%q: %s, want %s", list, got, want)
		}
	}
}

// --history is how far back compaction leaves what was; it contradicts a server that does not compact.
func TestHistoryFlag(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"": "5m0s ", "--compaction-interval=0": "0s ", "--compaction-interval=1m": "1m0s ", "--history=2h": "2h0m0s ", "--history=0": "0s ",
		"--history=2h --compaction-interval=0": "--history requires a --compaction-interval above 0", "--history=-5m": "must not be negative", "--history=long": "invalid",
		"--history=0 --compaction-interval=0": "0s ",
	} {
		c, f := flags()
		err := f.Parse(strings.Fields(args))
		if err == nil {
			err = c.Finish()
		}
		got := ""
		if err != nil {
			got = err.Error()
		} else {
			got = c.HistoryRetention().String() + " "
		}
		if !strings.Contains(got, want) {
			t.Errorf("%q: %s, want %s", args, got, want)
		}
	}
}

// One limit that is auto makes both so, since their sum is what is found; what contradicts that does not start.
func TestSeatsFlag(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ flags, seats, err string }{
		{"", "600", ""},
		{"--max-requests-inflight=20 --max-mutating-requests-inflight=10", "30", ""},
		{"--max-requests-inflight=20", "220", ""},
		{"--max-requests-inflight=auto", "auto", ""},
		{"--max-mutating-requests-inflight=auto", "auto", ""},
		{"--max-requests-inflight=auto --max-mutating-requests-inflight=auto", "auto", ""},
		{"--max-requests-inflight=auto --max-mutating-requests-inflight=10", "", "applies to both limits"},
		{"--max-requests-inflight=10 --max-mutating-requests-inflight=auto", "", "applies to both limits"},
		{"--max-requests-inflight=auto --enable-priority-and-fairness=false", "", "requires --enable-priority-and-fairness"},
		{"--max-requests-inflight=many", "", "must be a number or auto"},
		{"--max-requests-inflight=-1", "", "must be a number or auto"},
		{"--max-requests-inflight=99999999999999999999", "", "must be a number or auto"},
	} {
		c, f := flags()
		err := f.Parse(strings.Fields(test.flags))
		if err == nil {
			err = c.Finish()
		}
		switch {
		case test.err != "":
			if err == nil || !strings.Contains(err.Error(), test.err) {
				t.Errorf("%s: %v, want %q", test.flags, err, test.err)
			}
		case err != nil:
			t.Errorf("%s: %v", test.flags, err)
		case test.seats == "600" && c.Seats() != 600, test.seats == "30" && c.Seats() != 30, test.seats == "220" && c.Seats() != 220,
			test.seats == "auto" && c.Seats() != AutoSeats:
			t.Errorf("%q: %d seats, want %s", test.flags, c.Seats(), test.seats)
		}
	}
}

// TestWhereAServerIs: what cannot be a server's address, or nobody knows how to do, is refused.
func TestWhereAServerIs(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"--advertise-address=10.0.0.7": "", "--advertise-address=fd00::7": "must match public address family", "--endpoint-reconciler-type=none": "", "--endpoint-reconciler-type=lease": "",
		"--advertise-address=server.example.com": "--advertise-address", "--advertise-address=0.0.0.0": "--advertise-address",
		"--advertise-address=fe80::1%eth0": "--advertise-address", "--endpoint-reconciler-type=master-count": "neither lease nor none",
	} {
		o, f := flags()
		if err := f.Parse([]string{args}); err != nil {
			t.Fatal(err)
		}
		if err := o.Finish(); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}

// What means nothing, or contradicts itself, does not start a server that then does something else.
func TestFlagsThatMeanNothing(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"--log-format=json --compaction-interval=0 --event-ttl=0 --min-request-timeout=0 --quota-backend-bytes=0": "", "--ephemeral": "", "--data=x.db": "",
		"--compaction-interval=-5s": "--compaction-interval: -5s is negative", "--event-ttl=-1h": "--event-ttl: -1h0m0s is negative",
		"--min-request-timeout=-1s": "--min-request-timeout: -1s is negative", "--quota-backend-bytes=-1": "",
		"--shutdown-delay-duration=-1s": "--shutdown-delay-duration: -1s is negative", "--shutdown-delay-duration=0": "",
		"--request-timeout=0": "--request-timeout: 0s must be above 0", "--request-timeout=-1s": "--request-timeout: -1s must be above 0",
		"--log-format=xml": `--log-format: "xml" is neither console nor json`, "--ephemeral --data=x.db": "--ephemeral does not use --data x.db",
	} {
		o, f := flags()
		if err := f.Parse(strings.Fields(args)); err != nil {
			t.Fatal(err)
		}
		if err := o.Finish(); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}

// --tls-san takes names, patterns and addresses, in several ways to write them, and nothing else.
func TestNamesOfAServer(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"--tls-san=api.example.com,10.0.0.7 --tls-san=API.example.org": "[api.example.com 10.0.0.7 api.example.org]", "--tls-san=fd00::7,::ffff:10.0.0.8": "[fd00::7 10.0.0.8]",
		"--tls-san=*.example.com": "[*.example.com]", "--tls-san=localhost": "[localhost]", "--tls-san=": "an empty element",
		"--tls-san=a,,b": "an empty element", "--tls-san=a,": "an empty element", "--tls-san=https://a": "is neither", "--tls-san=a:6443": "is neither", "--tls-san=a_b": "is neither",
		"--tls-san=a.*.b": "is neither", "--tls-san=10.0.0.300": "is neither", "--tls-san=10.0.0": "is neither", "--tls-san=0.0.0.0": "is not an IP address of a server",
		"--tls-san=fe80::1%eth0": "is not an IP address of a server", "--tls-san=224.0.0.1": "is not an IP address of a server", "--tls-san=a.": "is neither",
	} {
		o, f := flags()
		err := f.Parse(strings.Fields(args))
		got := fmt.Sprint(o.Names)
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s", args, got, want)
		}
	}
}

// How audit events are gathered is refused in kube-apiserver's words, of sinks that there are.
func TestAuditModes(t *testing.T) {
	t.Parallel()
	const log, hook = "--audit-log-path=x ", "--audit-webhook-config-file=x "
	for line, want := range map[string]string{
		"--audit-log-mode=foo --audit-webhook-mode=bar":                                                     "",
		log + "--audit-log-mode=blocking-strict":                                                            "",
		log + "--audit-log-mode=batch":                                                                      "",
		log + "--audit-log-batch-buffer-size=0":                                                             "",
		hook + "--audit-webhook-mode=blocking --audit-webhook-batch-throttle-burst=0":                       "",
		log + "--audit-log-mode=foo":                                                                        `invalid audit log mode foo, allowed modes are "batch,blocking,blocking-strict"`,
		log + "--audit-log-mode=batch --audit-log-batch-buffer-size=0":                                      "invalid audit batch log buffer size 0, must be a positive number",
		log + "--audit-log-mode=batch --audit-log-batch-max-size=-1":                                        "invalid audit batch log max batch size -1, must be a positive number",
		log + "--audit-log-mode=batch --audit-log-batch-throttle-enable":                                    "invalid audit batch log throttle QPS 0, must be a positive number",
		log + "--audit-log-mode=batch --audit-log-batch-throttle-enable --audit-log-batch-throttle-qps=1":   "invalid audit batch log throttle burst 0, must be a positive number",
		hook + "--audit-webhook-mode=now":                                                                   `invalid audit webhook mode now, allowed modes are "batch,blocking,blocking-strict"`,
		hook + "--audit-webhook-batch-throttle-burst=0":                                                     "invalid audit batch webhook throttle burst 0, must be a positive number",
		hook + "--audit-webhook-batch-throttle-qps=a":                                                       `strconv.ParseFloat: parsing "a": invalid syntax`,
		log + "--audit-log-batch-throttle-qps=NaN --audit-log-batch-throttle-enable --audit-log-mode=batch": "throttle QPS NaN, must be a positive number",
	} {
		o, f := flags()
		err := f.Parse(strings.Fields(line))
		if err == nil {
			err = o.Audit.finish()
		}
		if got := fmt.Sprint(err); err == nil && want != "" || err != nil && (want == "" || !strings.Contains(got, want)) {
			t.Errorf("%s: %s, want %q", line, got, want)
		}
	}
	o, _ := flags()
	if b := o.Audit.LogBatches; b.BufferSize != 10000 || b.MaxSize != 1 || b.Throttle || o.Audit.Batches.MaxSize != 400 || o.Audit.Batches.Backoff != 10*time.Second {
		t.Errorf("defaults: %+v, %+v", b, o.Audit.Batches)
	}
}

// TestCommaSeparatedFlagsRefuseEmptyElements finds the flags by their help, so that a new one is tested too.
func TestCommaSeparatedFlagsRefuseEmptyElements(t *testing.T) {
	t.Parallel()
	tested := 0
	_, all := flags()
	all.VisitAll(func(f *flag.Flag) {
		if !strings.HasPrefix(f.Usage, "comma-separated") && !strings.Contains(f.Usage, "CIDR[,CIDR]") {
			return
		}
		tested++
		for _, list := range []string{",", "x,", ",x", "x,,x", "x, "} {
			o, set := flags()
			err := set.Parse([]string{"--" + f.Name + "=" + list})
			if err == nil && f.Name == "service-cluster-ip-range" {
				err = o.Finish() // in kube-apiserver's words
			}
			if err == nil {
				t.Errorf("--%s=%q is accepted", f.Name, list)
			}
		}
	})
	if tested < 15 {
		t.Errorf("found %d comma-separated flags", tested)
	}
}

func TestOriginPatternsAreChecked(t *testing.T) {
	t.Parallel()
	for list, want := range map[string]string{
		`^https://good\.example$,`: "empty value in --cors-allowed-origins, help: List of allowed origins for CORS",
		",":                        "empty value in --cors-allowed-origins", `^https://a$,^https://b$`: "",
	} {
		_, set := flags()
		got := ""
		if err := set.Parse([]string{"--cors-allowed-origins=" + list}); err != nil {
			got = err.Error()
		}
		if want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("--cors-allowed-origins=%s: %q, want %q", list, got, want)
		}
	}
}

// TestFeatureGates sets copies of the gates, because the gates belong to the process.
func TestFeatureGates(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ flag, want string }{
		{"Foo=true", "--feature-gates: unrecognized feature gate: Foo"},
		{"DRAAdminAccess=false", "--feature-gates: cannot set feature gate DRAAdminAccess to false, feature is locked to true"},
		{"DRAAdminAccess", "--feature-gates: missing bool value for DRAAdminAccess"},
		{"HPAScaleToZero=maybe", `--feature-gates: invalid value of HPAScaleToZero=maybe, err: strconv.ParseBool: parsing "maybe": invalid syntax`},
		{"wardle:HPAScaleToZero=true", "--feature-gates: component not registered: wardle"},
	} {
		o, f := flags()
		if err := f.Parse([]string{"--feature-gates=" + c.flag}); err != nil {
			t.Fatal(err)
		}
		if err := setGates(FeatureGates().DeepCopy(), o.FeatureGates); err == nil || err.Error() != c.want {
			t.Errorf("%s: got %v, want %s", c.flag, err, c.want)
		}
	}
	for _, c := range []struct {
		flags                          string
		affinity, scaleToZero, signals bool // alpha, beta, alpha
	}{
		{"", false, true, false},
		{"--feature-gates=kube:MutablePVNodeAffinity=true --feature-gates=HPAScaleToZero=false", true, false, false},
		{"--feature-gates=AllAlpha=true,GenericWorkload=true,MutablePVNodeAffinity=false", false, true, true},
		{"--feature-gates=AllBeta=false", false, false, false},
	} {
		o, f := flags()
		if err := f.Parse(strings.Fields(c.flags)); err != nil {
			t.Fatal(err)
		}
		gates := FeatureGates().DeepCopy()
		if err := setGates(gates, o.FeatureGates); err != nil {
			t.Errorf("%s: %v", c.flags, err)
		}
		got := [...]bool{gates.Enabled(features.MutablePVNodeAffinity), gates.Enabled(features.HPAScaleToZero), gates.Enabled(features.ContainerStopSignals)}
		if got != [...]bool{c.affinity, c.scaleToZero, c.signals} {
			t.Errorf("%s: MutablePVNodeAffinity, HPAScaleToZero, ContainerStopSignals are %v", c.flags, got)
		}
	}
}

// TestEmulatedVersion sets the version of components of its own, because that of the process belongs to all tests. The errors are
// kube-apiserver's.
func TestEmulatedVersion(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		flags, emulated, minCompatibility, err string
		toleratesTaints                        bool // the feature gate DRADeviceTaints
	}{
		{"", "1.37", "1.36", "", true},
		{"--emulated-version=1.37", "1.37", "1.36", "", true},
		{"--emulated-version=kube=1.36", "1.36", "1.35", "", true},
		{"--emulated-version=1.35", "1.35", "1.34", "", false},
		{"--emulated-version=1.34", "1.34", "1.34", "", false},
		{"--emulated-version=1.33", "", "", "--emulated-version: [emulation version 1.33 is not between [1.34, 1.37.0], minCompatibilityVersion version 1.34 is not between [1.34, 1.33]]", false},
		{"--emulated-version=1.38", "", "", "--emulated-version: emulation version 1.38 is not between [1.34, 1.37.0]", false},
		{"--emulated-version=1.36.1", "", "", "--emulated-version: patch version not allowed, got: kube=1.36.1", false},
		{"--emulated-version=1.36 --emulated-version=kube=1.35", "", "", "--emulated-version: duplicate version flag, kube=1.36 and kube=1.35", false},
		{"--emulated-version=wardle=1.36", "", "", "--emulated-version: component not registered: wardle", false},
		{"--emulated-version=latest", "", "", `--emulated-version: could not parse "latest" as version`, false},
	} {
		o, f := flags()
		if err := f.Parse(strings.Fields(c.flags)); err != nil {
			t.Fatal(err)
		}
		components, kube, gates := basecompatibility.NewComponentGlobalsRegistry(), compatibility.DefaultBuildEffectiveVersion(), FeatureGates().DeepCopy()
		if err := components.Register("kube", kube, gates); err != nil {
			t.Fatal(err)
		}
		if err := setVersion(components, o.EmulatedVersion); err != nil || c.err != "" {
			if err == nil || err.Error() != c.err {
				t.Errorf("%s: got %v, want %s", c.flags, err, c.err)
			}
			continue
		}
		if kube.EmulationVersion().String() != c.emulated || kube.MinCompatibilityVersion().String() != c.minCompatibility {
			t.Errorf("%s: got %v", c.flags, kube)
		}
		if gates.Enabled(features.DRADeviceTaints) != c.toleratesTaints {
			t.Errorf("%s: DRADeviceTaints is %v", c.flags, !c.toleratesTaints)
		}
	}
}
