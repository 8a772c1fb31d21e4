//go:build linux && (amd64 || arm64)

package e2e

// This file simulates power cuts. The built program serves as a traced child (powertrace_test.go)
// while clients write over HTTP and history is compacted. The test also runs a backup and a
// defragmentation. Then the test creates many disk images. Each image is a possible state after a
// power cut. Synced data is present. Any part of the data that was not synced may be missing, down
// to single sectors of a write, and new file names may be missing. A store must open from each
// image, pass all checks, and accept further writes. For every object it must have a state between
// the last acknowledged one and the last requested one.
//
// To show that the test detects errors, it also replays the recording without some of the syncs, as
// if the program had not made them. It must find data loss each time.
//
//	go test -run TestPowerCut -v ./internal/e2e                               # 25 images, with statistics
//	APILET_POWER_IMAGES=20000 go test -run TestPowerCut -v ./internal/e2e     # more images

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"apilet/internal/apitest"
	"apilet/internal/store"
	"apilet/internal/store/storetest"
)

const (
	powerPage   = 4096
	powerSector = 512
)

// ---- The recorded programs

// A powerWork runs the recorded programs and their clients.
type powerWork struct {
	*diskRecording
	t       *testing.T
	program string
	url     string
}

// recordWork records a server under load, a backup of the running server, and a backup and a
// defragmentation of the file while no server runs. The long form also records another run of the
// server.
func recordWork(t *testing.T, dir string) *diskRecording {
	before := apitest.Rounds(50) // number of steps of each client before the first backup
	p := &powerWork{diskRecording: newDiskRecording(dir), t: t, program: builtProgram(t)}
	data := filepath.Join(dir, "a.db")
	p.place(t, data, storetest.Unpack(t, "../../testdata/golden/format-2.db.gz")) // the first start finds a file with a history
	p.serve(data, func() {
		p.crowd(0, before)
		var backup sync.WaitGroup
		backup.Go(func() { p.backUp("online.db", "--server", p.url) })
		p.crowd(before, before+10)
		backup.Wait()
	})
	p.backUp("stopped.db", "--data", data)
	p.run("defrag", "--data", data)
	if !apitest.Long() {
		return p.diskRecording
	}
	p.serve(data, func() {
		p.crowd(before+10, before+20)
		// These objects exceed the 16 MiB by which the file grows. This is done at the end so that
		// only a few images are large.
		for i := range 18 {
			p.write(fmt.Sprintf("big-%d", i), 0)
		}
	})
	return p.diskRecording
}

// backUp runs the backup command. It adds a line to the recording before and after the command.
func (p *powerWork) backUp(name string, from ...string) {
	p.say("backing-up %s", name)
	p.run(append(append([]string{"backup"}, from...), filepath.Join(p.dir, name))...)
	p.say("backed-up %s", name)
}

// traced returns the command that will be recorded.
func (p *powerWork) traced(log io.Writer, args ...string) *exec.Cmd {
	cmd := exec.Command(p.program, args...)
	cmd.Env = append(os.Environ(), "GODEBUG=asyncpreemptoff=1") // fewer signals mean fewer stops
	cmd.Stdout, cmd.Stderr = log, log
	return cmd
}

// run runs a command and waits until it exits.
func (p *powerWork) run(args ...string) {
	log, tr := &apitest.Log{}, p.newTracer()
	if err := tr.trace(p.traced(log, args...)); err != nil || tr.exit != 0 {
		p.t.Errorf("apilet %q: %v, code %d\n%s", args, err, tr.exit, log)
	}
}

// serve runs a server while work runs. The history is short, so that compaction happens throughout.
func (p *powerWork) serve(data string, work func()) {
	serving := make(chan string, 1)
	log := &serverLog{serving: serving}
	cmd := p.traced(log, "--data="+data, "--listen=127.0.0.1:0", "--log-format=json", "--compaction-interval=200ms", "--history=1s",
		"--disable-admission-plugins=ServiceAccount", "--request-timeout=10m")
	tr, ended := p.newTracer(), make(chan error, 1)
	go func() { ended <- tr.trace(cmd) }()
	select {
	case p.url = <-serving:
	case err := <-ended:
		if forbidden(err) {
			p.t.Skipf("tracing a child is not possible here: %v", err)
		}
		p.t.Fatalf("the server did not start: %v, code %d\n%s", err, tr.exit, log)
	}
	p.say("ready")
	work()
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Error(err)
	}
	if err := <-ended; err != nil || tr.exit != 0 {
		p.t.Fatalf("the recorded server ended with %v, code %d\n%s", err, tr.exit, log)
	}
}

