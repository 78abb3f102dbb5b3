package drills

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// outcome is the result of one random sequence.
type outcome struct {
	backend string
	failed  bool
	steps   map[string]int
	made    int // messages
	missing int // messages that are missing and accounted for by the operator or a command
}

var outcomes struct {
	sync.Mutex
	all []outcome
}

// note records how a sequence ended.
func (e *estate) note(t *testing.T, backend string) {
	outcomes.Lock()
	defer outcomes.Unlock()
	outcomes.all = append(outcomes.all, outcome{backend, t.Failed(), e.played, e.made, len(e.missing)})
}

// writeRecord writes the page about all random sequences.
func writeRecord(path string, began time.Time) error {
	var b strings.Builder
	b.WriteString(`# What the drills have shown

` + "`make drills`" + ` writes this page. A sequence takes one database, one directory of files and real programs through random steps: traffic, routine work
and disasters. After a disaster, the operator does what [operations.md](operations.md) and the programs say. After every step, each confirmed
message must be exactly once in the file, in the queue, or a dead letter, or a command must have said that it is missing.

`)
	fmt.Fprintf(&b, "%s, %s/%s, %d CPUs, seeds %d–%d, %d steps each.\n\n", began.UTC().Format("2006-01-02 15:04 UTC"), runtime.GOOS, runtime.GOARCH,
		runtime.NumCPU(), *firstSeed, *firstSeed+uint64(*sequences)-1, *length)
	b.WriteString("| backend | sequences | broke the promise | messages | missing, and accounted for |\n|---|--:|--:|--:|--:|\n")
	total := map[string]int{}
	for _, backend := range []string{"sqlite", "mongodb"} {
		var n, failed, made, missing int
		for _, o := range outcomes.all {
			if o.backend != backend {
				continue
			}
			n, made, missing = n+1, made+o.made, missing+o.missing
			if o.failed {
				failed++
			}
			for name, times := range o.steps {
				total[name] += times
			}
		}
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %d |\n", backend, n, failed, made, missing)
	}
	b.WriteString("\n| step | times |\n|---|--:|\n")
	for _, s := range steps {
		name := s.name
		if s.disaster {
			name = "**" + name + "**"
		}
		fmt.Fprintf(&b, "| %s | %d |\n", name, total[s.name])
	}
	return os.WriteFile(path, []byte(b.String()), 0o666)
}
