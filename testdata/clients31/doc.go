// Package clients31 holds client programs of two years ago, as tests against an apilet process: client-go 0.31, which speaks JSON where
// the newest speaks protobuf and lists before it watches, and controller-runtime 0.19. The folder clients has the newest, and more of
// them. A module cannot have two versions of one library, hence a second module:
//
//	go test ./...                      # builds apilet from ../..
//	APILET=/usr/local/bin/apilet go test ./...
package clients31
