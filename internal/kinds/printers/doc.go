// Package printers returns the tables that kubectl displays. The columns and cells match
// kube-apiserver 1.37, as recorded in testdata.
//
//	columns := printers.ColumnsOf(res)               // Name, Ready, Status, Restarts, Age, ...
//	cells := printers.CellsOf(res, obj, time.Now())  // "web-0", "0/1", "CrashLoopBackOff", "12 (5m ago)", "3d4h", ...
//
// The rules match package k8s.io/kubernetes/pkg/printers/internalversion. That package is
// not imported because it would add 226 packages and 7 MB to the program. testdata/rules/printers
// compares the two. The columns of a custom resource are defined by its definition
// (additionalPrinterColumns). The code corresponds to
// k8s.io/apiextensions-apiserver/pkg/registry/customresource/tableconvertor. The table of columns
// is in columns.go. Cells that do not just display a field are computed in cells.go.
//
// The number of cells in a row must match the number of columns. Cells are strings, int64s and
// booleans. They depend only on the object and the given time. Incomplete objects are allowed and
// must not cause a panic.
package printers
