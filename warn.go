package main

import "context"

// addWarning sends text to the client as a Warning header, once per request; without a recorder in ctx it does nothing.
func addWarning(ctx context.Context, text string) { panic("skeleton") }
