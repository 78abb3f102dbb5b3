package queuetest

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuedriver"
)

// testSettings: a patch changes only the settings that it names, registers the type and is durable at once; invalid patches change
// nothing; and settings alone stop neither Insert nor Fetch, because publishers and workers enforce them.
func testSettings(t *testing.T, open func(t *testing.T) queue.Queue) {
	q, ctx := open(t), t.Context()
	want := func(typ string, w queue.Settings) {
		t.Helper()
		got, err := open(t).Settings(ctx, typ)
		if err != nil {
			t.Fatal(err)
		}
		if age := time.Since(got.Changed); got.Changed.IsZero() != w.Changed.IsZero() || !got.Changed.IsZero() && age.Abs() > time.Hour {
			t.Errorf("Settings(%s) changed at %v", typ, got.Changed)
		}
		got.Changed, w.Changed = time.Time{}, time.Time{}
		if got != w {
			t.Errorf("Settings(%s) = %+v, want %+v", typ, got, w)
		}
	}
	wantAll := func(types ...string) {
		t.Helper()
		all, err := q.AllSettings(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if len(all) != len(types) {
			t.Errorf("AllSettings = %v, want %q", all, types)
		}
		for _, typ := range types {
			one, err := q.Settings(ctx, typ)
			if err != nil || !one.Changed.Equal(all[typ].Changed) {
				t.Errorf("AllSettings says %+v, Settings(%s) %+v, %v", all[typ], typ, one, err)
			}
			one.Changed = all[typ].Changed
			if all[typ] != one {
				t.Errorf("AllSettings says %+v, Settings(%s) %+v", all[typ], typ, one)
			}
		}
	}
	change := func(typ string, c queue.SettingsPatch) {
		t.Helper()
		got, err := q.PatchSettings(ctx, typ, c)
		if err != nil {
			t.Fatal(err)
		}
		if now, err := q.Settings(ctx, typ); err != nil || !now.Changed.Equal(got.Changed) || got.Why != now.Why || got.MaxBacklog != now.MaxBacklog ||
			got.DrainPaused != now.DrainPaused || got.PublishPaused != now.PublishPaused {
			t.Errorf("PatchSettings returns %+v, Settings %+v, %v", got, now, err)
		}
	}
	some := time.Unix(1, 0)

	want("orders", queue.Settings{})
	wantAll()
	for _, c := range []queue.SettingsPatch{{}, {Why: "nothing"}, {MaxBacklog: new(-1)}, {MaxBacklog: new(queue.MaxBacklogLimit + 1)}} {
		if _, err := q.PatchSettings(ctx, "orders", c); err == nil {
			t.Errorf("%+v must be refused", c)
		}
	}
	want("orders", queue.Settings{})

	// A type that was registered before, and one that is unknown.
	if err := q.RegisterType(ctx, "orders"); err != nil {
		t.Fatal(err)
	}
	want("orders", queue.Settings{})
	change("orders", queue.SettingsPatch{DrainPaused: new(true), Why: "the ü disk"})
	want("orders", queue.Settings{DrainPaused: true, Why: "the ü disk", Changed: some})
	change("audit", queue.SettingsPatch{MaxBacklog: new(queue.MaxBacklogLimit)})
	want("audit", queue.Settings{MaxBacklog: queue.MaxBacklogLimit, Changed: some})
	want("orders-b", queue.Settings{})
	wantAll("orders", "audit")
	if err := q.RegisterType(ctx, "orders"); err != nil { // changes nothing
		t.Fatal(err)
	}
	if types, err := q.Types(ctx); err != nil || !slices.Equal(types, []string{"audit", "orders"}) {
		t.Errorf("Types = %v, %v: a type with settings must be listed", types, err)
	}

	// One setting after the other; none affects the others.
	change("orders", queue.SettingsPatch{PublishPaused: new(true)})
	change("orders", queue.SettingsPatch{MaxBacklog: new(7), Why: strings.Repeat("x", queue.MaxReason+1)})
	want("orders", queue.Settings{DrainPaused: true, PublishPaused: true, MaxBacklog: 7, Why: strings.Repeat("x", queue.MaxReason), Changed: some})
	change("orders", queue.SettingsPatch{DrainPaused: new(false), PublishPaused: new(false)})
	want("orders", queue.Settings{MaxBacklog: 7, Changed: some})
	wantAll("orders", "audit")
	change("orders", queue.SettingsPatch{MaxBacklog: new(0), Why: "done"})
	want("orders", queue.Settings{Why: "done", Changed: some})
	wantAll("audit")

	// Settings mean nothing to the queue itself.
	change("orders", queue.SettingsPatch{DrainPaused: new(true), PublishPaused: new(true), MaxBacklog: new(1)})
	mustInsert(t, q, "orders", numbered("orders", 1, 3))
	wantMessages(t, fetchAll(t, q, "orders"), numbered("orders", 1, 3))
}

// testSettingsRace: several operators change different settings of one new type concurrently, and no change is lost. A backend that
// reads, changes and writes back in separate steps would lose some.
func testSettingsRace(t *testing.T, open func(t *testing.T) queue.Queue) {
	changes := []queue.SettingsPatch{{DrainPaused: new(true)}, {PublishPaused: new(true)}, {MaxBacklog: new(5)}}
	queues := []queue.Queue{open(t), open(t), open(t), open(t)}
	for round := range 5 {
		typ := fmt.Sprintf("t%d", round)
		var all sync.WaitGroup
		for i, q := range queues {
			all.Go(func() {
				if i == len(changes) {
					if err := q.RegisterType(t.Context(), typ); err != nil {
						t.Error(err)
					}
				} else if _, err := q.PatchSettings(t.Context(), typ, changes[i]); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		got, err := queues[0].Settings(t.Context(), typ)
		got.Changed = time.Time{}
		if want := (queue.Settings{DrainPaused: true, PublishPaused: true, MaxBacklog: 5}); got != want || err != nil {
			t.Errorf("Settings = %+v, %v, want %+v", got, err, want)
		}
	}
}

// testMembers: a heartbeat replaces the last one of its member in all fields, members are sorted and come in pages, and Leave removes one. The
// balance of types between replicas depends on it.
func testMembers(t *testing.T, open func(t *testing.T) queue.Queue) {
	q, ctx := open(t), t.Context()
	now, err := q.Now(ctx)
	if err != nil {
		t.Fatal(err)
	}
	started := time.UnixMilli(now.UnixMilli())
	want := func(members ...queue.Member) {
		t.Helper()
		wantMembers(t, open(t), now, started, members)
	}
	beat := func(m queue.Member) {
		t.Helper()
		if err := q.Heartbeat(ctx, m); err != nil {
			t.Fatal(err)
		}
	}
	want()
	for _, m := range []queue.Member{{}, {Instance: strings.Repeat("x", queuedriver.MaxMemberID+1)}, {Instance: "a", MaxTypes: -1}, {Instance: "\xff"}} {
		if err := q.Heartbeat(ctx, m); err == nil {
			t.Errorf("a heartbeat of %+v must be refused", m)
		}
	}
	a := queue.Member{Instance: "a", Host: "höst", PID: 1 << 22, Version: "v1", Started: started, Types: []string{"orders", "audit-*"}, MaxTypes: 3, To: queue.ToHandler, Held: []string{"audit-1", "orders"}, Idle: []string{"orders"}, Leaving: []string{"audit-1"},
		Errors: map[string]string{"orders": "the disk is full", "v1.audit": "öops"}, Beat: 1 << 60}
	b := queue.Member{Instance: "b", Started: started}
	beat(b)
	beat(a)
	want(a, b)
	a.Errors = nil
	a.Held, a.Idle, a.Leaving, a.Beat, a.Stopping, a.MaxTypes, a.To = nil, nil, nil, 2, true, 0, "" // everything is replaced
	beat(a)
	want(a, b)
	for range 2 {
		if err := q.Leave(ctx, "b"); err != nil {
			t.Fatal(err)
		}
		want(a)
	}
	beat(b) // back again
	want(a, b)

	// Several members concurrently, each from several handles.
	members := []queue.Member{a, b}
	for i := range 5 {
		members = append(members, queue.Member{Instance: fmt.Sprint("m", i), Started: started})
	}
	var all sync.WaitGroup
	for range 3 {
		q := open(t)
		all.Go(func() {
			for _, m := range members[2:] {
				if err := q.Heartbeat(ctx, m); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	want(members...)
	wantPages(t, q, members)
	if types, err := q.Types(ctx); err != nil || len(types) != 0 {
		t.Errorf("Types = %v, %v: a type that only members serve must not be listed", types, err)
	}
}

// wantMembers checks that exactly these members are listed, all with the same start, and with heartbeats since began.
func wantMembers(t *testing.T, q queue.Queue, began, started time.Time, members []queue.Member) {
	t.Helper()
	got, err := q.Members(t.Context(), "", 0)
	if err != nil {
		t.Fatal(err)
	}
	for i := range got {
		m := &got[i]
		if d := m.Seen.Sub(began); d < -time.Second || d > time.Hour {
			t.Errorf("%s was seen at %v, began at %v", m.Instance, m.Seen, began)
		}
		if !m.Started.Equal(started) {
			t.Errorf("%s was started at %v, want %v", m.Instance, m.Started, started)
		}
		m.Seen, m.Started = time.Time{}, started
		for _, types := range []*[]string{&m.Types, &m.Held, &m.Idle, &m.Leaving} {
			if len(*types) == 0 { // no types and a nil list are the same
				*types = nil
			}
		}
	}
	if !reflect.DeepEqual(got, members) && len(got)+len(members) > 0 {
		t.Fatalf("Members = %+v, want %+v", got, members)
	}
}

// wantPages lists the members from after each of them, from the start and from after all, in pages of every size.
func wantPages(t *testing.T, q queue.Queue, members []queue.Member) {
	t.Helper()
	rest := members
	for _, after := range slices.Concat([]queue.Member{{}}, members, []queue.Member{{Instance: "z"}}) {
		if len(rest) > 0 && after.Instance == rest[0].Instance {
			rest = rest[1:]
		}
		for most := 1; most <= len(members)+1; most++ {
			got, err := q.Members(t.Context(), after.Instance, most)
			want := rest[:min(most, len(rest))]
			if err != nil || !slices.EqualFunc(got, want, func(a, b queue.Member) bool { return a.Instance == b.Instance }) {
				t.Errorf("Members(%q, %d) = %+v, %v, want %+v", after.Instance, most, got, err, want)
			}
		}
	}
}
