package apitest

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Expect compares two values as they are printed, so that 5 is what a JSON number of 5 is.
func Expect(t testing.TB, got, want any) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// Nearly says whether got is within a share of want.
func Nearly(got, want, margin float64) bool { return math.Abs(got-want) <= margin*math.Abs(want) }

// SameJSON compares two documents, whatever the order of their members; null and what is empty are the same.
func SameJSON(t testing.TB, got, want string) {
	t.Helper()
	var g, w any
	if json.Unmarshal([]byte(got), &g) != nil || json.Unmarshal([]byte(want), &w) != nil || !equality.Semantic.DeepEqual(g, w) {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// Refused asserts a Status error and returns its message.
func Refused(t testing.TB, err error, code int32, reason metav1.StatusReason) string {
	t.Helper()
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		t.Fatalf("got %v, want a Status error %d", err, code)
	}
	if got := status.Status(); got.Code != code || got.Reason != reason {
		t.Errorf("got %d %s %q, want %d %s", got.Code, got.Reason, got.Message, code, reason)
	}
	return status.Status().Message
}

// FirstDifference is the neighbourhood of the first line in which two texts differ.
func FirstDifference(got, want string) string {
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range g {
		if i >= len(w) || g[i] != w[i] {
			from := max(0, i-6)
			return strings.Join(g[from:min(len(g), i+6)], "\n") + "\nwant:\n" + strings.Join(w[min(len(w), from):min(len(w), i+6)], "\n")
		}
	}
	return "fewer lines"
}
