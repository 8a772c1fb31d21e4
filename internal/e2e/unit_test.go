package e2e

// This file looks at docs/apilet.service, the unit of a device: its flags are apilet's, it is hardened, and docs/devices.md explains what it has.

import (
	"flag"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"apilet/internal/apitest"
	"apilet/internal/options"
)

// unitSettings are a unit's lines NAME=VALUE; a name may have several.
func unitSettings(t *testing.T) map[string][]string {
	t.Helper()
	text := strings.ReplaceAll(string(apitest.ReadFile(t, "../../docs/apilet.service")), "\\\n", " ")
	settings := map[string][]string{}
	for _, line := range strings.Split(text, "\n") {
		if name, value, ok := strings.Cut(line, "="); ok && !strings.HasPrefix(line, "#") {
			settings[name] = append(settings[name], strings.Join(strings.Fields(value), " "))
		}
	}
	return settings
}

func TestUnit(t *testing.T) {
	t.Parallel()
	settings := unitSettings(t)
	t.Run("apilet understands its flags", func(t *testing.T) {
		args := strings.Fields(settings["ExecStart"][0])
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
		if c.Quota == 0 || c.Audit.Path == "" {
			t.Error("it has no quota, or no audit log")
		}
	})
	t.Run("devices.md has its words", func(t *testing.T) {
		_, doc, _ := strings.Cut(string(apitest.ReadFile(t, "../../docs/devices.md")), "\n## The unit\n")
		doc, _, _ = strings.Cut(doc, "\n## ")
		for _, quoted := range regexp.MustCompile("`([A-Z]\\w+)=([^`]*)`").FindAllStringSubmatch(doc, -1) {
			if quoted[1] == "IPAddressDeny" || quoted[1] == "IPAddressAllow" || quoted[1] == "GOGC" || quoted[1] == "READY" || quoted[1] == "After" { // not of the unit
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
