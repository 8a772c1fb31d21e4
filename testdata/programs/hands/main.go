// Hands computes the queues that are assigned to flows by flow control (shuffle sharding), and
// shows which of them overlap.
//
//	go run ./testdata/programs/hands -schema herd -queues 4 -hand 1 elephant mouse-1 mouse-2
//	go run ./testdata/programs/hands -queues 128 -hand 6 -odds
//
// The first argument is the name of the elephant and is followed by the names of the mice. If all
// queues of a mouse are also used by the elephant, the requests of the mouse are rejected when the
// queues are full. The program is a second implementation of KEP-1040, "Assignment to a Queue": a
// flow is hashed, and each remainder of the hash picks one of the remaining cards. -odds computes
// the probability that a random mouse is covered by a number of elephants ("Probability of
// Collisions" in the KEP), by counting instead of dealing.
package main

import (
	"crypto/sha256"
	"encoding/binary"
	"flag"
	"fmt"
	"os"
	"slices"
)

func main() {
	schema := flag.String("schema", "herd", "the `name` of the FlowSchema")
	queues := flag.Int("queues", 128, "how many `queues` the level has")
	hand := flag.Int("hand", 6, "how many of them a `flow` may use")
	chances := flag.Bool("odds", false, "print how likely a mouse is covered")
	flag.Parse()
	if *hand < 1 || *hand > *queues {
		fmt.Fprintln(os.Stderr, "hands: -hand is from 1 to -queues")
		os.Exit(2)
	}
	if *chances {
		fmt.Println("elephants  mice covered")
		for n, p := range odds(*queues, *hand, 32) {
			if n&(n-1) == 0 && n > 0 {
				fmt.Printf("%9d  %12.6f\n", n, p)
			}
		}
		return
	}
	var elephant []int
	for i, user := range flag.Args() {
		cards := deal(*schema, user, *queues, *hand)
		word := ""
		switch {
		case i == 0:
			elephant = cards
		case !slices.ContainsFunc(cards, func(card int) bool { return !slices.Contains(elephant, card) }):
			word = "  covered"
		}
		fmt.Printf("%-10s %v%s\n", user, cards, word)
	}
}

// deal deals the cards of a hand from the deck.
func deal(schema, user string, queues, hand int) []int {
	sum := sha256.Sum256([]byte(schema + "\x00" + user))
	hash := binary.LittleEndian.Uint64(sum[:])
	deck := make([]int, queues)
	for i := range deck {
		deck[i] = i
	}
	var cards []int
	for range hand {
		n := uint64(len(deck))
		i := int(hash % n)
		hash /= n
		cards = append(cards, deck[i])
		deck = slices.Delete(deck, i, i+1)
	}
	return cards
}

// odds returns the probability that all cards of a hand are also held by a number of elephants,
// starting with zero elephants. held[k] is the probability that they hold k different cards.
func odds(deck, hand, elephants int) []float64 {
	held := make([]float64, deck+1)
	held[0] = 1
	result := []float64{0}
	for range elephants {
		next := make([]float64, deck+1)
		for k, p := range held {
			for fresh := 0; p > 0 && fresh <= hand && k+fresh <= deck; fresh++ {
				next[k+fresh] += p * choose(deck-k, fresh) * choose(k, hand-fresh) / choose(deck, hand)
			}
		}
		held = next
		covered := 0.0
		for k, p := range held {
			covered += p * choose(k, hand) / choose(deck, hand)
		}
		result = append(result, covered)
	}
	return result
}

// choose returns the number of ways to choose m of n.
func choose(n, m int) float64 {
	if m < 0 || m > n {
		return 0
	}
	ways := 1.0
	for i := range m {
		ways *= float64(n-i) / float64(i+1)
	}
	return ways
}
