package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/fencepost/fencepost/internal/printable"
	"golang.org/x/term"
)

// top on a terminal: a table that is refreshed, never larger than the screen.

// Control sequences of a terminal.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l\x1b[?7l" // the alternate screen, no cursor, no line wrap: some characters are wider than one column
	leaveScreen = "\x1b[?7h\x1b[?25h\x1b[?1049l"
	home        = "\x1b[H"
	clearLine   = "\x1b[K"
	clearBelow  = "\x1b[J"
)

// watchTop refreshes the table on the terminal until q, Ctrl-C or a signal.
func watchTop(ctx context.Context, v *view, out *os.File, refresh time.Duration) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	keys := make(chan byte)
	if in := int(os.Stdin.Fd()); term.IsTerminal(in) {
		before, err := term.MakeRaw(in)
		if err != nil {
			return fmt.Errorf("set up the terminal: %w", err)
		}
		defer term.Restore(in, before)
		go readKeys(ctx, keys) // may run until the program ends: a read from a terminal cannot be cancelled
	}
	io.WriteString(out, enterScreen)
	defer io.WriteString(out, leaveScreen)

	type result struct {
		s   *snapshot
		err error
	}
	results := make(chan result, 1)
	look := func() {
		go func() {
			s, err := v.look(ctx)
			results <- result{s, err}
		}()
	}
	looking := true
	look()
	defer func() { // the goroutine of look must not outlive the backend
		cancel()
		if looking {
			<-results
		}
	}()
	ticker := time.NewTicker(refresh)
	defer ticker.Stop()
	var last *snapshot
	var failed error
	draw(out, v, last, failed)
	for {
		select {
		case r := <-results:
			if looking, failed = false, r.err; r.err == nil {
				last = r.s
			}
		case <-ticker.C:
			if !looking {
				looking = true
				look()
			}
		case key := <-keys:
			switch key {
			case 'q', 'Q', 3, 4: // Ctrl-C, Ctrl-D
				return nil
			}
		case <-ctx.Done():
			return ctx.Err()
		}
		draw(out, v, last, failed)
	}
}

func readKeys(ctx context.Context, keys chan<- byte) {
	buf := make([]byte, 1)
	for {
		if n, err := os.Stdin.Read(buf); err != nil || n == 0 {
			return
		}
		select {
		case keys <- buf[0]:
		case <-ctx.Done():
			return
		}
	}
}

// draw fills the screen without scrolling it.
func draw(out *os.File, v *view, s *snapshot, failed error) {
	width, height, err := term.GetSize(int(out.Fd()))
	if err != nil || width < 20 || height < 4 {
		width, height = 80, 24
	}
	io.WriteString(out, screen(v.b.Name, s, failed, width, height, time.Now()))
}

// screen returns the text that draw writes.
func screen(name string, s *snapshot, failed error, width, height int, now time.Time) string {
	title := fmt.Sprintf("fencepost top  %s  %s", printable.Text(name), now.Format("15:04:05 MST"))
	var body bytes.Buffer
	if s != nil {
		title += fmt.Sprintf("  %d types  %d workers", len(s.Rows)+s.others, s.workers)
		if places := s.places(); len(places) == 1 {
			title += "  files in " + printable.Short(places[0])
		}
		s.table(&body)
	} else if failed == nil {
		title += "  looking …"
	}
	lines := []string{title + "  (q: quit)"}
	if failed != nil {
		message := "cannot look: " + printable.Short(failed.Error())
		if s != nil {
			message += fmt.Sprintf("; as of %s ago:", now.Sub(s.at).Round(time.Second))
		}
		lines = append(lines, message)
	} else {
		lines = append(lines, "")
	}
	lines = append(lines, strings.Split(strings.TrimRight(body.String(), "\n"), "\n")...)
	var left snapshot
	if s != nil {
		left = snapshot{others: s.others, unknown: s.unknown}
	}
	if room := height - 1; len(lines) > height || left.others > 0 {
		left.others += max(len(lines)-room, 0)
		lines = append(lines[:min(len(lines), room)], left.rest())
	}
	var b strings.Builder
	b.WriteString(home)
	for i, line := range lines {
		if r := []rune(line); len(r) > width {
			line = string(r[:width-1]) + "…"
		}
		b.WriteString(line + clearLine)
		if i < len(lines)-1 {
			b.WriteString("\r\n")
		}
	}
	b.WriteString(clearBelow)
	return b.String()
}
