// Package logcmd implements the commands for the history of objects. `apilet log` prints a line for
// each change, and `apilet diff` prints the differences between two points in time. If the program
// is called kubectl-apilet, it has these two commands, and kubectl finds it as a plugin (kubectl
// apilet log ...).
//
//	rows := logcmd.Commands() // for the table of package commandline
//
// Both commands send requests to a server (server.go: /debug/history, and any path of the API below
// /at/MOMENT/), or read a data file that no server has open (file.go). Types are named as for
// kubectl (types.go). line.go formats a change as a line, and diff.go compares moments.
//
// Invariant: names and values are not trusted, so all control characters are escaped before they
// are printed (see plain).
package logcmd

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"apilet/internal/commandline"
	"apilet/internal/kubeconfig"
	"apilet/internal/options"
)

// PluginName is the name of the program as a kubectl plugin.
const PluginName = "kubectl-apilet"

const (
	defaultServer = "http://127.0.0.1:8080"
	tailMax       = 5000 // the server's limit
)

// A command contains the values of the command-line flags.
type command struct {
	plugin bool

	remote kubeconfig.Remote
	data   string
	keys   string // path of the encryption configuration, used with data

	namespace                   string
	everywhere                  bool
	labels, fields              string
	since, until, by            string
	limit, tail                 int
	follow, findings, colorless bool
	output                      string
}

// Commands returns the rows for the table of commands.
func Commands() []commandline.Command { return (&command{}).rows() }

// Plugin returns the program as a kubectl plugin.
func Plugin(version func(io.Writer) error) *commandline.Program {
	missing := commandline.Command{ArgCounts: []int{0}, Description: "print an error that names the help", Run: func(commandline.Call) error {
		return errors.New("a command is required: see `kubectl apilet help`")
	}}
	return &commandline.Program{Name: "kubectl apilet", Description: "A kubectl plugin that prints the history of the objects of an apilet server.", Version: version,
		Commands: func() []commandline.Command {
			return append([]commandline.Command{missing}, (&command{plugin: true}).rows()...)
		}}
}

func (c *command) rows() []commandline.Command {
	where := commandline.FlagGroup{Title: "Server or data file (default: " + c.fallback() + ")", Define: c.defineWhere}
	return []commandline.Command{
		{Name: "log", Args: "[TYPE[,TYPE] [NAME]]", ArgCounts: []int{0, 1, 2}, Description: "print the history of objects: one line for each change, with its author",
			Groups: []commandline.FlagGroup{{Title: "Changes to print", Define: c.defineWhich}, {Title: "Output", Define: c.defineHow}, where}, Run: c.runLog},
		{Name: "diff", Args: "REV1 REV2 [TYPE[,TYPE] [NAME]]", ArgCounts: []int{2, 3, 4}, Description: "print the differences between two moments, each of which is a revision, a time, -5m or now",
			Groups: []commandline.FlagGroup{{Title: "Objects to compare", Define: c.defineObjects}, {Title: "Output", Define: c.defineColor}, where}, Run: c.runDiff},
	}
}

// fallback describes the default server in the help text.
func (c *command) fallback() string {
	if c.plugin {
		return "the kubeconfig of kubectl"
	}
	return "$KUBECONFIG, else " + defaultServer
}

func (c *command) defineWhere(f *flag.FlagSet) {
	f.StringVar(&c.remote.Kubeconfig, "kubeconfig", "", "connect to the server of the current context of this `file`, as its user")
	f.StringVar(&c.remote.Context, "context", "", "`context` of the kubeconfig (default: the current one)")
	f.StringVar(&c.remote.Server, "server", "", "`URL` of the server")
	f.StringVar(&c.remote.TokenFile, "token-file", "", "`file` with the bearer token for --server")
	f.StringVar(&c.remote.CAFile, "certificate-authority", "", "PEM `file` with CA certificates to verify --server")
	f.StringVar(&c.data, "data", "", "read this data `file`, which must not be in use, instead of connecting to a server")
	options.EncryptionConfig(f, &c.keys)
}

