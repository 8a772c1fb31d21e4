// Package pictures draws the pictures of docs/ with the packages of the server. The pictures show a
// store, a scheduler with simulated time, and a real token.
//
//	go test ./testdata/programs/pictures             # are the pictures in docs/pictures what would be drawn now?
//	go test ./testdata/programs/pictures -update     # draw them
//
// It is a test because only a synctest bubble controls the scheduler's time, and because a picture
// that no longer matches the code must be noticed. There is a file for the store's pictures, for
// flow control's, for the seats', and for the rooms'. svg.go contains the drawing functions.
package pictures
