// Package corrupt tracks the stored objects that cannot be decoded. They must not stop a list,
// a rule or the start of the server. The caller that finds the object calls Add and continues.
// The object is logged only once, and the number of objects is reported by a metric and by
// /readyz. DELETE removes it.
//
//	lost := corrupt.NewObjects(st, log)
//	lost.Add(&rec, err)                              // a reader whose DecodeStored failed, before it continues
//	err = lost.Scan(ctx, corrupt.NewDecodeCheck(reg))       // once after the start, for objects that no client has requested
//	n := lost.Count()                                // /readyz and the metric
//
// The current version does not write such objects (bounded/document.go), but earlier versions may
// have written some. Kubernetes can delete such objects since KEP-3926
// (AllowUnsafeMalformedObjectDeletion), which requires an option and a separate verb. In apilet a
// plain DELETE is enough.
//
// Invariants: The revision of the object is recorded. If the object is deleted or has another
// revision, the entry is obsolete. The name of the object is written to the log and returned to
// users that may read the object, but it is not included in /readyz or a metric. The package
// reads objects from the store and decodes them by package scheme.
package corrupt