func (p *powerWork) must(err error) {
	if err != nil {
		p.t.Error(err)
	}
}

// crowd runs eight clients concurrently. Each client has its own objects and runs the given range
// of steps.
func (p *powerWork) crowd(from, to int) {
	var clients sync.WaitGroup
	for c := range 8 {
		clients.Go(func() {
			for step := from; step < to; step++ {
				p.write(fmt.Sprintf("c%d-%d", c, step%2), step/2)
			}
		})
	}
	clients.Wait()
}

// powerMethod returns the method of a step. The steps are a create, three updates and a delete.
// After that, the object is created again.
func powerMethod(step int) string {
	return [...]string{http.MethodPost, http.MethodPut, http.MethodPut, http.MethodPut, http.MethodDelete}[step%5]
}

// powerFill returns the content of an object at a step. It usually has a few hundred bytes,
// sometimes several pages.
func powerFill(name string, step int) string {
	size := len(name) * (step + 1) * 13 % 700
	switch {
	case strings.HasPrefix(name, "big"):
		size = 1_000_000
	case step%7 == 3:
		size = 20_000
	}
	return strings.Repeat(string(rune('a'+step%26)), size)
}

// write performs one step over HTTP. It adds a line to the recording before the request and after
// the response.
func (p *powerWork) write(name string, step int) {
	method, url := powerMethod(step), p.url+"/api/v1/namespaces/default/configmaps"
	if method != http.MethodPost {
		url += "/" + name
	}
	body, _ := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": name},
		"data": map[string]any{"step": strconv.Itoa(step), "fill": powerFill(name, step)}})
	r, _ := http.NewRequest(method, url, bytes.NewReader(body))
	if method == http.MethodDelete {
		r.Body = http.NoBody
	}
	r.Header.Set("Content-Type", "application/json")
	p.say("asked %s %d", name, step)
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		p.must(err)
		return
	}
	defer answer.Body.Close()
	var got struct {
		Metadata struct{ ResourceVersion string }
		Message  string
	}
	p.must(json.NewDecoder(answer.Body).Decode(&got))
	if answer.StatusCode/100 != 2 {
		p.t.Errorf("%s %s: %s %s", method, url, answer.Status, got.Message)
	}
	p.say("done %s %d %s", name, step, got.Metadata.ResourceVersion)
}

// ---- The disk after a power cut

// powerFile is the content of a file. Each write replaces the affected pages.
type powerFile struct {
	pages map[int64][]byte
	size  int64
}

func (f *powerFile) clone() *powerFile {
	return &powerFile{pages: maps.Clone(f.pages), size: f.size}
}

func (f *powerFile) apply(ev diskEvent) {
	if ev.op == diskTruncate {
		for n := range f.pages {
			if n*powerPage >= ev.off {
				delete(f.pages, n)
			}
		}
		f.size = ev.off
		return
	}
	for off, b := ev.off, ev.data; len(b) > 0; {
		n, at := off/powerPage, off%powerPage
		page := make([]byte, powerPage)
		copy(page, f.pages[n])
		k := copy(page[at:], b)
		f.pages[n] = page
		off, b = off+int64(k), b[k:]
		f.size = max(f.size, off)
	}
}

// tear applies a random selection of a write's sectors.
func (f *powerFile) tear(ev diskEvent, rnd *rand.Rand) {
	for at := 0; at < len(ev.data); at += powerSector {
		if rnd.IntN(2) == 0 {
			f.apply(diskEvent{op: diskWrite, off: ev.off + int64(at), data: ev.data[at:min(at+powerSector, len(ev.data))]})
		}
	}
}

// save writes the content to a sparse file.
func (f *powerFile) save(path string) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	for n, page := range f.pages {
		if _, err := file.WriteAt(page, n*powerPage); err != nil {
			return err
		}
	}
	return file.Truncate(f.size)
}

