// Elephant simulates a user with a large number of connections and several users with few requests.
// It prints the number of requests that were served for each user.
//
//	go run ./testdata/programs/elephant http://localhost:8080
//	go run ./testdata/programs/elephant -connections 64 -mice mouse-1,mouse-2 -for 5s http://localhost:8080
//	go run ./testdata/programs/elephant -create -connections 20 -for 60s http://localhost:8080
//
// All users are impersonated, so the server must listen on a plain loopback port. The elephant
// lists all ConfigMaps with a selector that matches nothing, which costs much time in the server
// and little in this program, and it ignores Retry-After. With -create it creates ConfigMaps with
// dry run instead. With a slow webhook these requests hold seats without using a processor. A mouse
// reads an object up to twenty times per second and waits for the response.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// A user is a simulated user. It also contains the results.
type user struct {
	name, path  string
	body        string // of a POST; "" means a GET
	connections int
	pause       time.Duration // delay between a response and the next request

	mu      sync.Mutex // guards the fields below
	asked   int
	refused int // 429
	failed  int // any other error
	waits   []time.Duration
}

func main() {
	connections := flag.Int("connections", 64, "over how many `connections` the elephant asks")
	elephant := flag.String("elephant", "elephant", "its `name`")
	create := flag.Bool("create", false, "the elephant creates, in a dry run, and does not list")
	mice := flag.String("mice", "mouse", "comma-separated `names`")
	length := flag.Duration("for", 3*time.Second, "how `long`")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: elephant [FLAGS] URL")
		os.Exit(2)
	}
	users := []*user{{name: *elephant, path: "/api/v1/configmaps?labelSelector=nobody=has", connections: *connections}}
	if *create {
		users[0].path, users[0].body = "/api/v1/namespaces/default/configmaps?dryRun=All", `{"metadata":{"generateName":"elephant-"}}`
	}
	for name := range strings.SplitSeq(*mice, ",") {
		users = append(users, &user{name: name, path: "/api/v1/namespaces/default/configmaps?limit=1", connections: 1, pause: 50 * time.Millisecond})
	}
	ctx, cancel := context.WithTimeout(context.Background(), *length)
	defer cancel()
	var wg sync.WaitGroup
	for _, u := range users {
		for range u.connections {
			wg.Go(func() { u.ask(ctx, strings.TrimSuffix(flag.Arg(0), "/")) })
		}
	}
	wg.Wait()
	fmt.Println("who        asked  served  refused  failed       p50       p99")
	for _, u := range users {
		fmt.Printf("%-9s %6d %7d %8d %7d %9s %9s\n", u.name, u.asked, len(u.waits), u.refused, u.failed, u.wait(.5), u.wait(.99))
	}
}

// ask sends requests in a loop until ctx is done. The last one does not count.
func (u *user) ask(ctx context.Context, server string) {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1}}
	defer client.CloseIdleConnections()
	for {
		start := time.Now()
		code, err := u.send(ctx, client, server)
		if ctx.Err() != nil {
			return
		}
		u.note(code, err, time.Since(start))
		pause := u.pause
		if code/100 != 2 {
			// rejections are immediate, and this program shares the machine with the server
			pause = max(pause, 10*time.Millisecond)
		}
		time.Sleep(pause)
	}
}

func (u *user) send(ctx context.Context, client *http.Client, server string) (int, error) {
	method := http.MethodGet
	if u.body != "" {
		method = http.MethodPost
	}
	req, err := http.NewRequestWithContext(ctx, method, server+u.path, strings.NewReader(u.body))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Impersonate-User", u.name)
	resp, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, err
}

func (u *user) note(code int, err error, took time.Duration) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.asked++
	switch {
	case err == nil && code/100 == 2:
		u.waits = append(u.waits, took)
	case code == http.StatusTooManyRequests:
		u.refused++
	default:
		u.failed++
	}
}

// wait returns a quantile of the durations of served requests.
func (u *user) wait(part float64) time.Duration {
	if len(u.waits) == 0 {
		return 0
	}
	slices.Sort(u.waits)
	return u.waits[int(part*float64(len(u.waits)-1))].Round(100 * time.Microsecond)
}
