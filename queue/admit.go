package queue

import (
	"context"
	"fmt"
	"time"

	"github.com/fencepost/fencepost/internal/wait"
)

// Admission: before each batch a publisher checks the settings of the type. With them operators pause
// publishing or limit the backlog, see SettingsStore.
const (
	// settingsEvery is how long a publisher uses settings after reading them, and room in a backlog
	// after counting it.
	settingsEvery = 2 * time.Second
	// settingsTimeout bounds a read of the settings. Batches wait for it.
	settingsTimeout = time.Second
	// firstSettingsTimeout bounds the first read: there are no earlier settings to fall back on.
	firstSettingsTimeout = 10 * time.Second
	// countTimeout bounds a count of the backlog.
	countTimeout = 10 * time.Second
	// countShare is the pause before the next count, as a multiple of the duration of the last one:
	// counting a large backlog costs the server a scan.
	countShare = 9
	// fullWaitMin and fullWaitMax bound the pause between two counts of a full backlog, which
	// doubles each time and is jittered.
	fullWaitMin = 50 * time.Millisecond
	fullWaitMax = time.Second
)

// controls is what a publisher knows about the settings of all types, guarded by Publisher.mu.
type controls struct {
	known   map[string]Settings
	until   time.Time     // when they must be read again
	reading chan struct{} // closed when the running read has ended; nil if none is running
}

// backlog is what a stream knows about the backlog of its type, guarded by Publisher.mu.
type backlog struct {
	room      int       // this many messages may be sent …
	until     time.Time // … before this time
	next      time.Time // do not count again before
	fullSince time.Time // when it was first found full; zero: it had room
	looks     int       // counts since then
}

// admission is the decision about the next batch. One of the fields room, wait, ask and refused is set.
type admission struct {
	room    int           // send up to this many messages
	wait    time.Duration // wait this long, then decide again
	ask     func()        // call this without Publisher.mu, then decide again
	refused error         // reject the first messages with this error …
	items   int           // … this many
}

// admit decides about the next batch, before it is formed. Called with p.mu held and s.live > 0.
//
// rule: a message refused here was never sent, so it is certainly Rejected.
// rule: it uses no number and so leaves no gap.
func (s *stream) admit() admission {
	p := s.p
	switch all := len(s.waiting); {
	case p.sending.Err() != nil:
		return admission{refused: fmt.Errorf("publish: not stored: %w", context.Cause(p.sending)), items: all}
	case s.broken != nil:
		return admission{refused: brokenError(s.broken), items: all}
	case s.awaitRepeat() && p.refused != nil:
		return admission{refused: brokenError(p.refused), items: all}
	case s.awaitRepeat(): // closed before they were published again
		return admission{refused: fmt.Errorf("publisher %w before they were sent again", ErrClosed), items: all}
	case s.repeat > 0: // rule: never refused, they may be stored
		return admission{room: s.repeat}
	case p.stopped:
		return admission{refused: fmt.Errorf("publish: not sent: publisher %w", ErrClosed), items: all}
	}
	now := time.Now()
	if !now.Before(p.controls.until) {
		return admission{ask: p.readSettings}
	}
	set := p.controls.known[s.typ]
	if set.PublishPaused {
		return admission{refused: &PausedError{s.typ, set.Why}, items: len(s.waiting)}
	}
	b := &s.backlog
	switch {
	case set.MaxBacklog == 0 || s.delayed: // delayed messages are not in the backlog
		*b = backlog{}
		return admission{room: s.live}
	case b.room > 0 && now.Before(b.until):
		return admission{room: b.room}
	}
	wait := b.next.Sub(now)
	if wait <= 0 {
		return admission{ask: func() { s.count(set.MaxBacklog) }}
	}
	if late := s.overdue(now); late > 0 {
		return admission{refused: &BacklogFullError{s.typ, set.MaxBacklog}, items: late}
	}
	return admission{wait: wait}
}

// overdue counts the first waiting messages that have waited for BacklogWait since the backlog was found full. p.mu is held.
func (s *stream) overdue(now time.Time) int {
	full := s.backlog.fullSince
	if full.IsZero() { // the last count found room
		return 0
	}
	late := 0
	for late < len(s.waiting) {
		since := s.waiting[late].since
		if since.Before(full) {
			since = full
		}
		if now.Sub(since) < s.p.opt.BacklogWait {
			break
		}
		late++
	}
	return late
}

// readSettings reads the settings of all types, or waits for a running read.
//
// rule: unreadable settings block nothing: the last known ones stay in force.
func (p *Publisher) readSettings() {
	p.mu.Lock()
	if time.Now().Before(p.controls.until) { // another stream has read them meanwhile
		p.mu.Unlock()
		return
	}
	if done := p.controls.reading; done != nil {
		p.mu.Unlock()
		<-done // bounded by the timeout of that read
		return
	}
	done, timeout := make(chan struct{}), settingsTimeout
	if p.controls.until.IsZero() { // rule: a slow server is no reason to ignore a pause
		timeout = firstSettingsTimeout
	}
	p.controls.reading = done
	p.mu.Unlock()

	ctx, cancel := context.WithTimeout(p.asking, timeout)
	all, err := p.q.AllSettings(ctx)
	cancel()

	p.mu.Lock()
	defer p.mu.Unlock()
	c := &p.controls
	if err == nil {
		c.known = all
	}
	c.until, c.reading = time.Now().Add(settingsEvery), nil
	close(done)
}

// count counts the backlog and computes the room that is left below the limit.
func (s *stream) count(limit int) {
	p := s.p
	begin := time.Now()
	ctx, cancel := context.WithTimeout(p.asking, countTimeout)
	d, err := p.q.Depth(ctx, s.typ, limit)
	cancel()

	now := time.Now()
	rest := countShare * now.Sub(begin)
	p.mu.Lock()
	b := &s.backlog
	b.until, b.next = now.Add(max(settingsEvery, rest)), now.Add(rest)
	room := limit - d.Pending
	if err != nil { // as with settings, the last answer stays valid: full, or room for a batch
		room = 0
		if b.fullSince.IsZero() {
			room = p.opt.BatchMessages
		}
	}
	if b.room = room; room > 0 {
		b.fullSince, b.looks = time.Time{}, 0
		p.mu.Unlock()
		return
	}
	first := b.looks == 0
	if first {
		b.fullSince = now
	}
	pause := min(fullWaitMin<<min(b.looks, 10), fullWaitMax)
	b.looks++
	b.next = now.Add(max(rest, wait.AtLeastHalf(pause)))
	p.mu.Unlock()
	if first && p.opt.OnBacklogFull != nil {
		p.opt.OnBacklogFull(s.typ, limit)
	}
}

// refuse removes the first items of the stream's queue, which were never sent, and marks them as
// Rejected. p.mu is held; the caller then calls report.
func (s *stream) refuse(items int, err error) []*item {
	var refused []*item
	for _, it := range s.waiting[:items] {
		if it.state == itemWaiting {
			s.live--
			s.liveBytes -= it.size
			refused = append(refused, it)
		}
	}
	clear(s.waiting[:items])
	s.waiting = s.waiting[items:]
	s.mark(refused, Rejected, err)
	s.breakOff(err)
	return refused
}