// powerDisk simulates a directory on a disk. It contains the durable state and all operations that
// have not been synced yet.
type powerDisk struct {
	files   map[int]*powerFile
	pending map[int][]diskEvent // by file number, or 0 for operations on names
	names   map[string]int
}

func newPowerDisk() *powerDisk {
	return &powerDisk{files: map[int]*powerFile{}, pending: map[int][]diskEvent{}, names: map[string]int{}}
}

// step applies one event. A sync makes the pending operations of its file durable.
func (d *powerDisk) step(ev diskEvent) {
	switch ev.op {
	case diskCreate, diskLink, diskRename, diskRemove:
		d.pending[0] = append(d.pending[0], ev)
	case diskWrite, diskTruncate:
		d.pending[ev.file] = append(d.pending[ev.file], ev)
	case diskSync:
		var left []diskEvent
		for _, old := range d.pending[ev.file] {
			before, synced, after := old.cut(ev)
			d.settle(ev.file, synced)
			for _, part := range []diskEvent{before, after} {
				if len(part.data) > 0 {
					left = append(left, part)
				}
			}
		}
		d.pending[ev.file] = left
	}
}

// cut splits a write at the start and the end of the range of a sync. If the sync has no range, or
// if ev is not a write, all of ev is within it.
func (ev diskEvent) cut(sync diskEvent) (before, within, after diskEvent) {
	within = ev
	if ev.op != diskWrite || sync.until == 0 {
		return before, within, after
	}
	end := ev.off + int64(len(ev.data))
	from, to := min(max(sync.off, ev.off), end), min(max(sync.until, ev.off), end)
	before, after = ev, ev
	before.data = ev.data[:from-ev.off]
	within.off, within.data = from, ev.data[from-ev.off:to-ev.off]
	after.off, after.data = to, ev.data[to-ev.off:]
	return before, within, after
}

func (d *powerDisk) settle(file int, ev diskEvent) {
	if file == 0 {
		rename(d.names, ev)
		return
	}
	if d.files[file] == nil {
		d.files[file] = &powerFile{pages: map[int64][]byte{}}
	}
	d.files[file].apply(ev)
}

func rename(names map[string]int, ev diskEvent) {
	id := names[ev.name]
	switch {
	case ev.op == diskCreate:
		names[ev.name] = ev.file
	case id == 0:
	case ev.op == diskLink:
		names[ev.to] = id
	case ev.op == diskRename:
		delete(names, ev.name)
		names[ev.to] = id
	case ev.op == diskRemove:
		delete(names, ev.name)
	}
}

// cut simulates the power cut. It applies either none, all or some of the pending operations. If a
// write is selected randomly, it may be torn.
func (d *powerDisk) cut(rnd *rand.Rand) (names map[string]int, files map[int]*powerFile) {
	keep := [...]func() bool{
		func() bool { return false }, func() bool { return true },
		func() bool { return rnd.IntN(2) == 0 }, func() bool { return rnd.IntN(4) > 0 },
	}[rnd.IntN(4)]
	names, files = maps.Clone(d.names), map[int]*powerFile{}
	for _, ev := range d.pending[0] {
		if keep() {
			rename(names, ev)
		}
	}
	for _, id := range names {
		file := &powerFile{pages: map[int64][]byte{}}
		if d.files[id] != nil {
			file = d.files[id].clone()
		}
		for _, ev := range d.pending[id] {
			switch {
			case !keep():
			case ev.op == diskWrite && rnd.IntN(3) == 0:
				file.tear(ev, rnd)
			default:
				file.apply(ev)
			}
		}
		files[id] = file
	}
	return names, files
}

// ---- The expected state

// powerClaims is the state that clients knew of at the moment of the power cut.
type powerClaims struct {
	ready       bool
	asked, done map[string]int   // number of each object's last step
	revs        map[string]int64 // the acknowledged revision of "NAME STEP"
	newest      int64
	backups     map[string]*powerClaims // the expected content of each backup; ready once the backup is complete
}

func newPowerClaims() *powerClaims {
	return &powerClaims{asked: map[string]int{}, done: map[string]int{}, revs: map[string]int64{}, backups: map[string]*powerClaims{}}
}

