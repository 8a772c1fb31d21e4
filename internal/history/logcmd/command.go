// Package logcmd is the commands that tell what became of objects: `apilet log`, one line a change, and `apilet diff`, what is different
// between two moments. Called as kubectl-apilet the program has these two, and kubectl finds it as a plug-in (kubectl apilet log ...).
//
//	rows := logcmd.Commands() // for the table of package commandline
//
// Both ask a server (server.go: /debug/history, and any path of the API under /at/MOMENT/), or read a data file that no server has open
// (file.go). Types are named as for kubectl (types.go); line.go writes a change as a line, diff.go a difference.
//
// Invariant: names and values come from whoever may write, and no byte of theirs reaches a terminal that it would obey (plain).
package logcmd

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"apilet/internal/changes"
	"apilet/internal/commandline"
	"apilet/internal/findings"
	"apilet/internal/kubeconfig"
)

// PluginName is what the program is called as a plug-in of kubectl.
const PluginName = "kubectl-apilet"

const (
	defaultServer = "http://127.0.0.1:8080"
	tailMax       = 5000 // a server's bound
)

// A command is what the flags say.
type command struct {
	plugin bool

	remote kubeconfig.Remote
	data   string

	namespace               string
	everywhere              bool
	labels, fields          string
	since, until, by        string
	limit, tail             int
	follow, told, colorless bool
	output                  string
}

// Commands are the rows for the table of commands.
func Commands() []commandline.Command { return (&command{}).rows() }

// Plugin is the program as a plug-in of kubectl.
func Plugin(version func(io.Writer) error) *commandline.Program {
	missing := commandline.Command{Counts: []int{0}, What: "say which commands there are", Run: func(commandline.Call) error {
		return errors.New("a command is missing: `kubectl apilet help` lists them")
	}}
	return &commandline.Program{Name: "kubectl apilet", About: "What became of the objects of an apilet server, as a plug-in of kubectl.", Version: version,
		Commands: func() []commandline.Command {
			return append([]commandline.Command{missing}, (&command{plugin: true}).rows()...)
		}}
}

func (c *command) rows() []commandline.Command {
	where := commandline.FlagGroup{Title: "Where to ask (without any of them: " + c.fallback() + ")", Define: c.defineWhere}
	return []commandline.Command{
		{Name: "log", Args: "[TYPE[,TYPE] [NAME]]", Counts: []int{0, 1, 2}, What: "print what became of objects: one line a change, with who changed what",
			Groups: []commandline.FlagGroup{{Title: "Which changes", Define: c.defineWhich}, {Title: "How they are printed", Define: c.defineHow}, where}, Run: c.runLog},
		{Name: "diff", Args: "REV1 REV2 [TYPE[,TYPE] [NAME]]", Counts: []int{2, 3, 4}, What: "print what is different between two moments, each a revision, a time, -5m or now",
			Groups: []commandline.FlagGroup{{Title: "Which objects", Define: c.defineObjects}, {Title: "How they are printed", Define: c.defineColor}, where}, Run: c.runDiff},
	}
}

// fallback says who is asked where no flag does.
func (c *command) fallback() string {
	if c.plugin {
		return "the kubeconfig that kubectl takes"
	}
	return "$KUBECONFIG, else " + defaultServer
}

func (c *command) defineWhere(f *flag.FlagSet) {
	f.StringVar(&c.remote.Kubeconfig, "kubeconfig", "", "ask the server of this `file`'s current context, as its user")
	f.StringVar(&c.remote.Context, "context", "", "another `context` of the kubeconfig")
	f.StringVar(&c.remote.Server, "server", "", "the `URL` of the server to ask")
	f.StringVar(&c.remote.TokenFile, "token-file", "", "a `file` with the bearer token to show to --server")
	f.StringVar(&c.remote.CAFile, "certificate-authority", "", "PEM `file` of the authorities that may vouch for --server")
	f.StringVar(&c.data, "data", "", "read this data `file`, which no server may have open, instead of asking one")
}

