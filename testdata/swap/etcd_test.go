package swap

// This file reads etcd through its JSON gateway.

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
)

type kv struct {
	Key         []byte
	Value       []byte
	ModRevision string `json:"mod_revision"`
	Version     string
}

func (w *world) askEtcd(ctx context.Context, path string, question any) (io.ReadCloser, error) {
	body, err := json.Marshal(question)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, "POST", w.etcd+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode != http.StatusOK {
		answer.Body.Close()
		return nil, fmt.Errorf("etcd: %s", answer.Status)
	}
	return answer.Body, nil
}

// everyKey returns the range of all keys in etcd.
func everyKey() map[string]any { return map[string]any{"key": []byte{0}, "range_end": []byte{0}} }

// keys returns all keys in etcd.
func (w *world) keys() (all []string, err error) {
	question := everyKey()
	question["keys_only"] = true
	found, err := w.find(question)
	for _, one := range found {
		all = append(all, string(one.Key))
	}
	return all, err
}

// value returns the value of a key, or nil if the key does not exist.
func (w *world) value(key string) ([]byte, error) {
	found, err := w.find(map[string]any{"key": []byte(key)})
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return found[0].Value, nil
}

func (w *world) find(question map[string]any) ([]kv, error) {
	body, err := w.askEtcd(context.Background(), "/v3/kv/range", question)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	var answer struct{ Kvs []kv }
	err = json.NewDecoder(body).Decode(&answer)
	return answer.Kvs, err
}

// An event represents a change in etcd.
type event struct {
	Type string
	Kv   kv
}

// follow calls told for each change in etcd until the context ends.
func (w *world) follow(ctx context.Context, told func(event)) error {
	body, err := w.askEtcd(ctx, "/v3/watch", map[string]any{"create_request": everyKey()})
	if err != nil {
		return err
	}
	defer body.Close()
	for lines := json.NewDecoder(body); ; {
		var line struct{ Result struct{ Events []event } }
		if err := lines.Decode(&line); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		for _, ev := range line.Result.Events {
			told(ev)
		}
	}
}
