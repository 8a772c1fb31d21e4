// Package e2e tests the built program through its doors: HTTP, the command line, signals, and the files it leaves behind. Nothing imports it, and
// its tests see of a server what a client, a user at a shell, or the next process on the same file sees.
//
//	s := startTest(t, "--authorization-mode=RBAC")          // a process on a free loopback port
//	s.want(201, "POST", "/api/v1/namespaces", `{...}`)      // a request whose status is known
//	s.halt()                                                // SIGTERM, and it has to end well
//
// The program is built once in a run of the tests, when the first of them wants it: with the race detector where the tests have it, and counting
// coverage where GOCOVERDIR is set; APILET_PROGRAM names another instead. A server is there after some ten milliseconds, so each test has one of its
// own. Every test also fails if its server logged a panic, or found a race.
//
// Tests that look inside a server (at its scheduler, its clock, a store that fails) are at the top level, in process. Rules that need no
// server, such as Kubernetes' rules for single types, are tested in the package that has them.
package e2e