func (c *command) defineObjects(f *flag.FlagSet) {
	both := func(long, short, usage string, target *string) {
		f.StringVar(target, long, "", usage)
		f.StringVar(target, short, "", "a `"+long+"`: short for --"+long)
	}
	both("namespace", "n", "objects in this `namespace`; without it those of all, or, of a type that is named, those of the kubeconfig's (else default)", &c.namespace)
	both("selector", "l", "objects that this label `selector` matches, before or after", &c.labels)
	f.BoolVar(&c.everywhere, "all-namespaces", false, "objects in all namespaces")
	f.BoolVar(&c.everywhere, "A", false, "short for --all-namespaces")
	f.StringVar(&c.fields, "field-selector", "", "objects that this field `selector` matches")
}

func (c *command) defineWhich(f *flag.FlagSet) {
	c.defineObjects(f)
	f.StringVar(&c.since, "since", "", "changes after this `moment`: 5m ago, a time (RFC 3339), or a revision")
	f.StringVar(&c.until, "until", "", "changes up to this `moment`")
	f.StringVar(&c.by, "by", "", "changes of this `user`, or of a program or field manager of this name")
	f.BoolVar(&c.follow, "follow", false, "go on with what happens from now on")
	f.BoolVar(&c.follow, "f", false, "short for --follow")
	f.IntVar(&c.limit, "limit", 0, "print so many `changes` at most; 0 is no limit")
	f.IntVar(&c.tail, "tail", 0, "print the last so many `changes`, of those that the other flags ask for; 0 is all")
	f.BoolVar(&c.told, "findings", false, "instead of changes, print what the server has noticed: writers that fight, or go in circles")
}

func (c *command) defineHow(f *flag.FlagSet) {
	f.StringVar(&c.output, "output", "", "`format`: json (a line each), yaml or diff instead of lines")
	f.StringVar(&c.output, "o", "", "a `format`: short for --output")
	c.defineColor(f)
}

func (c *command) defineColor(f *flag.FlagSet) {
	f.BoolVar(&c.colorless, "no-color", false, "no colours on a terminal either; as does $NO_COLOR")
}

// ---- apilet log

// A query is which changes are wanted.
type query struct {
	kinds          []kind // nil: all
	namespace      string // "": all
	name           string
	labels, fields string
	since, until   moment
	by             string
	limit          int
	tail           int // the last so many; 0: all
	follow         bool
	objects        bool // whole objects, before and after
}

// A source is where changes and objects come from: a server or a file.
type source interface {
	kinds(ctx context.Context) ([]kind, error)
	namespace() string // that the user means without saying so
	log(ctx context.Context, q *query, each func(*change) error) error
	list(ctx context.Context, at moment, k *kind, q *query, each func(object) error) error
	findings(ctx context.Context) ([]findings.Finding, error)
	close() error
}

// errEnough ends a walk that has found all that is wanted.
var errEnough = errors.New("enough")

