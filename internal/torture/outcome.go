package torture

import (
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/tidwall/gjson"

	"apilet/internal/history"
)

// An outcome is all that is known of a run when it is over.
type outcome struct {
	lines       []history.Line // what has happened
	requests    []passed       // what the controller asked for
	ignored     []string
	state       state
	quietStates []quietState // at the workload's quiet points, in order
	took        time.Duration
	reached     bool   // the plan's point
	quiet       bool   // at the end
	stuck       error  // what of the workload could not be done
	process     string // what the controller's process did that it should not
	said        string // by the controller, the last of it
	began       time.Time
	pointAt     time.Time  // when the plan's point was reached
	edited      string     // the key of what somebody else edited
	retries     int        // writes in the last second
	want        *reference // that it was compared with, on its way; nil in plain runs

	mu  sync.Mutex // guards odd
	odd string     // what became of a plan that should not
}

// noteOdd says what a plan could not do.
func (o *outcome) noteOdd(what string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.odd = what
}

// last is the newest line about an object; nil when there is none.
func (o *outcome) last(key string) *history.Line {
	for i := len(o.lines) - 1; i >= 0; i-- {
		if keyOfLine(&o.lines[i]) == key {
			return &o.lines[i]
		}
	}
	return nil
}

// makerOf is who has made an object, "" for what was there before.
func (o *outcome) makerOf(key string) string {
	for i := range o.lines {
		if line := &o.lines[i]; keyOfLine(line) == key && line.Type == "ADDED" {
			return whoWrote(line)
		}
	}
	return ""
}

// alias is a key whose name is called as in every run: that of an object with a generated name is what it was generated from.
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

// oneLine is a text for a table.
func oneLine(text string, most int) string {
	text = spaces.ReplaceAllString(strings.TrimSpace(text), " ")
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most-3]) + "..."
	}
	return text
}
