//go:build unix

package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// scenario is a set of faults that a run draws from.
type scenario struct {
	name, text string
	faults     []fault
	together   int    // concurrent faults
	sqlite     bool   // makes sense for the embedded backend as well
	server     bool   // needs a server of the run's own
	disk       bool   // needs a disk of the run's own
	hosts      bool   // workers are in containers, each its own host
	nodes      bool   // workers are on hosts that share nothing, with their files in a store
	election   bool   // needs a replica set
	variant    string // of the product; "" is the product
}

// scenarios are all scenarios, in the order in which runs take turns.
var scenarios = []scenario{
	{name: "kill", text: "SIGKILL of a type's holder, of a standby, of a producer", faults: []fault{kill}, together: 1, sqlite: true},
	{name: "freeze", text: "SIGSTOP of one of them for half a lease up to three, then SIGCONT", faults: []fault{freeze}, together: 2, sqlite: true},
	{name: "network", text: "one member's network cut, silent both ways or one way, slow, reset, closed late", faults: []fault{network}, together: 2},
	{name: "answers", text: "answers lost after their requests were executed; requests delivered after their sender gave up", faults: []fault{answers}, together: 3},
	{name: "server", text: "the server paused, or killed and started again", faults: []fault{serverPause}, together: 1, server: true},
	{name: "locks", text: "fencepost locks release --force; lock documents deleted", faults: []fault{release}, together: 1, sqlite: true},
	{name: "types", text: "fencepost types pause and resume", faults: []fault{pause}, together: 2, sqlite: true},
	{name: "scale", text: "replicas stopped and started, one by one or all in turn", faults: []fault{scale}, together: 1, sqlite: true},
	{name: "disk", text: "the disk of the files full, stuck or slow", faults: []fault{diskFull, diskStuck}, together: 1, sqlite: true, disk: true},
	{name: "hosts", text: "workers in containers of the product's image on a private network: killed, paused, taken off the network (one process per host: no worker sees that another is gone)",
		faults: []fault{kill, freeze, unplug}, together: 2, hosts: true},
	{name: "nodes", text: "workers on hosts that share nothing (network namespaces, file systems of their own), files in a store: hosts switched off, frozen, cut off from queue, store or both; " +
		"creates delivered after a takeover; the store full, slow, gone, answering with errors after executing requests, and refusing credentials",
		faults:   []fault{kill, freeze, unplug, network, answers, release, scale, late, late, storeAnswers, storeTrouble, storeGone, storeSlow, gatewayDown, diskFull, diskStuck, readOnly},
		together: 3, sqlite: true, nodes: true},
	{name: "election", text: "the primary of a replica set steps down, beside kill", faults: []fault{stepDown, kill}, together: 1, election: true},
	{name: "clock", text: "wall clocks of workers and producers jump by up to an hour, both ways (a build in which the product's own time.Now is shifted), beside kill and freeze",
		faults: []fault{clockJump, clockJump, kill, freeze}, together: 2, sqlite: true, variant: "clock"},
	{name: "history", text: "locks under kill, freeze, network, answers and locks; what all did to them is checked to be linearizable (Porcupine)",
		faults: []fault{kill, freeze, network, answers, release}, together: 2, sqlite: true, variant: "history"},
	{name: "mix", text: "all of these that the run's backend allows, several at a time", faults: []fault{kill, freeze, network, answers, release, pause, scale},
		together: 3, sqlite: true},
	{name: "storm", text: "mix, with a server and a disk of the run's own that fail, too",
		faults: []fault{kill, freeze, network, answers, release, pause, scale, serverPause, diskFull, diskStuck}, together: 3, server: true, disk: true},
}

func findScenario(name string) (scenario, error) {
	var names []string
	for _, s := range scenarios {
		if s.name == name {
			return s, nil
		}
		names = append(names, s.name)
	}
	return scenario{}, fmt.Errorf("there is no scenario %q; there are %s", name, strings.Join(names, ", "))
}

// backends are where runs keep their queue and their locks.
var backends = []string{"mongodb", "sqlite"}

// on reports whether a scenario can be run on a backend.
func (s scenario) on(backend string) bool { return backend == "mongodb" || s.sqlite }

// stores are where runs may keep their files, instead of a directory.
var stores = []string{"mongodb", "s3", "shared"}

// event is a fault at a time of a run.
type event struct {
	at   time.Duration
	seed uint64
	fault
}

// plan returns what a seed means: which faults, when, and each with a seed of its own. Their targets depend on who holds what at
// that time, and on the machine's exact timing: the same seed gives the same plan, not the same history.
func (s scenario) plan(backend, store string, lease time.Duration, rng *rand.Rand) []event {
	faults := slices.DeleteFunc(slices.Clone(s.faults), func(f fault) bool {
		return f.mongodb && backend != "mongodb" || f.stores != nil && !slices.Contains(f.stores, store)
	})
	var events []event
	for range s.together {
		for at := time.Duration(rng.Int64N(int64(lease))); at < chaosLeases*lease; at += time.Duration((0.2 + rng.Float64()) * float64(lease)) {
			events = append(events, event{at: at, seed: rng.Uint64(), fault: faults[rng.IntN(len(faults))]})
		}
	}
	slices.SortStableFunc(events, func(a, b event) int { return int(a.at - b.at) })
	return events
}

// chaosLeases is the number of leases within which a run's faults begin.
const chaosLeases = 3
