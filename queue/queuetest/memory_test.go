package queuetest_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/fencepost/fencepost/internal/race"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestMemoryConforms(t *testing.T) {
	queuetest.Run(t, func(*testing.T) func(*testing.T) queue.Queue {
		q := queuetest.NewMemory()
		return func(*testing.T) queue.Queue { return q }
	})
}

func TestSpoiledInMemory(t *testing.T) {
	race.Skip(t)
	queuetest.RunSpoiled(t, func(*testing.T) queuetest.SpoiledStore {
		q := queuetest.NewMemory()
		return queuetest.SpoiledStore{
			Open: func(*testing.T) queue.Queue { return q },
			Spoil: map[string]queuetest.Spoiling{"no payload": {
				Do:   func(_ *testing.T, typ string, id queue.ID) { q.Spoil(typ, id, "no payload") },
				Undo: func(_ *testing.T, typ string, id queue.ID) { q.Spoil(typ, id, "") },
				Why:  []string{"payload"},
			}},
			Keys:         []string{"note-1", "note-2", "zzz"},
			PlantForeign: func(_ *testing.T, typ string, keys ...string) { q.PlantForeign(typ, keys...) },
			KeyOf:        func(_ string, id queue.ID) string { return id.String() },
		}
	})
}

func TestUnfitInMemory(t *testing.T) {
	race.Skip(t)
	queuetest.RunUnfit(t, func(*testing.T) queuetest.UnfitStore {
		q := queuetest.NewMemory()
		return queuetest.UnfitStore{
			Open: func(*testing.T) queue.Queue { return q },
			Plant: func(_ *testing.T, msgs ...queue.Message) {
				for _, m := range msgs {
					q.PlantDelayed(m)
				}
			},
			Foreign: map[string]func(*testing.T, queue.ScheduleKey){"incomplete": func(_ *testing.T, at queue.ScheduleKey) {
				q.PlantDelayed(queue.Message{Type: at.Type, ID: at.ID, Due: at.Due, Incomplete: true})
			}},
		}
	})
}
