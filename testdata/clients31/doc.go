// Package clients31 tests client programs that are two years old with an apilet process: client-go
// 0.31, which uses JSON where the newest version uses protobuf and lists before it watches, and
// controller-runtime 0.19. The folder clients has the newest versions and more clients. This is a
// second module because a module cannot depend on two versions of the same library:
//
//	go test ./...                      # builds apilet from ../..
//	APILET=/usr/local/bin/apilet go test ./...
package clients31
