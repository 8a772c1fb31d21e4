package pictures

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"
)

var update = flag.Bool("update", false, "draw the pictures anew")

const folder = "../../../docs/pictures"

func TestPictures(t *testing.T) {
	for name, draw := range map[string]func(*testing.T) *drawing{
		"chunks": drawChunks, "versions": drawVersions, "record": drawRecord, "token": drawToken,
		"hands": drawHands, "vtime": drawVirtualTime, "lent": drawLent, "rooms": drawRooms, "seats": drawSeats,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, path := []byte(draw(t).String()), filepath.Join(folder, name+".svg")
			if *update {
				if err := os.WriteFile(path, got, 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("%s is not what would be drawn now: look at what -update draws", path)
			}
		})
	}
}
