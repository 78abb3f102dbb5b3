package messages

import (
	"strings"
	"testing"
)

func TestJournalNoticesWhatIsWrong(t *testing.T) {
	write := func(messages ...[]byte) *Journal {
		j, err := OpenJournal(t.TempDir(), "test")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { j.F.Close() })
		for _, m := range messages {
			if err := j.Append(m); err != nil {
				t.Fatal(err)
			}
		}
		return j
	}
	damaged := Payload(1)
	damaged[100]++
	if err := write(Payload(0), Payload(1)).Check(2); err != nil {
		t.Error(err)
	}
	for want, j := range map[string]*Journal{
		"message 2 where 1 belongs": write(Payload(0), Payload(2)),
		"message 0 where 1 belongs": write(Payload(0), Payload(0)),
		"has 1 messages, want 2":    write(Payload(0)),
		"damaged":                   write(Payload(0), damaged),
		"ends within a message":     write(Payload(0), Payload(1)[:8]),
	} {
		if err := j.Check(2); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	if err := write(Payload(1), Payload(0), Payload(1)).Each(AsSet(map[int]bool{})); err == nil || !strings.Contains(err.Error(), "twice") {
		t.Errorf("got %v", err)
	}
}

func TestWithDatabase(t *testing.T) {
	for uri, want := range map[string]string{
		"mongodb://h:1":                "mongodb://h:1/db",
		"mongodb://h:1/":               "mongodb://h:1/db",
		"mongodb://h:1/other?a=b/c":    "mongodb://h:1/db?a=b/c",
		"mongodb://u:p@h:1,i:2?x=y":    "mongodb://u:p@h:1,i:2/db?x=y",
		"mongodb+srv://h.example/?x=y": "mongodb+srv://h.example/db?x=y",
	} {
		if got := withDatabase(uri, "db"); got != want {
			t.Errorf("%s: got %s", uri, got)
		}
	}
}
