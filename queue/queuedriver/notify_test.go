package queuedriver

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/queue"
)

func TestNotificationReader(t *testing.T) {
	var many []string
	for i := range KeptNotifications {
		many = append(many, fmt.Sprintf("t%d", i))
	}
	for _, c := range []struct {
		name   string
		since  queue.NotificationMark
		count  int64
		latest []string
		types  []string
		missed bool
	}{
		{"before all", nil, 7, []string{"a", "b"}, []string{"a", "b"}, true},
		{"nothing new", queue.NotificationMark{"": 7}, 7, []string{"a", "b"}, nil, false},
		{"one is new", queue.NotificationMark{"": 6}, 7, []string{"a", "b"}, []string{"b"}, false},
		{"all are new", queue.NotificationMark{"": 5}, 7, []string{"a", "b"}, []string{"a", "b"}, false},
		{"more than are kept", queue.NotificationMark{"": 4}, 7, []string{"a", "b"}, []string{"a", "b"}, true},
		{"the same twice", queue.NotificationMark{"": 0}, 3, []string{"a", "b", "a"}, []string{"a", "b"}, false},
		{"a log that has begun", queue.NotificationMark{}, 1 << 39, []string{"a"}, []string{"a"}, false},
		{"a log that has begun with many", queue.NotificationMark{}, 1 << 39, many, many, true},
		{"restored", queue.NotificationMark{"": 9}, 7, []string{"a", "b"}, []string{"a", "b"}, true},
		{"restored to nothing", queue.NotificationMark{"": 9}, 0, nil, nil, true},
		{"a negative count", queue.NotificationMark{"": 9}, -1 << 63, []string{"a"}, []string{"a"}, true},
		{"from a negative count", queue.NotificationMark{"": -1 << 63}, 5, []string{"a"}, []string{"a"}, true},
		{"invalid type names", queue.NotificationMark{"": 0}, 5, []string{"", "../a", "A", "a\n", strings.Repeat("a", 65)}, nil, false},
	} {
		r := ReadNotifications(c.since)
		r.Log("", c.count, c.latest)
		got := r.Result()
		if !slices.Equal(got.Types, c.types) || got.Missed != c.missed || got.Next[""] != c.count {
			t.Errorf("%s: %+v, want %v, missed %v", c.name, got, c.types, c.missed)
		}
	}
}
