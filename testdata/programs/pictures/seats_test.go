package pictures

// This file draws how the number of seats is determined: the effect of fixed numbers on goodput and
// on a light request, and the controller's reaction to changes of load, both on a simulated machine
// with two processors.

import (
	"math"
	"runtime"
	"slices"
	"testing"

	"apilet/internal/flowcontrol/autoseats/simulated"
)

func drawSeats(t *testing.T) *drawing {
	if runtime.GOARCH != "amd64" {
		t.Skip("fused multiplication rounds otherwise there, and a simulation makes another history of that")
	}
	lists := simulated.Workloads()[0]
	d := newDrawing(720, 560, "Goodput and what a light request waits, by the number of seats; and the seats that the controller chooses while load and machine change")
	drawStatic(d, lists)
	drawDay(d, lists)
	return d
}

// drawStatic runs each fixed number of seats at twice the machine's capacity.
func drawStatic(d *drawing, lists simulated.Workload) {
	numbers := []int{1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256}
	goodput := plot{d, 60, 40, 260, 160, 8, 2}
	light := plot{d, 400, 40, 260, 160, 8, 200}
	var done, waits [][2]float64
	for _, n := range numbers {
		r := lists.At(2, n, 1)
		x := math.Log2(float64(n))
		done = append(done, goodput.at(x, r.Goodput))
		if ms := r.LightP99.Seconds() * 1000; ms <= light.top {
			waits = append(waits, light.at(x, ms))
		}
	}
	auto := lists.At(2, 0, 1)
	for _, p := range []plot{goodput, light} {
		for e := 0; e <= 8; e += 2 {
			at := p.at(float64(e), 0)
			d.line(at[0], p.y, at[0], p.y+p.h, "thin")
			d.text(at[0], p.y+p.h+15, "small mid", "%d", 1<<e)
		}
		for _, part := range []float64{0, 0.5, 1} {
			at := p.at(0, part*p.top)
			d.line(p.x, at[1], p.x+p.w, at[1], "thin")
			d.text(p.x-6, at[1]+4, "small end", "%g", part*p.top)
		}
		d.text(p.x+p.w, p.y+p.h+30, "small end", "seats")
		x := p.at(math.Log2(auto.Seats), 0)[0]
		d.line(x, p.y, x, p.y+p.h, "line dash")
		d.text(x+4, p.y+p.h-6, "small", "auto")
	}
	d.text(60, 28, "small", "processors' worth of work done, of 2")
	d.text(400, 28, "small", "a light request, p99, ms")
	d.path(done, "thick s1")
	d.path(waits, "thick s2")
}

// drawDay changes the load or the machine every ten seconds.
func drawDay(d *drawing, lists simulated.Workload) {
	s := lists.Setup
	s.Seconds, s.Seed = 60, 1
	s.Changes = []simulated.Change{{Rate: 50}, {At: 10, Rate: 500}, {At: 20, Rate: 50}, {At: 30, Rate: 500}, {At: 40, Rate: -1, Speed: 0.25}, {At: 50, Rate: -1, Speed: 1}}
	var seats, waits, slowest []float64
	s.EveryTick = func(_ float64, n int, m *simulated.Machine) {
		seats = append(seats, min(16, float64(n)))
		if slowest = append(slowest, m.LightSince()...); len(seats)%4 == 0 {
			slices.Sort(slowest)
			waits = append(waits, min(100, 1000*slowest[int(0.95*float64(len(slowest)-1))]))
			slowest = nil
		}
	}
	simulated.Run(s)
	p := plot{d, 60, 270, 600, 100, 60, 16}
	p.axes(10, 8, "", "seats, by the controller")
	p.steps(seats, "thick s1")
	for i, says := range []string{"half the load", "five times it", "half", "five times", "half a processor", "two again"} {
		d.text(64+float64(i)*100, 285, "small", "%s", says)
	}
	p = plot{d, 60, 420, 600, 100, 60, 100}
	p.axes(10, 50, "seconds", "a light request, p95 of each second, ms")
	p.steps(waits, "thick s2")
}
