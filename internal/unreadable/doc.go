// Package unreadable knows the stored objects that cannot be decoded, so that one of them never stops a list, a rule or a start: readers note
// it and go on, it is told once in the log, counted in a metric and in /readyz, and DELETE can remove it.
//
//	lost := unreadable.NewUnreadables(st, log)
//	lost.Note(&rec, err)                             // a reader whose DecodeStored failed, before it goes on
//	err = lost.Survey(ctx, unreadable.NewDecodeCheck(reg))  // once after the start, for those that nobody has asked for
//	n := lost.Count()                                // /readyz and the metric
//
// None comes into being today (bounded/document.go), but files that older versions wrote may hold some. Kubernetes has a way to delete such
// objects since KEP-3926 (AllowUnsafeMalformedObjectDeletion), with an option and a verb of its own; here DELETE alone does.
//
// Invariants: what is known is the revision that cannot be read: when the object has another one, or none, the matter has settled itself;
// names go to the log and to whoever may read the object, never into /readyz or a metric. The store is asked, and scheme decodes.
package unreadable
