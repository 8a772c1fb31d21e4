// Package e2e tests the built program from outside, by HTTP, the command line, signals, and the
// files that it writes. No package imports it. Its tests use the program like a client, like a user
// of a shell, or like the next process with the same file.
//
//	s := startTest(t, "--authorization-mode=RBAC")          // a process on a free loopback port
//	s.want(201, "POST", "/api/v1/namespaces", `{...}`)      // a request with an expected status
//	s.halt()                                                // SIGTERM, and it must exit cleanly
//
// The program is built when the first test needs it. The program has the race detector if the tests
// have it, and counts coverage if GOCOVERDIR is set. APILET_PROGRAM names another program. Each
// test uses a separate server, because a server starts in about ten milliseconds. A test also fails
// if its server logged a panic or detected a race.
//
// Tests of a server's internals, such as the scheduler, the clock or a failing store, are at the
// top level and run in process. Other rules, such as the validation of single types, are tested in
// their own packages.
package e2e
