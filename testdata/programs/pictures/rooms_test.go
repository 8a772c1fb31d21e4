package pictures

// This file draws the packages under internal/ and the path of two requests. The picture shows each
// package above the packages that it imports. The imports are listed in testdata/imports.txt.

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var importsLine = regexp.MustCompile(`(?m)^([a-z0-9/]+): ?([a-z0-9/, ]*)$`)

// readRooms returns the imports of each package.
func readRooms(t *testing.T) map[string][]string {
	text, err := os.ReadFile("../../imports.txt")
	if err != nil {
		t.Fatal(err)
	}
	rooms := map[string][]string{}
	for _, line := range importsLine.FindAllStringSubmatch(string(text), -1) {
		rooms[line[1]] = slices.DeleteFunc(strings.Split(line[2], ", "), func(s string) bool { return s == "" })
	}
	return rooms
}

func drawRooms(t *testing.T) *drawing {
	rooms := readRooms(t)
	if len(rooms) < 35 {
		t.Fatalf("%d packages in the list", len(rooms))
	}
	floors := map[string]int{}
	var floorOf func(name string, depth int) int
	floorOf = func(name string, depth int) int {
		if f, ok := floors[name]; ok {
			return f
		}
		if depth > len(rooms) {
			t.Fatalf("%s imports itself on some way", name)
		}
		floor := 0
		for _, below := range rooms[name] {
			floor = max(floor, floorOf(below, depth+1)+1)
		}
		floors[name] = floor
		return floor
	}
	highest := 0
	byFloor := map[int][]string{}
	for name := range rooms {
		floor := floorOf(name, 0)
		byFloor[floor] = append(byFloor[floor], name)
		highest = max(highest, floor)
	}
	// The paths, as docs/rooms.md describes them.
	ways := []struct {
		name, class string
		rooms       []string
	}{
		{"a LIST", "s1", []string{"request", "auth", "flowcontrol", "store", "response"}},
		{"an apply", "s2", []string{"request", "auth", "flowcontrol", "registry", "fieldmanager", "kinds/defaults", "admission", "kinds/strategy", "kinds/validation", "kinds/warnings", "store", "response"}},
	}
	const across = 4
	rows := 0
	for floor := range highest + 1 {
		rows += (len(byFloor[floor]) + across - 1) / across
	}
	d := newDrawing(740, 90+rows*40+(highest+1)*6, "The packages of apilet in floors, each above what it imports, with the ways of a LIST and of an apply numbered")
	d.text(20, 24, "bold", "Each package stands above all that it imports; the top level's files stand on all")
	y := 40.0
	for floor := highest; floor >= 0; floor-- {
		names := byFloor[floor]
		slices.Sort(names)
		for i, name := range names {
			if i > 0 && i%across == 0 {
				y += 40
			}
			x := 20 + float64(i%across)*178
			d.rect(x, y, 172, 32, "box")
			d.text(x+6, y+20, "mono", "%s", name)
			for w, way := range ways {
				if at := slices.Index(way.rooms, name); at >= 0 {
					d.rect(x+154, y+1+float64(w)*15, 17, 15, "c"+way.class[1:])
					d.text(x+162, y+12+float64(w)*15, "small mid on", "%d", at+1)
				}
			}
		}
		y += 46
	}
	for w, way := range ways {
		for _, name := range way.rooms {
			if _, ok := rooms[name]; !ok {
				t.Errorf("%s goes through %s, which is not there", way.name, name)
			}
		}
		d.rect(20+float64(w)*220, y+6, 12, 12, "c"+way.class[1:])
		d.text(38+float64(w)*220, y+16, "small", "the way of %s", way.name)
	}
	return d
}
