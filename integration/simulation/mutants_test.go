package simulation

import (
	"reflect"
	"strings"
	"testing"
	"unsafe"

	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/worker"
)

// mutant drops a rule of the product by a switch that the package has for its own tests.
type mutant struct {
	worker, storage, publisher string // fields, bool
	lock                       uint   // bits
}

// earlyTakeover is a switch of package lock (mutantEarlyTakeover).
const earlyTakeover = 1 << 0

// enough schedules notice each of them: most are noticed within a few, the last ones within some hundreds.
const enough = 5000

// Not every rule is needed in a world as small as this: the packages' own tests (TestEachRuleIsNeeded and others) have the others.
var mutants = map[string]mutant{
	"acknowledged before the sync":         {worker: "ackBeforeSync"},
	"any order":                            {worker: "noContiguity"},
	"acknowledged before it is handled":    {worker: "ackBeforeHandle"},
	"keys are not in checkpoints":          {worker: "forgetKeys"},
	"no sync":                              {storage: "noSync"},
	"failed sync is tried again":           {storage: "retrySync"},
	"landing is not checked, nor the size": {storage: "noLandingCheck noSizeCheck"},
	"fence is not synced":                  {storage: "noFenceSync"},
	"fence is not checked":                 {storage: "noFenceCheck"},
	"cache is trusted":                     {storage: "noReread"},
	"epochs may repeat":                    {storage: "noEpochRule"},
	"several batches in flight":            {publisher: "severalInFlight"},
	"repeated under new numbers":           {publisher: "freshIDs"},
	"number kept after a failure":          {publisher: "keepNumber"},
	"numbers for what is refused":          {publisher: "numberRefused"},
	"a pause rejects what was sent":        {publisher: "pauseSent"},
	"taken over early":                     {lock: earlyTakeover},
}

// TestMutants drops rules one by one, and expects that the simulation notices. It does so after the same number of schedules each time.
func TestMutants(t *testing.T) {
	if !patched {
		t.Skip("make sim plays it, where a seed is a history")
	}
	for name, m := range mutants {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			for s := uint64(1); s <= enough; s++ {
				if o := run(t, s, &m, nil); len(o.failures) > 0 {
					t.Logf("seed %d: %.200s", s, o.failures[0])
					return
				}
			}
			t.Errorf("%d schedules without this rule look right", enough)
		})
	}
}

// set sets a field that only the tests of its package can name.
func set[T any](config any, value T, path ...string) {
	v := reflect.ValueOf(config).Elem()
	for _, name := range path {
		if v = v.FieldByName(name); !v.IsValid() {
			panic("simulation: no field " + strings.Join(path, ".") + " in " + reflect.TypeOf(config).String())
		}
	}
	*(*T)(unsafe.Pointer(v.UnsafeAddr())) = value
}

func (m *mutant) changeLock(o *lock.Options) { set(o, m.lock, "mutant") }

func (m *mutant) changeWorker(c *worker.Config) {
	if m.worker != "" {
		set(c, true, "mutant", m.worker)
	}
	if m.storage != "" {
		for _, rule := range strings.Fields(m.storage) {
			set(&c.Storage, true, "mutant", rule)
		}
	}
}

func (m *mutant) changePublisher(p *queue.Publisher) {
	if m.publisher != "" {
		set(p, true, "mutant", m.publisher)
	}
}
