package simulation

import (
	"flag"
	"reflect"
	"strings"
	"testing"
	"unsafe"

	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/worker"
)

// mutant drops one rule of the product: mostly by a switch that its package has for its own tests.
type mutant struct {
	worker, storage, publisher string // the switch, a bool
	lock                       uint   // the switch, a bit
}

// The switches of package lock, in their order there.
const (
	earlyTakeover = 1 << iota
	ownLease
	deadlineFromReply
	noLossTimer
	earlySeed
	noWriterMark
	selfish
	noConfirm
)

var mutants = map[string]mutant{
	"acknowledged before the sync":       {worker: "ackBeforeSync"},
	"any order":                          {worker: "noContiguity"},
	"buried after the checkpoint":        {worker: "buryLate"},
	"keys are not in checkpoints":        {worker: "forgetKeys"},
	"copies by key leave no entry":       {worker: "noSkipForCopies"},
	"skipped and not buried":             {worker: "forgetSkipped"},
	"walk jumps forward":                 {worker: "jumpForward"},
	"no sync":                            {storage: "noSync"},
	"failed sync is tried again":         {storage: "retrySync"},
	"size is not checked after the sync": {storage: "noSizeCheck"},
	"landing is not checked":             {storage: "noLandingCheck"},
	"scanned before the fence":           {storage: "scanBeforeFence"},
	"fence is not synced":                {storage: "noFenceSync"},
	"cache is trusted":                   {storage: "noReread"},
	"epochs may repeat":                  {storage: "noEpochRule"},
	"fence is not checked":               {storage: "noFenceCheck"},
	"offsets are not checked":            {storage: "noOffset"},
	"seal is not synced":                 {storage: "noSealSync"},
	"several batches in flight":          {publisher: "severalInFlight"},
	"repeated under new numbers":         {publisher: "freshIDs"},
	"number kept after a failure":        {publisher: "keepNumber"},
	"new number at once":                 {publisher: "noPause"},
	"only the last answer counts":        {publisher: "lastAnswerOnly"},
	"numbers for what is refused":        {publisher: "numberRefused"},
	"a pause rejects what was sent":      {publisher: "pauseSent"},
	"taken over early":                   {lock: earlyTakeover},
	"first token before the record":      {lock: earlySeed},
	"unclear grants are not confirmed":   {lock: noConfirm},
}

var search = flag.Bool("search", false, "TestMutants tells how many schedules each takes")

// TestMutants drops the rules one by one.
func TestMutants(t *testing.T) {
	for name, m := range mutants {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			if *search {
				m.search(t)
			}
		})
	}
}

func (m *mutant) search(t *testing.T) {
	t.Log(t.Name())
	var at []uint64
	for s := uint64(1); s < 3000 && len(at) < 8; s++ {
		if o := run(t, s, m, nil); len(o.failures) > 0 {
			if len(at) == 0 {
				t.Logf("%.300s", strings.Join(o.failures, "\n"))
			}
			at = append(at, s)
		}
	}
	t.Logf("noticed at %v", at)
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
		set(&c.Storage, true, "mutant", m.storage)
	}
}

func (m *mutant) changePublisher(p *queue.Publisher) {
	if m.publisher != "" {
		set(p, true, "mutant", m.publisher)
	}
}
