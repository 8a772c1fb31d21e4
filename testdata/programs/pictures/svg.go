package pictures

// This file draws rectangles, lines and texts in SVG, in colours for light and dark pages.

import (
	"fmt"
	"html"
	"strings"
)

// A drawing collects the elements of a picture. Lengths are measured in pixels. The origin is in
// the top left corner.
type drawing struct {
	width, height int
	title         string // for screen readers
	parts         strings.Builder
}

func newDrawing(width, height int, title string) *drawing {
	return &drawing{width: width, height: height, title: title}
}

// style defines the classes. The colours c0 to c5 also differ in brightness.
const style = `text{font:13px system-ui,sans-serif;fill:#24292f}.small{font-size:11px}.bold{font-weight:600}.mid{text-anchor:middle}.end{text-anchor:end}
.mono{font-family:ui-monospace,monospace;font-size:11px}
.line{stroke:#57606a;fill:none}.thin{stroke:#d0d7de;fill:none}.thick{stroke-width:2}.dash{stroke-dasharray:4 3}.box{stroke:#57606a;fill:none}
.c0{fill:#ddf4ff}.c1{fill:#0969da}.c2{fill:#bc4c00}.c3{fill:#8250df}.c4{fill:#2da44e}.c5{fill:#d0d7de}
.s1{stroke:#0969da;fill:none}.s2{stroke:#d1570a;fill:none}.s3{stroke:#8250df;fill:none}.s4{stroke:#1a7f37;fill:none}
.on{fill:#fff}.faint{opacity:.35}
@media (prefers-color-scheme:dark){text{fill:#e6edf3}.line,.box{stroke:#8b949e}.thin{stroke:#30363d}.c0{fill:#0c2d6b}.c1{fill:#1f6feb}.c2{fill:#bd561d}
.c3{fill:#8957e5}.c4{fill:#238636}.c5{fill:#30363d}.s1{stroke:#58a6ff}.s2{stroke:#f0883e}.s3{stroke:#bc8cff}.s4{stroke:#3fb950}}`

func (d *drawing) rect(x, y, w, h float64, class string) {
	fmt.Fprintf(&d.parts, "<rect x=\"%s\" y=\"%s\" width=\"%s\" height=\"%s\" class=\"%s\"/>\n", px(x), px(y), px(w), px(h), class)
}

func (d *drawing) text(x, y float64, class, format string, args ...any) {
	fmt.Fprintf(&d.parts, "<text x=\"%s\" y=\"%s\" class=\"%s\">%s</text>\n", px(x), px(y), class, html.EscapeString(fmt.Sprintf(format, args...)))
}

func (d *drawing) line(x1, y1, x2, y2 float64, class string) {
	fmt.Fprintf(&d.parts, "<line x1=\"%s\" y1=\"%s\" x2=\"%s\" y2=\"%s\" class=\"%s\"/>\n", px(x1), px(y1), px(x2), px(y2), class)
}

// path connects points.
func (d *drawing) path(points [][2]float64, class string) {
	d.parts.WriteString("<polyline points=\"")
	for i, p := range points {
		if i > 0 {
			d.parts.WriteByte(' ')
		}
		d.parts.WriteString(px(p[0]) + "," + px(p[1]))
	}
	fmt.Fprintf(&d.parts, "\" class=\"%s\"/>\n", class)
}

// px formats a length with at most one decimal.
func px(v float64) string { return strings.TrimSuffix(fmt.Sprintf("%.1f", v), ".0") }

func (d *drawing) String() string {
	return fmt.Sprintf("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %[1]d %[2]d\" role=\"img\">\n"+
		"<title>%s</title>\n<style>%s</style>\n%s</svg>\n", d.width, d.height, html.EscapeString(d.title), style, d.parts.String())
}

// A plot is a coordinate system in a part of a drawing.
type plot struct {
	d          *drawing
	x, y, w, h float64 // position and size
	right, top float64 // maximum values; the minimum is always zero
}

func (p plot) at(x, y float64) [2]float64 {
	return [2]float64{p.x + x/p.right*p.w, p.y + p.h - y/p.top*p.h}
}

// axes draws the axes and adds a mark for each step.
func (p plot) axes(stepX, stepY float64, nameX, nameY string) {
	for v := 0.0; v <= p.right+1e-9; v += stepX {
		at := p.at(v, 0)
		p.d.line(at[0], p.y, at[0], p.y+p.h, "thin")
		p.d.text(at[0], p.y+p.h+15, "small mid", "%g", v)
	}
	for v := 0.0; v <= p.top+1e-9; v += stepY {
		at := p.at(0, v)
		p.d.line(p.x, at[1], p.x+p.w, at[1], "thin")
		p.d.text(p.x-6, at[1]+4, "small end", "%g", v)
	}
	p.d.text(p.x+p.w, p.y+p.h+30, "small end", "%s", nameX)
	p.d.text(p.x, p.y-8, "small", "%s", nameY)
}

// steps draws values that are constant within equal parts of the width.
func (p plot) steps(values []float64, class string) {
	var points [][2]float64
	for i, v := range values {
		points = append(points, p.at(float64(i)/float64(len(values))*p.right, v), p.at(float64(i+1)/float64(len(values))*p.right, v))
	}
	p.d.path(points, class)
}