func (c *powerClaims) hear(line string) {
	word := strings.Fields(line)
	switch word[0] {
	case "ready":
		c.ready = true
	case "backing-up":
		c.backups[word[1]] = &powerClaims{done: maps.Clone(c.done), asked: c.asked, revs: c.revs, newest: c.newest}
	case "backed-up":
		c.backups[word[1]].ready = true
		c.backups[word[1]].asked = maps.Clone(c.asked)
	case "asked", "done":
		step, _ := strconv.Atoi(word[2])
		if word[0] == "asked" {
			c.asked[word[1]] = step
			return
		}
		c.done[word[1]] = step
		if len(word) == 4 {
			rev, _ := strconv.ParseInt(word[3], 10, 64)
			c.revs[word[1]+" "+word[2]] = rev
			c.newest = max(c.newest, rev)
		}
	}
}

// verify returns the errors of a file from which a store should open.
func (c *powerClaims) verify(path string) (wrong []string) {
	fault := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	if _, err := os.Stat(path); err != nil {
		if c.ready {
			fault("the file is gone: %v", err)
		}
		return wrong
	}
	rep, err := store.Check(path)
	if err != nil || len(rep.Problems) > 0 {
		fault("check: %v, %v", err, rep.Problems)
		return wrong
	}
	if rep.Revision < c.newest {
		fault("revision %d, acknowledged %d", rep.Revision, c.newest)
	}
	st, err := store.Open(path, store.Options{Fatal: func(err error) { fault("fatal: %v", err) }})
	if err != nil {
		fault("open: %v", err)
		return wrong
	}
	defer st.Close()
	st.File.Db.NoSync = true
	found, err := powerFound(st)
	if err != nil {
		fault("list: %v", err)
	}
	for name := range c.asked {
		if what := c.judge(name, found[name]); what != "" {
			fault("%s: %s", name, what)
		}
		delete(found, name)
	}
	for name := range found {
		fault("%s: nobody asked for it", name)
	}
	for _, what := range c.judgeLog(st) {
		fault("%s", what)
	}
	next := st.Revision() + 1
	if rec, err := storetest.Write(st, store.OpCreate, "//pods/default/next", 0, ""); err != nil || rec.Rev != next {
		fault("the next write: revision %d, want %d (%v)", rec.Rev, next, err)
	}
	return wrong
}

// powerFound returns the clients' objects by name.
func powerFound(st *store.Store) (map[string]*store.Record, error) {
	found := map[string]*store.Record{}
	for sp, c := (store.Span{Prefix: "//configmaps/default/"}), new(store.Chunk); ; sp.Start = c.Next {
		if err := st.Chunk(sp, c); err != nil {
			return nil, err
		}
		for _, r := range c.Records {
			r.JSON = bytes.Clone(r.JSON)
			if name := r.Key[len(sp.Prefix):]; name != "kube-root-ca.crt" {
				found[name] = &r
			}
		}
		if c.Next == "" {
			return found, nil
		}
	}
}

// judge compares an object with the claims about it. r is nil if the object does not exist.
func (c *powerClaims) judge(name string, r *store.Record) string {
	done, any := c.done[name]
	if !any {
		done = -1
	}
	if r == nil {
		for step := done; step <= c.asked[name]; step++ {
			if step < 0 || powerMethod(step) == http.MethodDelete {
				return ""
			}
		}
		return fmt.Sprintf("is gone, step %d was acknowledged", done)
	}
	step, what := c.judgeRecord(name, r)
	if what == "" && (step < done || step > c.asked[name]) {
		what = fmt.Sprintf("is at step %d, acknowledged %d, asked %d", step, done, c.asked[name])
	}
	return what
}

// judgeRecord returns the step that a version belongs to, and an error text if it is not as the
// client sent it.
func (c *powerClaims) judgeRecord(name string, r *store.Record) (step int, what string) {
	_, data, _ := bytes.Cut(r.JSON, []byte(`"data":{"fill":"`))
	end := bytes.IndexByte(data, '"')
	digits, _, ok := bytes.Cut(bytes.TrimPrefix(data[max(end, 0):], []byte(`","step":"`)), []byte(`"`))
	step, err := strconv.Atoi(string(digits))
	if err != nil || !ok || string(data[:end]) != powerFill(name, step) {
		return 0, fmt.Sprintf("revision %d is not what was sent", r.Rev)
	}
	if rev := c.revs[fmt.Sprintf("%s %d", name, step)]; rev != 0 && rev != r.Rev && !r.Deleted {
		return 0, fmt.Sprintf("step %d has revision %d, acknowledged as %d", step, r.Rev, rev)
	}
	return step, ""
}

