package plugins

// This file reads --admission-control-config-file. It must contain an AdmissionConfiguration of
// apiserver.config.k8s.io, which contains the plug-in configurations or the names of the files
// that contain them. PodSecurity, PodNodeSelector (nodeselector.go), PodTolerationRestriction
// (tolerations.go) and EventRateLimit (eventrate.go) can be configured:
//
//	apiVersion: apiserver.config.k8s.io/v1
//	kind: AdmissionConfiguration
//	plugins:
//	- name: PodSecurity
//	  configuration:
//	    apiVersion: pod-security.admission.config.k8s.io/v1
//	    kind: PodSecurityConfiguration
//	    defaults: {enforce: baseline, warn: restricted}
//	    exemptions: {namespaces: [kube-system], usernames: [], runtimeClasses: []}
//
// A configuration for any other known plug-in is an error, because its author would rely on it.

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"
	podsecurity "k8s.io/pod-security-admission/api"
	"sigs.k8s.io/yaml"

	"apilet/internal/admission"
)

type pluginConfiguration struct {
	Name          string          `json:"name"`
	Path          string          `json:"path"`
	Configuration json.RawMessage `json:"configuration"`
}

type typeMeta struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
}

type admissionConfiguration struct {
	typeMeta `json:",inline"`
	Plugins  []pluginConfiguration `json:"plugins"`
}

type podSecurityConfiguration struct {
	typeMeta `json:",inline"`
	Defaults struct {
		Enforce        string `json:"enforce"`
		EnforceVersion string `json:"enforce-version"`
		Audit          string `json:"audit"`
		AuditVersion   string `json:"audit-version"`
		Warn           string `json:"warn"`
		WarnVersion    string `json:"warn-version"`
	} `json:"defaults"`
	Exemptions struct {
		Usernames      []string `json:"usernames"`
		Namespaces     []string `json:"namespaces"`
		RuntimeClasses []string `json:"runtimeClasses"`
	} `json:"exemptions"`
}

// ReadConfiguration reads the named file. If name is "", it returns the defaults.
func ReadConfiguration(name string) (*Configuration, error) {
	c := &Configuration{podSecurity: podSecurityConfig{defaults: privileged()}}
	if name == "" {
		return c, nil
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	var file admissionConfiguration
	if err := yaml.UnmarshalStrict(text, &file); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if file.Kind != "AdmissionConfiguration" || file.APIVersion != "apiserver.config.k8s.io/v1" && file.APIVersion != "apiserver.k8s.io/v1alpha1" {
		return nil, fmt.Errorf("%s: %s of %s is no AdmissionConfiguration of apiserver.config.k8s.io/v1", name, file.Kind, file.APIVersion)
	}
	for _, plugin := range file.Plugins {
		if err := c.read(filepath.Dir(name), &plugin); err != nil {
			return nil, fmt.Errorf("%s: plugin %s: %w", name, plugin.Name, err)
		}
	}
	return c, nil
}

// read adds the configuration of one plug-in. Unknown plug-ins are ignored for compatibility with
// kube-apiserver.
func (c *Configuration) read(folder string, plugin *pluginConfiguration) error {
	text := []byte(plugin.Configuration)
	if len(text) == 0 && plugin.Path != "" {
		at := plugin.Path
		if !filepath.IsAbs(at) {
			at = filepath.Join(folder, at)
		}
		var err error
		if text, err = os.ReadFile(at); err != nil {
			return err
		}
	}
	known := slices.ContainsFunc(Table(Config{}), func(p admission.Plugin) bool { return p.Name == plugin.Name })
	switch {
	case len(text) == 0 || !known:
		return nil
	case plugin.Name == "PodNodeSelector":
		return c.readNodeSelectors(text)
	case plugin.Name == "PodTolerationRestriction":
		var err error
		c.tolerations, err = readTolerations(text)
		return err
	case plugin.Name == "EventRateLimit":
		var err error
		c.eventLimits, err = readEventLimits(text)
		return err
	case plugin.Name != "PodSecurity":
		return fmt.Errorf("its configuration has no effect here")
	}
	return c.readPodSecurity(text)
}

// readNodeSelectors parses a configuration file without a kind. Unknown fields are ignored.
func (c *Configuration) readNodeSelectors(text []byte) error {
	var file struct {
		Selectors map[string]string `json:"podNodeSelectorPluginConfig"`
	}
	err := yaml.Unmarshal(text, &file)
	c.nodeSelectors = file.Selectors
	return err
}

func (c *Configuration) readPodSecurity(text []byte) error {
	var file podSecurityConfiguration
	if err := yaml.UnmarshalStrict(text, &file); err != nil {
		return err
	}
	versions := []string{"pod-security.admission.config.k8s.io/v1", "pod-security.admission.config.k8s.io/v1beta1", "pod-security.admission.config.k8s.io/v1alpha1"}
	if file.Kind != "PodSecurityConfiguration" || !slices.Contains(versions, file.APIVersion) {
		return fmt.Errorf("%s of %s is no PodSecurityConfiguration of %s", file.Kind, file.APIVersion, versions[0])
	}
	c.podSecurity = podSecurityConfig{defaults: privileged(), usernames: file.Exemptions.Usernames, namespaces: file.Exemptions.Namespaces,
		runtimeClasses: file.Exemptions.RuntimeClasses}
	var errs field.ErrorList
	at := field.NewPath("defaults")
	level := func(name, text string, into *podsecurity.Level) {
		if text == "" {
			return
		}
		parsed, err := podsecurity.ParseLevel(text)
		if *into = parsed; err != nil {
			errs = append(errs, field.Invalid(at.Child(name), text, err.Error()))
		}
	}
	version := func(name, text string, into *podsecurity.Version) {
		if text == "" {
			return
		}
		parsed, err := podsecurity.ParseVersion(text)
		if *into = parsed; err != nil {
			errs = append(errs, field.Invalid(at.Child(name), text, err.Error()))
		}
	}
	d := &c.podSecurity.defaults
	level("enforce", file.Defaults.Enforce, &d.Enforce.Level)
	version("enforce-version", file.Defaults.EnforceVersion, &d.Enforce.Version)
	level("audit", file.Defaults.Audit, &d.Audit.Level)
	version("audit-version", file.Defaults.AuditVersion, &d.Audit.Version)
	level("warn", file.Defaults.Warn, &d.Warn.Level)
	version("warn-version", file.Defaults.WarnVersion, &d.Warn.Version)
	errs = append(errs, c.podSecurity.validate()...)
	return errs.ToAggregate()
}

// Select calls the function Select and also checks that EventRateLimit is configured if it is
// enabled.
func (c *Configuration) Select(table []admission.Plugin, enable, disable []string) (on map[string]bool, err error) {
	if on, err = Select(table, enable, disable); err == nil && on["EventRateLimit"] {
		if err = validateEventLimits(c.eventLimits); err != nil {
			err = fmt.Errorf("couldn't init admission plugin %q: %w", "EventRateLimit", err)
		}
	}
	return on, err
}
