package torture

import (
	"fmt"
	"strings"
)

// This file writes the story of a wrong plan as an HTML page. The page is a single file without
// external resources or scripts, so that it can be stored by a CI, sent by mail and opened from a
// disk. It is not a panel of /debug/ui/, because the servers of the test no longer exist when it is
// read.

// pointHere is the entry in a timeline that marks the point of the plan.
const pointHere = "──▶ here"

const pageHead = `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>%[1]s</title>
<style>
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 110rem; padding: 0 1rem }
h1 { font-size: 1.3rem } h2 { font-size: 1.05rem; margin-top: 2rem }
li.wrong { color: light-dark(#a40000, #ff8a80) }
table { border-collapse: collapse; width: 100%%; table-layout: fixed; font: 13px/1.4 ui-monospace, monospace }
th { text-align: left; font-family: system-ui, sans-serif; position: sticky; top: 0; background: Canvas }
td, th { padding: .15rem .5rem; vertical-align: top; overflow-wrap: anywhere }
td:first-child, th:first-child { width: 4.5rem } td:nth-child(3), th:nth-child(3) { width: 4.5rem; border-left: 1px solid light-dark(#bbb, #555) }
td.t { color: GrayText; text-align: right }
tr.only td:not(:empty):not(.t) { background: light-dark(#fff3cd, #4a3b00) }
tr.point td { background: light-dark(#ffd6d6, #5c1a1a); font-weight: bold }
.user { color: light-dark(#00548a, #8ecaff) } .server { color: GrayText }
pre { overflow-x: auto; padding: .7rem; background: light-dark(#f4f4f4, #222) }
</style>
</head>
<body>
<h1>%[1]s</h1>
`

// html returns the story for a browser.
func (s *story) html() string {
	var b strings.Builder
	fmt.Fprintf(&b, pageHead, xmlText(s.title))
	fmt.Fprintf(&b, "<h2>%s</h2>\n<ul>\n", xmlText(s.heading()))
	for _, why := range s.why {
		fmt.Fprintf(&b, "<li class=\"wrong\">%s</li>\n", xmlText(oneLine(why, 400)))
	}
	b.WriteString("</ul>\n")
	for _, note := range s.notes {
		fmt.Fprintf(&b, "<p>%s</p>\n", xmlText(note))
	}
	b.WriteString("<h2>What happened</h2>\n<p>Seconds, who, what. What is in one column alone is marked, and the point where something was done to the controller.</p>\n" +
		"<table>\n<thead><tr><th scope=\"col\">s</th><th scope=\"col\">normally</th><th scope=\"col\">s</th><th scope=\"col\">here</th></tr></thead>\n<tbody>\n")
	for _, pair := range s.pairs {
		class := ""
		switch {
		case pair[1].what == pointHere:
			class = ` class="point"`
		case pair[0].what == "" || pair[1].what == "":
			class = ` class="only"`
		}
		fmt.Fprintf(&b, "<tr%s>%s%s</tr>\n", class, pair[0].cells(), pair[1].cells())
	}
	b.WriteString("</tbody>\n</table>\n")
	if s.said != "" {
		fmt.Fprintf(&b, "<h2>The last that the controller said</h2>\n<pre>%s</pre>\n", xmlText(s.said))
	}
	b.WriteString("</body>\n</html>\n")
	return b.String()
}

// cells returns the two table cells of an entry.
func (e entry) cells() string {
	who, _, _ := strings.Cut(e.what, " ")
	if who != byUser && who != byServer {
		who = byController
	}
	return fmt.Sprintf(`<td class="t">%s</td><td class="%s">%s</td>`, xmlText(strings.TrimSpace(e.time)), who, xmlText(e.what))
}