func (c *command) defineObjects(f *flag.FlagSet) {
	both := func(long, short, usage string, target *string) {
		f.StringVar(target, long, "", usage)
		f.StringVar(target, short, "", "a `"+long+"`: short for --"+long)
	}
	both("namespace", "n", "objects in this `namespace` (default: all namespaces, or with TYPE the namespace of the kubeconfig)", &c.namespace)
	both("selector", "l", "objects that match this label `selector` before or after the change", &c.labels)
	f.BoolVar(&c.everywhere, "all-namespaces", false, "objects in all namespaces")
	f.BoolVar(&c.everywhere, "A", false, "short for --all-namespaces")
	f.StringVar(&c.fields, "field-selector", "", "objects that match this field `selector`")
}

func (c *command) defineWhich(f *flag.FlagSet) {
	c.defineObjects(f)
	f.StringVar(&c.since, "since", "", "changes after this `moment`: a duration ago such as 5m, a time (RFC 3339), or a revision")
	f.StringVar(&c.until, "until", "", "changes up to this `moment`")
	f.StringVar(&c.by, "by", "", "changes by this `user`, program or field manager")
	f.BoolVar(&c.follow, "follow", false, "also print changes from now on")
	f.BoolVar(&c.follow, "f", false, "short for --follow")
	f.IntVar(&c.limit, "limit", 0, "maximum number of `changes`; 0 means no limit")
	f.IntVar(&c.tail, "tail", 0, "number of last `changes` to print, of those that the other flags select; 0 means all")
	f.BoolVar(&c.findings, "findings", false, "print the server's findings instead of changes: clients that overwrite each other or repeat their changes")
}

func (c *command) defineHow(f *flag.FlagSet) {
	f.StringVar(&c.output, "output", "", "output `format`: json (one line for each change), yaml or diff")
	f.StringVar(&c.output, "o", "", "a `format`: short for --output")
	c.defineColor(f)
}

func (c *command) defineColor(f *flag.FlagSet) {
	f.BoolVar(&c.colorless, "no-color", false, "never use colors, like $NO_COLOR")
}

// ---- apilet log

func (c *command) runLog(call commandline.Call) (err error) {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	context.AfterFunc(ctx, cancel) // a second signal ends the process
	if !slices.Contains([]string{"", "json", "yaml", "diff"}, c.output) {
		return fmt.Errorf("-o %s: must be json, yaml or diff", c.output)
	}
	q := query{labels: c.labels, fields: c.fields, by: c.by, limit: c.limit, tail: c.tail, follow: c.follow, objects: c.output == "diff" || c.output == "yaml"}
	if q.since, err = parseMoment(c.since); err != nil {
		return fmt.Errorf("--since: %w", err)
	}
	if q.until, err = parseMoment(c.until); err != nil {
		return fmt.Errorf("--until: %w", err)
	}
	switch {
	case c.tail < 0 || c.tail > tailMax:
		return fmt.Errorf("--tail must be between 0 and %d", tailMax)
	case c.tail > 0 && c.limit > 0:
		return errors.New("--tail and --limit are mutually exclusive")
	}
	if c.follow && c.until != "" {
		return errors.New("--follow and --until are mutually exclusive")
	}
	src, err := c.open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, src.close()) }()
	out := c.printer(call.Out)
	if c.findings {
		return c.printFindings(ctx, src, out)
	}
	if err := c.choose(ctx, src, &q, call.Args); err != nil {
		return err
	}
	if q.tail > 0 && q.mixed() {
		return errors.New("--tail: the types are partly namespaced and partly cluster-scoped; add -A, or select fewer types")
	}
	printed := 0
	err = src.log(ctx, &q, func(ch *change) error {
		if err := out.change(ch, c.output); err != nil {
			return err
		}
		if printed++; printed == q.limit {
			return errEnough
		}
		if q.follow {
			return out.w.Flush()
		}
		return nil
	})
	return out.end(ctx, err)
}

// open opens the source that the flags name.
func (c *command) open() (source, error) {
	asked := 0
	for _, flag := range []string{c.remote.Server, c.remote.Kubeconfig, c.data} {
		if flag != "" {
			asked++
		}
	}
	switch {
	case asked > 1:
		return nil, errors.New("--server, --kubeconfig and --data are mutually exclusive")
	case c.data != "":
		return openFile(c.data, c.keys)
	case asked == 0:
		c.useDefault()
	}
	c.remote.Agent = "apilet-log/" + commandline.ThisBuild().String()
	client, err := c.remote.Client()
	if err != nil {
		return nil, err
	}
	return &server{client, "the server"}, nil
}

