package flowcontrol

// This file exports the state of the dispatcher as metrics with Kubernetes' names and labels
// (k8s.io/apiserver/pkg/util/flowcontrol/metrics). Collect reads the values from the levels, so
// requests only update counters that the algorithm needs anyway.

import (
	"math"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Names, help texts and labels of the metrics. All names begin with metricPrefix.
const metricPrefix = "apiserver_flowcontrol_"

var metricDescs = func() map[string]*prometheus.Desc {
	levelLabels, flowLabels := []string{"priority_level"}, []string{"priority_level", "flow_schema"}
	all := map[string]*prometheus.Desc{}
	add := func(labels []string, help ...string) {
		for i := 0; i < len(help); i += 2 {
			all[help[i]] = prometheus.NewDesc(metricPrefix+help[i], help[i+1], labels, nil)
		}
	}
	with := func(label string, labels []string) []string { return append(slices.Clip(labels), label) }
	add(flowLabels,
		"dispatched_requests_total", "Requests that started.",
		"current_inqueue_requests", "Requests that wait.",
		"current_inqueue_seats", "Seats that those who wait will take.",
		"current_executing_requests", "Requests that run; watches until they have begun.",
		"current_executing_seats", "Seats that are taken, by tails too.",
		"request_queue_length_after_enqueue", "How long its queue is when a request has joined it.",
		"work_estimated_seats", "Seats that requests are estimated to take.",
		"watch_count_samples", "Watchers of what mutating requests change.",
		"request_dispatch_no_accommodation_total", "How often a request whose turn it was had to wait for more seats.")
	add(with("reason", flowLabels), "rejected_requests_total", "Requests that never ran.")
	add(with("execute", flowLabels), "request_wait_duration_seconds", "Time in the queue, of those that then ran and of those that did not.")
	add(with("type", flowLabels), "request_execution_seconds", "Time that requests ran; watches until they had begun.")
	add(levelLabels,
		"nominal_limit_seats", "Seats by shares.",
		"lower_limit_seats", "Seats that are never lent.",
		"upper_limit_seats", "Seats with all that may be borrowed.",
		"current_limit_seats", "Seats now.",
		"demand_seats", "Seats that could be used, by nominal seats, over time.",
		"demand_seats_high_watermark", "The most seats that could be used in the last period.",
		"demand_seats_average", "Seats that could be used in the last period, on average.",
		"demand_seats_stdev", "Their standard deviation.",
		"demand_seats_smoothed", "Average and deviation, slow to fall.",
		"target_seats", "Seats that the level would like.",
		"current_r", "Virtual time.",
		"dispatch_r", "Virtual time at the last start.",
		"latest_s", "Account of the flow of the last start.")
	add(with("bound", levelLabels),
		"next_s_bounds", "Accounts of the flows that wait.",
		"next_discounted_s_bounds", "Accounts of the flows that wait, less what they were promised.")
	add(with("success", levelLabels), "epoch_advance_total", "How often virtual time was set back.")
	add([]string{"phase", "priority_level"}, "priority_level_request_utilization", "Requests by what there is room for, over time.")
	add([]string{"phase", "request_kind"}, "read_vs_write_current_requests", "Requests of the server by what there is room for, over time.")
	add(nil, "seat_fair_frac", "Part of its target that each level gets whom no bound stops.")
	all["priority_level_seat_utilization"] = prometheus.NewDesc(metricPrefix+"priority_level_seat_utilization",
		"Seats taken by seats there are, over time.", levelLabels, prometheus.Labels{"phase": "executing"})
	return all
}()

// A metricList collects metrics while levels are locked. They are sent to the channel after the
// locks have been released.
type metricList []prometheus.Metric

func (list *metricList) number(name string, kind prometheus.ValueType, value float64, labels ...string) {
	*list = append(*list, prometheus.MustNewConstMetric(metricDescs[name], kind, value, labels...))
}

// distribution omits a histogram without values.
func (list *metricList) distribution(name string, h *histogram, labels ...string) {
	buckets, count := make(map[float64]uint64, len(h.bounds)), uint64(0)
	for i, bound := range h.bounds {
		count += h.counts[i]
		buckets[bound] = count
	}
	if count += h.counts[len(h.bounds)]; count > 0 {
		*list = append(*list, prometheus.MustNewConstHistogram(metricDescs[name], count, h.sum, buckets, labels...))
	}
}

// Describe implements prometheus.Collector.
func (d *Dispatcher) Describe(descs chan<- *prometheus.Desc) {
	for _, desc := range metricDescs {
		descs <- desc
	}
}

// Collect implements prometheus.Collector. Each level is read while holding its lock.
func (d *Dispatcher) Collect(metrics chan<- prometheus.Metric) {
	var list metricList
	list.number("seat_fair_frac", prometheus.GaugeValue, d.fairFraction())
	d.each(func(l *Level) {
		list.level(l)
		for schema, stats := range l.stats {
			list.flow(stats, l.exempt, l.Name, schema)
		}
	})
	tr := &d.traffic
	tr.mu.Lock()
	for phase, phaseLabel := range []string{"waiting", "executing"} {
		for kind, kindLabel := range []string{"readOnly", "mutating"} {
			tr.moveLocked(trafficPhase(phase), kind == 1, 0, time.Now())
			list.distribution("read_vs_write_current_requests", &tr.lanes[phase][kind].use, phaseLabel, kindLabel)
		}
	}
	tr.mu.Unlock()
	for _, metric := range list {
		metrics <- metric
	}
}

func (list *metricList) level(l *Level) {
	gauge := func(name string, value float64, labels ...string) {
		list.number(name, prometheus.GaugeValue, value, append([]string{l.Name}, labels...)...)
	}
	c := &l.allocation
	gauge("nominal_limit_seats", float64(c.nominal))
	gauge("lower_limit_seats", float64(c.min))
	gauge("upper_limit_seats", float64(c.max))
	gauge("current_limit_seats", float64(c.limit))
	gauge("demand_seats_high_watermark", float64(c.high))
	gauge("demand_seats_average", c.mean)
	gauge("demand_seats_stdev", c.sd)
	gauge("demand_seats_smoothed", c.smoothed)
	gauge("target_seats", c.target)
	list.distribution("demand_seats", &l.seatDemand, l.Name)
	list.distribution("priority_level_seat_utilization", &l.seatUse, l.Name)
	list.distribution("priority_level_request_utilization", &l.startUse, "executing", l.Name)
	gauge("current_r", l.vtime.Seconds())
	if l.exempt { // requests never wait
		none := newHistogram(requestBounds)
		none.add(0, l.seatUse.total())
		list.distribution("priority_level_request_utilization", &none, "waiting", l.Name)
		return
	}
	list.distribution("priority_level_request_utilization", &l.waitingUse, "waiting", l.Name)
	gauge("dispatch_r", l.counts.startVtime.Seconds())
	gauge("latest_s", l.counts.startTag.Seconds())
	list.number("epoch_advance_total", prometheus.CounterValue, float64(l.counts.rewinds), l.Name, "true")
	if len(l.turns) == 0 {
		return
	}
	least, most := math.Inf(1), math.Inf(-1)
	leastNet, mostNet := least, most
	for _, f := range l.turns {
		l.updateAccountLocked(f)
		account, net := f.served.Seconds(), (f.served - f.promised).Seconds()
		least, most, leastNet, mostNet = min(least, account), max(most, account), min(leastNet, net), max(mostNet, net)
	}
	gauge("next_s_bounds", least, "min")
	gauge("next_s_bounds", most, "max")
	gauge("next_discounted_s_bounds", leastNet, "min")
	gauge("next_discounted_s_bounds", mostNet, "max")
}

// flow does nothing if the schema has not received any requests.
func (list *metricList) flow(stats *schemaStats, exempt bool, labels ...string) {
	if stats.estimated.total() == 0 {
		return
	}
	with := func(label string) []string { return append(slices.Clip(labels), label) }
	counter, gauge := prometheus.CounterValue, prometheus.GaugeValue
	list.number("dispatched_requests_total", counter, float64(stats.dispatched), labels...)
	list.number("current_executing_requests", gauge, float64(stats.executing), labels...)
	list.number("current_executing_seats", gauge, float64(stats.executingSeats), labels...)
	list.distribution("work_estimated_seats", &stats.estimated, labels...)
	list.distribution("watch_count_samples", &stats.watchers, labels...)
	list.distribution("request_execution_seconds", &stats.ranRegular, with("regular")...)
	list.distribution("request_execution_seconds", &stats.ranWatch, with("watch")...)
	for reason, n := range stats.rejected {
		list.number("rejected_requests_total", counter, float64(n), with(reason)...)
	}
	if exempt {
		return
	}
	list.number("current_inqueue_requests", gauge, float64(stats.waiting), labels...)
	list.number("current_inqueue_seats", gauge, float64(stats.waitingSeats), labels...)
	list.number("request_dispatch_no_accommodation_total", counter, float64(stats.noAccommodation), labels...)
	list.distribution("request_wait_duration_seconds", &stats.waitedThenRan, with("true")...)
	list.distribution("request_wait_duration_seconds", &stats.waitedInVain, with("false")...)
	list.distribution("request_queue_length_after_enqueue", &stats.queueLength, labels...)
}
