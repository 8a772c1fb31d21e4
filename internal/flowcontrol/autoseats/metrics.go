package autoseats

// This file exports the controller's state as metrics.

import "github.com/prometheus/client_golang/prometheus"

var (
	seatsDesc      = desc("seats", "Seats that the server divides among its priority levels, as --max-requests-inflight=auto found them.")
	goodputDesc    = desc("goodput_seats", "Seat-seconds of work a second: seats whose requests are worked on.")
	inUseDesc      = desc("in_use_seats", "Seats in use, lately.")
	efficiencyDesc = desc("efficiency", "Part of the time on seats that is work and no wait inside of the server.")
	headroomDesc   = desc("headroom", "Seats beyond the goodput, as a part of it; it falls while goroutines wait long for a processor.")
	runDelayDesc   = desc("run_delay_seconds", "What the longest tenth of the waits for a processor took at least.")
	probesDesc     = desc("probes_total", "How often the seats were reduced for a moment, to see what requests take in calm.")
)

func desc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("apilet_flowcontrol_auto_"+name, help, nil, nil)
}

// Describe implements prometheus.Collector.
func (c *Controller) Describe(descs chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{seatsDesc, goodputDesc, inUseDesc, efficiencyDesc, headroomDesc, runDelayDesc, probesDesc} {
		descs <- d
	}
}

// Collect implements prometheus.Collector. It returns the state after the last tick.
func (c *Controller) Collect(metrics chan<- prometheus.Metric) {
	s := c.State()
	gauge := func(d *prometheus.Desc, value float64) {
		metrics <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value)
	}
	gauge(seatsDesc, float64(s.Seats))
	gauge(goodputDesc, s.Goodput)
	gauge(inUseDesc, s.InUse)
	gauge(efficiencyDesc, s.Efficiency)
	gauge(headroomDesc, s.Headroom)
	gauge(runDelayDesc, s.RunDelay.Seconds())
	metrics <- prometheus.MustNewConstMetric(probesDesc, prometheus.CounterValue, float64(s.Probes))
}