// useDefault looks for a kubeconfig in the same places as kubectl and uses the first one that
// exists. If there is none, it uses the default server.
func (c *command) useDefault() {
	files := filepath.SplitList(os.Getenv("KUBECONFIG"))
	if home, err := os.UserHomeDir(); err == nil && len(files) == 0 && c.plugin {
		files = []string{filepath.Join(home, ".kube", "config")}
	}
	for _, file := range files {
		if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() {
			c.remote.Kubeconfig = file
			return
		}
	}
	c.remote.Server = defaultServer
}

// choose resolves the types, the name and the namespace from the arguments and flags.
func (c *command) choose(ctx context.Context, src source, q *query, args []string) error {
	if c.everywhere && c.namespace != "" {
		return errors.New("--all-namespaces and --namespace are mutually exclusive")
	}
	q.namespace = c.namespace
	if len(args) == 0 {
		return nil
	}
	types, name, slash := strings.Cut(args[0], "/")
	switch {
	case slash && len(args) > 1:
		return errors.New("the name must be given once, as TYPE/NAME or TYPE NAME")
	case len(args) > 1:
		name = args[1]
	}
	if q.name = name; (slash || len(args) > 1) && name == "" {
		return errors.New("the name must not be empty")
	}
	all, err := src.kinds(ctx)
	if err != nil {
		return err
	}
	for _, word := range strings.Split(types, ",") {
		found, err := findKinds(all, word)
		if err != nil {
			return err
		}
		q.kinds = append(q.kinds, found...)
	}
	namespaced := slices.ContainsFunc(q.kinds, func(k kind) bool { return k.namespaced })
	if q.namespace == "" && !c.everywhere && namespaced {
		q.namespace = cmp.Or(src.namespace(), "default")
	}
	return nil
}

// ---- Moments

// ---- Findings

func (c *command) printFindings(ctx context.Context, src source, out *printer) error {
	list, err := src.findings(ctx)
	if err != nil {
		return err
	}
	for i := range list {
		if err := out.finding(&list[i], c.output); err != nil {
			return err
		}
	}
	if len(list) == 0 && c.output == "" {
		fmt.Fprintln(out.w, "nothing is found: nobody fights, or goes in circles")
	}
	return out.end(ctx, nil)
}

// printer returns a printer for w. It uses colors only if w is a terminal.
func (c *command) printer(w io.Writer) *printer {
	colors := false
	if file, ok := w.(*os.File); ok && !c.colorless && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" {
		info, err := file.Stat()
		colors = err == nil && info.Mode()&os.ModeCharDevice != 0
	}
	return &printer{w: bufio.NewWriter(w), colors: colors}
}

func (c *command) runDiff(call commandline.Call) (err error) {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	context.AfterFunc(ctx, cancel) // a second signal ends the process
	q := query{labels: c.labels, fields: c.fields}
	if q.since, err = parseMoment(call.Args[0]); err != nil {
		return err
	}
	if q.until, err = parseMoment(call.Args[1]); err != nil {
		return err
	}
	src, err := c.open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, src.close()) }()
	if err := c.choose(ctx, src, &q, call.Args[2:]); err != nil {
		return err
	}
	all := q.kinds == nil
	if all {
		if q.kinds, err = src.kinds(ctx); err != nil {
			return err
		}
	}
	d := differ{printer: c.printer(call.Out), src: src, q: &q}
	for i := range q.kinds {
		k := &q.kinds[i]
		// these are the Events of the core group in a second API group
		if all && (!k.namespaced && q.namespace != "" || k.name() == "events.events.k8s.io") {
			continue
		}
		err := d.kind(ctx, k)
		var refused *refusal
		if all && errors.As(err, &refused) && refused.code == http.StatusForbidden {
			fmt.Fprintf(call.Errors, "%s is left out: %s\n", k.name(), refused)
			continue
		}
		if err != nil {
			return d.end(ctx, err)
		}
	}
	if d.found == 0 && d.absent != nil {
		return d.end(ctx, d.absent)
	}
	return d.end(ctx, nil)
}
