package etcd

// This file tests the authors of writes with several servers.

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// as sends a request with a user agent, and returns the status code.
func (s *server) as(agent, method, path, body string) int {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, s.URL()+path, strings.NewReader(body))
	if err != nil {
		s.t.Error(err)
		return 0
	}
	request.Header.Set("User-Agent", agent)
	request.Header.Set("Content-Type", "application/merge-patch+json")
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		s.t.Error(err)
		return 0
	}
	answer.Body.Close()
	return answer.StatusCode
}

// A change is a line of the history.
type change struct{ Type, Name, Agent string }

// changes returns a server's history of ConfigMaps after a revision.
func (s *server) changes(since string) (all []change) {
	s.t.Helper()
	text := s.do(200, "GET", "/debug/history?resource=configmaps&namespace=default&limit=1000&after="+since, "")
	for lines := json.NewDecoder(strings.NewReader(text)); lines.More(); {
		var line change
		if err := lines.Decode(&line); err != nil {
			s.t.Fatal(err)
		}
		if line.Name != "" {
			all = append(all, line)
		}
	}
	return all
}

// TestADeletionHasOneAuthor sends two servers a request to delete the same version. Only the server
// whose deletion was executed may be recorded as the author.
func TestADeletionHasOneAuthor(t *testing.T) {
	t.Parallel()
	const objects = 60
	c := startCluster(t, 1)
	servers := []*server{c.startServer(), c.startServer()}
	for i := range objects {
		servers[0].do(201, "POST", maps, aMap(fmt.Sprint("gone-", i), "x", ""))
	}
	since := read(t, servers[1].do(200, "GET", maps, "")).Metadata.ResourceVersion
	agents := []string{"first/1", "second/1"}
	var codes [objects][2]int
	for i := range objects {
		var deleting sync.WaitGroup
		for n, s := range servers {
			deleting.Go(func() { codes[i][n] = s.as(agents[n], "DELETE", fmt.Sprint(maps, "/gone-", i), "") })
		}
		deleting.Wait()
		if codes[i] != [2]int{200, 404} && codes[i] != [2]int{404, 200} {
			t.Errorf("two deletions of one object were answered with %v", codes[i])
		}
	}
	for n, s := range servers {
		s.do(200, "GET", maps, "") // now it has received all events
		told := map[string]string{}
		for _, line := range s.changes(since) {
			if line.Type != "DELETED" {
				t.Errorf("%v is no deletion", line)
			}
			told[line.Name] = line.Agent
		}
		for i := range objects {
			want := ""
			if codes[i][n] == 200 {
				want = agents[n]
			}
			if agent, ok := told[fmt.Sprint("gone-", i)]; !ok || agent != want {
				t.Errorf("server %d, which answered %d, says that gone-%d was deleted by %q (told: %v)", n, codes[i][n], i, agent, ok)
			}
		}
	}
}

// TestFightersAreToldApart checks the authors of all versions while two clients are changing the
// same object.
func TestFightersAreToldApart(t *testing.T) {
	t.Parallel()
	const rounds = 60
	c := startCluster(t, 1)
	s := c.startServer()
	since := read(t, s.do(201, "POST", maps, aMap("prize", "x", ""))).Metadata.ResourceVersion
	agents := []string{"first/1", "second/1"}
	var fighting sync.WaitGroup
	for _, agent := range agents {
		fighting.Go(func() {
			for i := range rounds {
				if code := s.as(agent, "PATCH", maps+"/prize", fmt.Sprintf(`{"data":{"v":"%s %d"}}`, agent, i)); code != 200 {
					t.Errorf("%s: got %d", agent, code)
				}
			}
		})
	}
	fighting.Wait()
	told := map[string]int{}
	for _, line := range s.changes(since) {
		told[line.Agent]++
	}
	if len(told) != 2 || told[agents[0]] != rounds || told[agents[1]] != rounds {
		t.Errorf("each has written %d times; told are %v", rounds, told)
	}
}
