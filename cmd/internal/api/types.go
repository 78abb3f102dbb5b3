package api

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/fencepost/fencepost/internal/printable"
	"github.com/fencepost/fencepost/queue"
)

// The JSON of types. Field names are those of fencepost types ls -o json.
type (
	typeName struct {
		Type string `json:"type"`
		control
	}
	control struct {
		PublishPaused bool   `json:"publish_paused,omitempty"`
		DrainPaused   bool   `json:"drain_paused,omitempty"`
		MaxBacklog    int    `json:"max_backlog,omitempty"`
		Why           string `json:"why,omitempty"` // the reason given with the last change to the three above
	}
	typeList struct {
		Types []typeName `json:"types"`
		Next  string     `json:"next,omitempty"` // the value of after for the next page
	}
	typeState struct {
		typeName
		Pending       int     `json:"pending"`
		PendingCapped bool    `json:"pending_capped,omitempty"` // there are more
		OldestSeconds float64 `json:"oldest_seconds"`
		DurableIndex  uint64  `json:"durable_index"` // messages in the file
		Epoch         uint64  `json:"epoch"`
		Generation    uint64  `json:"generation"` // of the file; 0: no file yet
		Place         string  `json:"place,omitempty"`
		FileDamaged   string  `json:"file_damaged,omitempty"` // why the registry entry of the file cannot be read
	}
)

func controlOf(s queue.Settings) control {
	return control{s.PublishPaused, s.DrainPaused, s.MaxBacklog, s.Why}
}

// limit returns the limit of a request.
func limit(r *http.Request, byDefault, most int) (int, error) {
	text := cmp.Or(r.URL.Query().Get("limit"), strconv.Itoa(byDefault))
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > most {
		return 0, malformed("use 1 to "+strconv.Itoa(most), "limit is not an allowed number")
	}
	return n, nil
}

// types lists types by name.
func (s *Server) types(w *answer, r *http.Request, c *client) error {
	n, err := limit(r, 100, 1000)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), askTimeout)
	defer cancel()
	names, err := s.backend.Queue.Types(ctx)
	if err != nil {
		return err
	}
	settings, err := s.backend.Queue.AllSettings(ctx)
	if err != nil {
		return err
	}
	after := r.URL.Query().Get("after")
	names = slices.DeleteFunc(names, func(name string) bool { return name <= after || !c.mayUse(name) })
	list := typeList{Types: []typeName{}}
	if len(names) > n {
		names, list.Next = names[:n], names[n-1]
	}
	for _, name := range names {
		list.Types = append(list.Types, typeName{name, controlOf(settings[name])})
	}
	return writeJSON(w, list)
}

// typ responds with the state of one type.
func (s *Server) typ(w *answer, r *http.Request, _ *client) error {
	name := r.PathValue("type")
	ctx, cancel := context.WithTimeout(r.Context(), askTimeout)
	defer cancel()
	q := s.backend.Queue
	file, hasFile, err := q.RegistryEntry(ctx, name)
	t := typeState{typeName: typeName{Type: name}}
	if errors.Is(err, queue.ErrDamaged) {
		t.FileDamaged = s.clean(err)
	} else if err != nil {
		return err
	}
	depth, err := q.Depth(ctx, name, s.o.CountUpTo)
	if err != nil {
		return err
	}
	if !hasFile && depth.Pending == 0 {
		if err := s.known(ctx, name); err != nil {
			return err
		}
	}
	settings, err := q.Settings(ctx, name)
	if err != nil {
		return err
	}
	t.control = controlOf(settings)
	t.Pending, t.PendingCapped = depth.Pending, depth.Capped
	t.DurableIndex, t.Epoch, t.Generation, t.Place = file.DurableIndex, file.Epoch, file.Generation, file.Place
	if depth.Pending > 0 {
		now, err := q.Now(ctx)
		if err != nil {
			return err
		}
		t.OldestSeconds = max(now.Sub(depth.Oldest.Time()).Round(time.Millisecond).Seconds(), 0)
	}
	return writeJSON(w, t)
}

// known returns an error if nothing was ever published to a type.
func (s *Server) known(ctx context.Context, name string) error {
	names, err := s.backend.Queue.Types(ctx)
	if err == nil && !slices.Contains(names, name) {
		err = notFound("no_such_type", "publish to it, or correct the name", "nothing was ever published to type %s", name)
	}
	return err
}

func writeJSON(w *answer, v any) error {
	w.Header().Set("Content-Type", "application/json")
	return printable.EncodeJSON(w, v, "")
}
