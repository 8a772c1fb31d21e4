package torture

import (
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/tidwall/gjson"

	"apilet/internal/history"
)

// An outcome contains all the results of a finished run.
type outcome struct {
	lines       []history.Line // all recorded writes
	requests    []passed       // the controller's requests
	ignored     []string
	state       state
	quietStates []quietState // the states at each quiet point of the workload
	took        time.Duration
	reached     bool   // the plan's point was reached
	quiet       bool   // the controller was quiet at the end
	stuck       error  // the error from a step that failed
	process     string // misbehavior of the controller's process
	said        string // the end of the controller's output
	began       time.Time
	pointAt     time.Time  // when the plan's point was reached
	edited      string     // key of the object edited by another client
	retries     int        // number of writes in the last second
	want        *reference // the reference used during the run; nil in plain runs

	mu  sync.Mutex // guards odd
	odd string     // an action of the plan that failed
}

// noteOdd records an action of the plan that failed.
func (o *outcome) noteOdd(what string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.odd = what
}

// last returns the newest line about an object, or nil.
func (o *outcome) last(key string) *history.Line {
	for i := len(o.lines) - 1; i >= 0; i-- {
		if keyOfLine(&o.lines[i]) == key {
			return &o.lines[i]
		}
	}
	return nil
}

// makerOf returns the author of an object's creation, or "" if the object existed before.
func (o *outcome) makerOf(key string) string {
	for i := range o.lines {
		if line := &o.lines[i]; keyOfLine(line) == key && line.Type == "ADDED" {
			return whoWrote(line)
		}
	}
	return ""
}

// alias returns a key that does not depend on the run. If the name of the object was generated, it
// is replaced with its prefix.
func (o *outcome) alias(key string) string {
	for i := range o.lines {
		if line := &o.lines[i]; keyOfLine(line) == key {
			return aliasOf(line)
		}
	}
	return key
}

func aliasOf(line *history.Line) string {
	key := keyOfLine(line)
	doc := line.New
	if len(doc) == 0 {
		doc = line.Old
	}
	if generate := gjson.GetBytes(doc, "metadata.generateName").String(); generate != "" {
		key = strings.TrimSuffix(key, line.Name) + generate + "*"
	}
	return uidPattern.ReplaceAllString(key, "(uid)")
}

var spaces = regexp.MustCompile(`\s+`)

// oneLine returns a text on one line, cut to most characters.
func oneLine(text string, most int) string {
	text = spaces.ReplaceAllString(strings.TrimSpace(text), " ")
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most-3]) + "..."
	}
	return text
}