// judgeLog reads the history. The steps of each object must be consecutive, and a client must have
// requested them.
func (c *powerClaims) judgeLog(st *store.Store) (wrong []string) {
	for at := st.Compacted(); at < st.Revision(); {
		evs, upTo, err := st.Events("//configmaps/", at, 100, nil)
		if err != nil {
			return append(wrong, fmt.Sprintf("events after %d: %v", at, err))
		}
		for _, ev := range evs {
			name, ours := strings.CutPrefix(ev.Key, "//configmaps/default/")
			if !ours { // an object of the golden file
				continue
			}
			step, what := c.judgeRecord(name, &ev.Record)
			if asked, any := c.asked[name]; what == "" && (!any || step > asked) && name != "kube-root-ca.crt" {
				what = "nobody asked for it"
			}
			if what != "" && name != "kube-root-ca.crt" {
				wrong = append(wrong, fmt.Sprintf("event %d of %s: %s", ev.Rev, name, what))
			}
		}
		at = upTo
	}
	return wrong
}

// ---- The test

// A powerCampaign replays a recording and cuts the power at chosen events.
type powerCampaign struct {
	dir    string // where the recording was made
	events []diskEvent
	rnd    *rand.Rand
	images string // folder of the images

	cuts, opened, backups, absent int
	wrong                         []string
	failed                        int
}

// play replays the recording. It cuts the power before the chosen events, and chosen contains the
// number of cuts. It ignores the syncs for which skip returns true.
func (p *powerCampaign) play(chosen map[int]int, skip func(n int, ev diskEvent) bool) {
	disk, claims := newPowerDisk(), newPowerClaims()
	for n, ev := range p.events {
		for range chosen[n] {
			p.cut(n, disk, claims)
		}
		if ev.op == diskSaid {
			claims.hear(ev.name)
		} else if skip == nil || ev.op != diskSync || !skip(n, ev) {
			disk.step(ev)
		}
	}
}

// cut creates an image and verifies the data file and the backups.
func (p *powerCampaign) cut(n int, disk *powerDisk, claims *powerClaims) {
	names, files := disk.cut(p.rnd)
	p.cuts++
	what := p.look(names, files, "a.db", claims)
	for name, claim := range claims.backups {
		what = append(what, p.look(names, files, name, claim)...)
	}
	if len(what) > 0 {
		p.failed++
		p.wrong = append(p.wrong, fmt.Sprintf("cut before event %d of %d: %s", n, len(p.events), strings.Join(what, "; ")))
	}
}

func (p *powerCampaign) look(names map[string]int, files map[int]*powerFile, name string, claims *powerClaims) []string {
	path := filepath.Join(p.images, name)
	for _, path := range []string{path, path + "-wal"} {
		os.Remove(path)
		defer os.Remove(path)
	}
	if id := names[filepath.Join(p.dir, name+"-wal")]; id != 0 {
		if err := files[id].save(path + "-wal"); err != nil {
			return []string{err.Error()}
		}
	}
	if id := names[filepath.Join(p.dir, name)]; id == 0 {
		p.absent++
	} else if err := files[id].save(path); err != nil {
		return []string{err.Error()}
	} else if name == "a.db" {
		p.opened++
	} else {
		p.backups++
	}
	var wrong []string
	for _, what := range claims.verify(path) {
		wrong = append(wrong, name+": "+what)
	}
	return wrong
}

// logs returns the files that had the name of the data file's log at some time.
func (p *powerCampaign) logs() map[int]bool {
	logs, names := map[int]bool{}, map[string]int{}
	for _, ev := range p.events {
		switch ev.op {
		case diskCreate, diskLink, diskRename, diskRemove:
			rename(names, ev)
			if id := names[filepath.Join(p.dir, "a.db-wal")]; id != 0 {
				logs[id] = true
			}
		}
	}
	return logs
}

