// Package pictures draws the pictures of docs/ from what the server's own packages do: a store that is written to and compacted, a scheduler
// whose clock a test moves, a token that a server gave out.
//
//	go test ./testdata/programs/pictures             # are the pictures in docs/pictures what would be drawn now?
//	go test ./testdata/programs/pictures -update     # draw them
//
// It is a test because the scheduler's time only moves by itself in a bubble of testing/synctest, and because a picture that no longer shows
// what the code does should fail. One file draws the store's pictures, one flow control's, one the rooms'; svg.go has the pencil.
package pictures
