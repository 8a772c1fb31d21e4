// Package printers makes the tables that kubectl shows: for each type its columns and an object's cells, those of kube-apiserver 1.36 to the
// letter, which testdata has recorded.
//
//	columns := printers.ColumnsOf(res)               // Name, Ready, Status, Restarts, Age, ...
//	cells := printers.CellsOf(res, obj, time.Now())  // "web-0", "0/1", "CrashLoopBackOff", "12 (5m ago)", "3d4h", ...
//
// The rules are those of k8s.io/kubernetes, pkg/printers/internalversion/printers.go, which is not imported because it would add 226 packages and
// 7 MB to the program; testdata/rules/printers compares the two. A custom resource's columns are those that its
// definition names (additionalPrinterColumns, k8s.io/apiextensions-apiserver/pkg/registry/customresource/tableconvertor). columns.go is the
// table, cells.go computes what takes more than naming a field.
//
// Invariants: a row has as many cells as the type has columns; cells are strings, int64s and booleans; nothing is read but the object and
// the time that is given; no object panics, however sparse.
package printers
