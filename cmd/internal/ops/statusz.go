package ops

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"time"

	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/internal/globs"
	"github.com/fencepost/fencepost/internal/printable"
	"github.com/fencepost/fencepost/worker"
)

// The JSON of /statusz. Unknown values are left out.
type (
	statusJSON struct {
		Version  string        `json:"version"`
		Instance string        `json:"instance,omitempty"`
		Host     string        `json:"host"`
		PID      int           `json:"pid"`
		Started  time.Time     `json:"started"`
		Ready    bool          `json:"ready"`
		Why      string        `json:"why,omitempty"` // why it is not ready
		Stopping bool          `json:"stopping"`
		URL      string        `json:"url"`
		Store    string        `json:"store,omitempty"`
		Types    []typeJSON    `json:"types"`
		Shown    typesJSON     `json:"types_shown"`
		Settings []cli.Setting `json:"settings"`
	}
	// typesJSON counts the types that match the filter, and says where the next page begins.
	typesJSON struct {
		Matching int    `json:"matching"`
		Held     int    `json:"held"`           // matching types that are held
		Blocked  int    `json:"blocked"`        // matching types that are blocked
		Next     string `json:"next,omitempty"` // there are more types: the value of after for the next page
	}
	typeJSON struct {
		Type          string                  `json:"type"`
		State         worker.State            `json:"state"`
		Since         time.Time               `json:"since"`
		Held          bool                    `json:"held"`
		Token         int64                   `json:"token,omitempty"`
		Epoch         int64                   `json:"epoch,omitempty"` // of the file; equals the token
		Index         uint64                  `json:"durable_index"`
		Path          string                  `json:"path,omitempty"`
		Backlog       *int                    `json:"backlog,omitempty"`
		BacklogCapped bool                    `json:"backlog_capped,omitempty"` // the backlog is larger
		OldestSeconds *float64                `json:"oldest_seconds,omitempty"`
		LastCommit    time.Time               `json:"last_commit,omitzero"`
		LastError     string                  `json:"last_error,omitempty"`
		LastErrorAt   time.Time               `json:"last_error_at,omitzero"`
		Stuck         bool                    `json:"stuck,omitempty"`
		Sessions      uint64                  `json:"sessions"`
		Appended      uint64                  `json:"appended"`
		Handled       uint64                  `json:"handled,omitempty"`
		Duplicates    uint64                  `json:"duplicates"`
		Gaps          uint64                  `json:"gaps"`
		Dead          uint64                  `json:"dead"`
		Retries       uint64                  `json:"retries"`
		Losses        map[worker.Cause]uint64 `json:"losses,omitempty"`
	}
)

// Number of types in one response of /statusz.
const (
	statusTypes = 1000   // default of limit
	statusMost  = 10_000 // maximum of limit
)

// choice says which types to include in a response of /statusz.
type choice struct {
	patterns []string // names and globs; none: all
	after    string   // only names after this one
	limit    int
}

// chosen reads the parameters type, which may be repeated, after and limit.
func chosen(q url.Values) (c choice, err error) {
	c = choice{patterns: q["type"], after: q.Get("after"), limit: statusTypes}
	for _, p := range c.patterns {
		if err := globs.Check(p); err != nil {
			return c, fmt.Errorf("type=%s: not a glob: %w", p, err)
		}
	}
	if q.Has("limit") {
		if c.limit, err = strconv.Atoi(q.Get("limit")); err != nil || c.limit < 1 || c.limit > statusMost {
			return c, fmt.Errorf("limit=%s: give a number from 1 to %d", q.Get("limit"), statusMost)
		}
	}
	return c, nil
}

func (c *choice) matches(typ string) bool {
	return len(c.patterns) == 0 || globs.Match(c.patterns, typ)
}

// choose returns the types of the response, and counts all that match.
func (c *choice) choose(types []worker.TypeStatus) (chosen []worker.TypeStatus, shown typesJSON) {
	for _, t := range types {
		if !c.matches(t.Type) {
			continue
		}
		shown.Matching++
		if t.Held {
			shown.Held++
		}
		if t.State == worker.Blocked {
			shown.Blocked++
		}
		switch {
		case t.Type <= c.after:
		case len(chosen) < c.limit:
			chosen = append(chosen, t)
		default:
			shown.Next = chosen[len(chosen)-1].Type
		}
	}
	return chosen, shown
}

func (s *Server) statusz(w http.ResponseWriter, r *http.Request) {
	choice, err := chosen(r.URL.Query())
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		printable.Fprintf(w, "%v\n", err)
		return
	}
	host, _ := os.Hostname()
	j := statusJSON{Version: worker.Version(), Host: host, PID: os.Getpid(), Started: s.started, URL: s.opts.URL, Store: s.opts.Store,
		Types: []typeJSON{}, Settings: s.opts.Settings}
	err = s.ready()
	if j.Ready = err == nil; err != nil {
		j.Why = s.clean(err.Error())
	}
	pool, stopping := s.state()
	j.Stopping = stopping
	if pool != nil {
		status := pool.Status()
		j.Instance, j.Stopping = status.Instance, stopping || status.Stopping
		var types []worker.TypeStatus
		types, j.Shown = choice.choose(status.Types)
		for _, t := range types {
			j.Types = append(j.Types, typeJSON{Type: t.Type, State: t.State, Since: t.Since, Held: t.Held, Token: t.Token, Epoch: t.Token, Index: t.Index,
				Path: t.Path, LastCommit: t.LastCommit, LastError: s.clean(t.LastError), LastErrorAt: t.LastErrorAt, Stuck: t.Stuck,
				Sessions: t.Sessions, Appended: t.Appended, Handled: t.Handled, Duplicates: t.Duplicates, Gaps: t.Gaps, Dead: t.Dead,
				Retries: t.Retries, Losses: t.Losses})
		}
		s.addBacklog(r.Context(), j.Types)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	printable.EncodeJSON(w, j, "  ") // fails only if the client has disconnected
}

func (s *Server) addBacklog(ctx context.Context, types []typeJSON) {
	names := make([]string, len(types))
	for i := range types {
		names[i] = types[i].Type
	}
	known := s.metrics.Backlog(ctx, names)
	for i := range types {
		if sample, ok := known[types[i].Type]; ok {
			age := sample.Age.Seconds()
			types[i].Backlog, types[i].BacklogCapped, types[i].OldestSeconds = &sample.Pending, sample.Capped, &age
		}
	}
}
