package main

// This file measures what the history and the detector of fights cost requests that nobody asks about: two servers in one process, one of
// which notes neither when nor by whom a record is written and detects nothing, take turns at the same requests. Run it with
//
//	go test -run xxx -bench HistoryPrice -benchtime 100x .
//
// Each turn counts the processor's time of the whole process, its client included, and what it allocates; what is reported is the median of
// the turns' ratios, and how far the quartiles are from each other. Other work on the machine moves single turns and hardly their median.

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"apilet/internal/apitest"
)

func BenchmarkHistoryPrice(b *testing.B) {
	const perTurn, listed = 1000, 500
	with, without := startTest(b), startTest(b)
	without.st.Opts.Author, without.instruments.findings = nil, nil // nobody asks it anything yet
	without.st.Opts.Clock = func() time.Time { return time.UnixMilli(0) }
	for _, s := range []*testServer{with, without} {
		s.fill(listed, 1024)
		for i := range 100 {
			s.want(201, "POST", benchPath, benchObject(fmt.Sprintf("u%d", i), 0))
		}
	}
	n := 0
	get := bareRequest("GET", benchPath+"?limit=500", "")
	for _, c := range []struct {
		title   string
		turn    int
		request func(i int) []byte
	}{
		{"create", perTurn, func(i int) []byte { return bareRequest("POST", benchPath, benchObject(fmt.Sprintf("z%d", i), i)) }},
		{"update", perTurn, func(i int) []byte {
			name := fmt.Sprintf("u%d", i%100)
			return bareRequest("PUT", benchPath+"/"+name, benchObject(name, i))
		}},
		{"get", perTurn, func(i int) []byte { return bareRequest("GET", fmt.Sprintf("%s/u%d", benchPath, i%100), "") }},
		{"list", 60, func(int) []byte { return get }},
	} {
		b.Run(c.title, func(b *testing.B) {
			var ratios, allocs []float64
			for i := 0; b.Loop(); i++ {
				var used, made [2]float64
				for k := range 2 {
					at := (i + k) % 2 // who is first changes
					used[at], made[at] = turn(b, []*testServer{with, without}[at], c.turn, func(i int) []byte { return c.request(n + i) })
				}
				n += c.turn
				ratios, allocs = append(ratios, used[0]/used[1]), append(allocs, made[0]-made[1])
			}
			slices.Sort(ratios)
			slices.Sort(allocs)
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(ratios[len(ratios)/2], "cpu-ratio")
			b.ReportMetric(ratios[len(ratios)*3/4]-ratios[len(ratios)/4], "quartiles")
			b.ReportMetric(allocs[len(allocs)/2]/float64(c.turn), "more-allocs/request")
		})
	}
}

// turn makes n requests, and returns the processor time that they took, and the allocations.
func turn(b *testing.B, s *testServer, n int, request func(i int) []byte) (used, made float64) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	begin := apitest.Processor()
	hammer(b, s.url, 1, n, func(_, i int) []byte { return request(i) })
	used = float64(apitest.Processor() - begin)
	runtime.ReadMemStats(&after)
	return used, float64(after.Mallocs - before.Mallocs)
}