// choose distributes n cuts over the recording up to the event at which the file becomes large. One
// in ten is next to an event that changes a file's size or name, anywhere in the recording.
func (p *powerCampaign) choose(n int) map[int]int {
	var rare []int
	large := len(p.events)
	for i, ev := range p.events {
		switch ev.op {
		case diskCreate, diskLink, diskRename, diskRemove, diskTruncate:
			rare = append(rare, i, i+1)
		case diskSaid:
			if strings.HasPrefix(ev.name, "asked big") {
				large = min(large, i)
			}
		}
	}
	chosen := map[int]int{}
	for i := 0; i < n; {
		at := p.rnd.IntN(large)
		if i%10 == 0 {
			at = rare[p.rnd.IntN(len(rare))]
		} else if ev := p.events[at]; ev.op == diskWrite && !bytes.ContainsFunc(ev.data, func(r rune) bool { return r != 0 }) {
			continue // a write of zeros, which only extends the log
		}
		chosen[at]++
		i++
	}
	return chosen
}

// recordPower runs the programs and returns the recording.
func recordPower(t *testing.T, rnd *rand.Rand) *powerCampaign {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	rec := recordWork(t, dir)
	if t.Failed() {
		t.FailNow()
	}
	return &powerCampaign{dir: dir, events: rec.events, rnd: rnd, images: t.TempDir()}
}

func TestPowerCutLosesNothing(t *testing.T) {
	t.Parallel()
	images, _ := strconv.Atoi(os.Getenv("APILET_POWER_IMAGES"))
	if images == 0 {
		images = 25
		if apitest.Long() {
			images = 200
		}
	}
	seed := rand.Uint64()
	p := recordPower(t, rand.New(rand.NewPCG(seed, 1)))
	counts := map[diskOp]int{}
	for _, ev := range p.events {
		counts[ev.op]++
	}
	t.Logf("seed %d; recorded %d writes, %d changes of size, %d syncs, %d names", seed, counts[diskWrite], counts[diskTruncate], counts[diskSync],
		counts[diskCreate]+counts[diskLink]+counts[diskRename]+counts[diskRemove])
	p.play(p.choose(images), nil)
	t.Logf("%d power cuts: %d data files and %d backups opened, checked clean, lost nothing (%d were not there yet); %d failed",
		p.cuts, p.opened, p.backups, p.absent, p.failed)
	for _, what := range p.wrong[:min(len(p.wrong), 10)] {
		t.Error(what)
	}
	t.Run("and a missing sync would show", func(t *testing.T) { missingSyncs(t, p) })
}

// missingSyncs replays the recording without some syncs, as if the programs had not made them, and
// checks that the loss is detected for each kind of sync. If only a few images show the loss, the
// kind is only tested in the long form.
func missingSyncs(t *testing.T, p *powerCampaign) {
	logs := p.logs()
	afterHead := func(n int) bool { // reports whether the sync follows the write of the log's head
		for i := n - 1; i > 0; i-- {
			if ev := p.events[i]; ev.op == diskWrite && ev.file == p.events[n].file {
				return ev.off < 2*powerPage
			}
		}
		return false
	}
	for name, skip := range map[string]func(n int, ev diskEvent) bool{
		"no sync at all":             func(int, diskEvent) bool { return true },
		"those of the data file":     func(n int, ev diskEvent) bool { return ev.file != 0 && !logs[ev.file] },
		"those of the log's records": func(n int, ev diskEvent) bool { return logs[ev.file] && !afterHead(n) },
		"those of the log's heads":   func(n int, ev diskEvent) bool { return logs[ev.file] && afterHead(n) },
		"names left to chance":       func(_ int, ev diskEvent) bool { return ev.file == 0 },
	} {
		if !apitest.Long() && name != "no sync at all" && name != "those of the log's records" {
			continue
		}
		m := &powerCampaign{dir: p.dir, events: p.events, rnd: p.rnd, images: p.images}
		for m.cuts < 800 && m.failed == 0 { // some kinds show in few images only
			m.play(m.choose(20), skip)
		}
		t.Logf("%s: %d of %d images show it", name, m.failed, m.cuts)
		if m.failed == 0 {
			t.Errorf("%s: nothing noticed in %d images", name, m.cuts)
		}
	}
}
