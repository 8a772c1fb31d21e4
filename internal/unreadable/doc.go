// Package unreadable tracks the stored objects that cannot be decoded, so that such an object
// never stops a list, a rule or the start of the server. A reader that finds one reports it and
// continues. Each object is logged once and counted in a metric and in /readyz. DELETE removes
// it.
//
//	lost := unreadable.NewUnreadables(st, log)
//	lost.Note(&rec, err)                             // a reader whose DecodeStored failed, before it continues
//	err = lost.Survey(ctx, unreadable.NewDecodeCheck(reg))  // once after the start, for objects that no client has requested
//	n := lost.Count()                                // /readyz and the metric
//
// The current version does not write such objects (bounded/document.go), but earlier versions may
// have written some. Kubernetes can delete such objects since KEP-3926
// (AllowUnsafeMalformedObjectDeletion), which requires an option and a separate verb. In apilet a
// plain DELETE is enough.
//
// Invariants: an entry is a revision that cannot be decoded. If the object is deleted or has
// another revision, the entry is obsolete. Names of objects appear in the log and in responses to
// users who may read the object, but never in /readyz or a metric. The package reads objects from
// the store and decodes them by package scheme.
package unreadable
