package e2e

// This file checks docs/apilet.service, the systemd unit for a device. Its flags must exist, it
// must be hardened, and docs/devices.md must explain its settings. The units in docs/node/ must use
// files that `apilet node-bootstrap` writes.

import (
	"flag"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"apilet/internal/apitest"
	"apilet/internal/options"
)

// unitSettings returns the NAME=VALUE lines of a unit in docs/. A name may have several values.
func unitSettings(t *testing.T, unit string) map[string][]string {
	t.Helper()
	text := strings.ReplaceAll(string(apitest.ReadFile(t, filepath.Join("../../docs", unit))), "\\\n", " ")
	settings := map[string][]string{}
	for _, line := range strings.Split(text, "\n") {
		if name, value, ok := strings.Cut(line, "="); ok && !strings.HasPrefix(line, "#") {
			settings[name] = append(settings[name], strings.Join(strings.Fields(value), " "))
		}
	}
	return settings
}

// parseUnit parses the command line of a unit that runs apilet.
func parseUnit(t *testing.T, command string) *options.Options {
	t.Helper()
	args := strings.Fields(command)
	if args[0] != "/usr/local/bin/apilet" {
		t.Errorf("it runs %s", args[0])
	}
	var c options.Options
	flags := flag.NewFlagSet("apilet", flag.ContinueOnError)
	for _, group := range c.Groups() {
		group.Define(flags)
	}
	if err := flags.Parse(args[1:]); err != nil || flags.NArg() > 0 {
		t.Fatal(err, flags.Args())
	}
	if err := c.Finish(); err != nil {
		t.Fatal(err)
	}
	return &c
}

func TestUnit(t *testing.T) {
	t.Parallel()
	settings := unitSettings(t, "apilet.service")
	t.Run("apilet understands its flags", func(t *testing.T) {
		c := parseUnit(t, settings["ExecStart"][0])
		if c.Quota == 0 || c.Audit.Path == "" {
			t.Error("it has no quota, or no audit log")
		}
	})
	t.Run("devices.md has its words", func(t *testing.T) {
		_, doc, _ := strings.Cut(string(apitest.ReadFile(t, "../../docs/devices.md")), "\n## The unit\n")
		doc, _, _ = strings.Cut(doc, "\n## ")
		for _, quoted := range regexp.MustCompile("`([A-Z]\\w+)=([^`]*)`").FindAllStringSubmatch(doc, -1) {
			// These are not settings of the unit.
			if quoted[1] == "IPAddressDeny" || quoted[1] == "IPAddressAllow" || quoted[1] == "GOGC" || quoted[1] == "READY" || quoted[1] == "After" {
				continue
			}
			if !strings.Contains("\n"+strings.Join(settings[quoted[1]], "\n")+"\n", "\n"+quoted[2]+"\n") {
				t.Errorf("%s=%s is not in the unit, which has %q", quoted[1], quoted[2], settings[quoted[1]])
			}
		}
	})
	t.Run("exposure", func(t *testing.T) {
		analyze, err := exec.LookPath("systemd-analyze")
		if err != nil {
			t.Skip("no systemd-analyze on this machine")
		}
		out, err := exec.Command(analyze, "security", "--offline=true", "--no-pager", "../../docs/apilet.service").CombinedOutput()
		level := regexp.MustCompile(`Overall exposure level for apilet.service: ([0-9.]+)`).FindSubmatch(out)
		if level == nil {
			t.Skipf("this systemd-analyze says nothing of a file: %v", err)
		}
		if exposure, _ := strconv.ParseFloat(string(level[1]), 64); exposure > 1.5 {
			t.Errorf("the exposure is %v; devices.md says 1.3:\n%s", exposure, out)
		}
	})
}

func TestNodeUnits(t *testing.T) {
	t.Parallel()
	server := unitSettings(t, "node/apilet.conf")
	c := parseUnit(t, strings.ReplaceAll(server["ExecStart"][1], "${CREDENTIALS_DIRECTORY}", t.TempDir()))
	if c.Controllers || !slices.Equal(c.Authorization, []string{"Node", "RBAC"}) || !slices.Equal(c.EnabledPlugins, []string{"NodeRestriction"}) {
		t.Errorf("%+v", c)
	}
	n := startForNodes(t, "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction")
	if r := n.bootstrap(); r.code != 0 {
		t.Fatal(r.errs)
	}
	written := n.content()
	written["sa.key"] = "docs/node.md makes it"
	units, err := filepath.Glob("../../docs/node/*.service")
	if err != nil || len(units) != 5 {
		t.Fatal(units, err)
	}
	for _, unit := range units {
		settings := unitSettings(t, filepath.Join("node", filepath.Base(unit)))
		if !slices.Equal(settings["Restart"], []string{"always"}) || !slices.Equal(settings["StartLimitIntervalSec"], []string{"0"}) {
			t.Errorf("%s is not started again whenever it ends: %v", unit, settings)
		}
		for _, found := range regexp.MustCompile(`/etc/apilet-node/(\S+)`).FindAllStringSubmatch(settings["ExecStart"][0], -1) {
			if written[found[1]] == "" {
				t.Errorf("%s uses %s, which apilet node-bootstrap does not write", unit, found[0])
			}
		}
	}
}