func (c *command) runLog(call commandline.Call) (err error) {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	context.AfterFunc(ctx, cancel) // the second signal ends the process
	if !slices.Contains([]string{"", "json", "yaml", "diff"}, c.output) {
		return fmt.Errorf("-o %s: it is none of json, yaml and diff", c.output)
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
		return fmt.Errorf("--tail is no number between 0 and %d", tailMax)
	case c.tail > 0 && c.limit > 0:
		return errors.New("--tail is about the last changes and --limit about the first: one of them")
	}
	if c.follow && c.until != "" {
		return errors.New("--follow has no --until")
	}
	src, err := c.open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, src.close()) }()
	out := c.printer(call.Out)
	if c.told {
		return c.printFindings(ctx, src, out)
	}
	if err := c.choose(ctx, src, &q, call.Args); err != nil {
		return err
	}
	if q.tail > 0 && q.mixed() {
		return errors.New("--tail: some of these types have namespaces and some have none, which are not counted together: name -A, or fewer types")
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

// open finds out whom to ask.
func (c *command) open() (source, error) {
	asked := 0
	for _, flag := range []string{c.remote.Server, c.remote.Kubeconfig, c.data} {
		if flag != "" {
			asked++
		}
	}
	switch {
	case asked > 1:
		return nil, errors.New("--server, --kubeconfig and --data each name another place: one of them")
	case c.data != "":
		return openFile(c.data)
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

// useDefault takes the first kubeconfig that is there of those that kubectl would merge.
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

// choose finds the types that the arguments name, and which namespace is meant.
func (c *command) choose(ctx context.Context, src source, q *query, args []string) error {
	if c.everywhere && c.namespace != "" {
		return errors.New("--all-namespaces has no --namespace")
	}
	q.namespace = c.namespace
	if len(args) == 0 {
		return nil
	}
	types, name, slash := strings.Cut(args[0], "/")
	switch {
	case slash && len(args) > 1:
		return errors.New("the name stands behind TYPE/ or behind TYPE, and once")
	case len(args) > 1:
		name = args[1]
	}
	if q.name = name; (slash || len(args) > 1) && name == "" {
		return errors.New("the name is empty")
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

// A moment is a revision, a time, or one before now; the zero moment is none.
type moment struct {
	revision int64
	text     string // of a time as a server takes it, "" for a revision
	time     time.Time
}

func (m moment) isZero() bool { return m == moment{} }

// name is the moment as people call it.
func (m moment) name() string {
	if m.text == "-0s" {
		return "now"
	}
	return m.String()
}

// String is the moment as a server takes it.
func (m moment) String() string {
	if m.text != "" {
		return m.text
	}
	return strconv.FormatInt(m.revision, 10)
}

var momentForms = regexp.MustCompile(`^[0-9]{1,19}$`)

// parseMoment understands 1234, 5m, -5m, now and 2026-11-23T10:00:00Z.
func parseMoment(text string) (moment, error) {
	if text == "" {
		return moment{}, nil
	}
	if momentForms.MatchString(text) {
		rev, err := strconv.ParseInt(text, 10, 64)
		if err != nil || rev == 0 {
			return moment{}, fmt.Errorf("%q is no revision", text)
		}
		return moment{revision: rev}, nil
	}
	if text == "now" {
		text = "0s"
	}
	if ago, err := time.ParseDuration(strings.TrimPrefix(text, "-")); err == nil && ago >= 0 {
		return moment{text: "-" + ago.String(), time: time.Now().Add(-ago)}, nil
	}
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil || at.Year() < 1970 || at.Year() > 9999 {
		return moment{}, fmt.Errorf("%q is no revision, no time (2026-11-23T10:00:00Z) and no duration (5m)", text)
	}
	return moment{text: at.UTC().Format(time.RFC3339Nano), time: at}, nil
}

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

// printer writes to a terminal or to something else.
func (c *command) printer(w io.Writer) *printer {
	colors := false
	if file, ok := w.(*os.File); ok && !c.colorless && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" {
		info, err := file.Stat()
		colors = err == nil && info.Mode()&os.ModeCharDevice != 0
	}
	return &printer{w: bufio.NewWriter(w), colors: colors}
}

// A change is a line of /debug/history.
type change struct {
	Revision  int64            `json:"revision,omitempty"`
	Time      string           `json:"time,omitempty"`
	Verb      string           `json:"verb,omitempty"`
	Type      string           `json:"type,omitempty"` // ADDED, MODIFIED, DELETED
	Group     string           `json:"group"`
	Version   string           `json:"version,omitempty"`
	Resource  string           `json:"resource,omitempty"`
	Sub       string           `json:"subresource,omitempty"`
	Kind      string           `json:"kind,omitempty"`
	Namespace string           `json:"namespace,omitempty"`
	Name      string           `json:"name,omitempty"`
	UID       string           `json:"uid,omitempty"`
	User      string           `json:"user,omitempty"`
	Agent     string           `json:"agent,omitempty"`
	Manager   string           `json:"manager,omitempty"`
	Changes   []changes.Change `json:"changes,omitempty"`
	More      int              `json:"more,omitempty"` // changes that are left out
	Old       json.RawMessage  `json:"old,omitempty"`
	New       json.RawMessage  `json:"new,omitempty"`

	raw []byte // the line
}

// An object is one of a list.
type object struct {
	namespace, name, revision string
	json                      []byte
}
