package queuedriver

import (
	"slices"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/queue"
)

// FuzzNotifications: counts and lists that other programs have written to a log of notifications. A reader returns valid types, each once,
// from the latest entries; unless it reports that it has missed some, it has as many as the counts say.
func FuzzNotifications(f *testing.F) {
	for _, counts := range [][2]int64{{5, 5}, {5, 7}, {7, 5}, {0, 1 << 62}, {-1 << 63, 1<<63 - 1}, {1<<63 - 1, -1 << 63}} {
		f.Add(counts[0], counts[1], true, "orders audit orders ../x")
		f.Add(counts[0], counts[1], false, "")
	}
	f.Add(int64(0), int64(200), false, strings.Repeat("orders ", 2*KeptNotifications))
	f.Fuzz(func(t *testing.T, behind, count int64, known bool, list string) {
		latest := strings.Fields(list)
		since := queue.NotificationMark{"other": 3}
		if known {
			since["log"] = behind
		}
		r := ReadNotifications(since)
		r.Log("log", count, latest)
		got := r.Result()
		if got.Next["log"] != count || got.Next["other"] != 3 || len(got.Next) != 2 {
			t.Fatalf("the next mark is %v", got.Next)
		}
		for i, typ := range got.Types {
			if queue.ValidateType(typ) != nil || !slices.Contains(latest, typ) || slices.Contains(got.Types[:i], typ) {
				t.Fatalf("%q of %q", got.Types, latest)
			}
		}
		fresh := latest
		switch {
		case got.Missed || !known:
		case count < behind || count-behind < 0 || count-behind > int64(len(latest)):
			t.Fatalf("from %d to %d with a list of %d, and nothing is missed", behind, count, len(latest))
		default:
			fresh = latest[int64(len(latest))-(count-behind):]
		}
		for _, typ := range fresh {
			if queue.ValidateType(typ) == nil && !slices.Contains(got.Types, typ) {
				t.Fatalf("%q is not among %q", typ, got.Types)
			}
		}
		if len(got.Types) > len(fresh) {
			t.Fatalf("%q of %q", got.Types, fresh)
		}
	})
}
