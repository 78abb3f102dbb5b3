package ui

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"time"
)

const (
	formLife    = 15 * time.Minute // how long a confirmation page is valid; outcomes are kept for as long
	mostActions = 4                // concurrent actions
	mostKept    = 1000             // kept outcomes
)

// order is the action that a confirmation page describes. The page's form carries it, signed, so that exactly what was described is
// done.
type order struct {
	Action string
	Query  string    // the objects of the action, as in the address of the confirmation page
	Before time.Time // only messages or letters from before this time, by the server's clock
	Count  int       // letters or messages that were counted for the page; 1 for a type or a lock
	More   bool      // there were more
	Token  int64     // of the lock when the page was made
	User   string
	Nonce  string
	Issued int64 // Unix time in seconds, by this machine's clock
}

// forms signs orders and keeps their outcomes, so that an order is carried out once, however often its form is sent. Safe for concurrent use.
type forms struct {
	key []byte

	mu      sync.Mutex
	kept    map[string]*outcome // by nonce
	running int
	closed  bool
	acting  sync.WaitGroup
}

func newForms() *forms {
	f := &forms{key: make([]byte, 32), kept: map[string]*outcome{}}
	rand.Read(f.key)
	return f
}

func (f *forms) mac(text []byte) []byte {
	m := hmac.New(sha256.New, f.key)
	m.Write(text)
	return m.Sum(nil)
}

// sign returns the value of a form's hidden field.
func (f *forms) sign(o order) string {
	o.Nonce, o.Issued = rand.Text(), time.Now().Unix()
	text, err := json.Marshal(o)
	if err != nil {
		panic(err) // only strings, numbers and a time
	}
	return base64.RawURLEncoding.EncodeToString(text) + "." + base64.RawURLEncoding.EncodeToString(f.mac(text))
}

var (
	errForm = errors.New("this form was made for another user or action, or before this program was restarted")
	errOld  = errors.New("this form is older than 15 minutes")
	errStop = errors.New("the program is stopping")
	errBusy = errors.New("several actions are in progress; try again when one of them has ended")
)

// read returns the order in a form.
func (f *forms) read(value, action, user string) (o order, err error) {
	text, mac, _ := strings.Cut(value, ".")
	b, err := base64.RawURLEncoding.DecodeString(text)
	sum, errSum := base64.RawURLEncoding.DecodeString(mac)
	// rule: an order counts only if this program has made it, for this user. Another site cannot forge one.
	if err != nil || errSum != nil || !hmac.Equal(sum, f.mac(b)) || json.Unmarshal(b, &o) != nil || o.Action != action || o.User != user {
		return order{}, errForm
	}
	if time.Since(time.Unix(o.Issued, 0)) > formLife {
		return order{}, errOld
	}
	return o, nil
}

// outcome is the progress and the result of an order.
type outcome struct {
	order order
	why   string
	began time.Time
	done  chan struct{} // closed when it has ended

	mu     sync.Mutex
	state  string // one of the states below
	sofar  int    // letters or messages done
	said   []string
	ended  time.Time
	failed string
}

// The states of an outcome.
const (
	underWay = "under way"
	complete = "done"
	partly   = "partly done"
	nothing  = "nothing to do"
	failed   = "failed"
)

// begin returns the outcome of an order, and whether the caller must carry it out.
func (f *forms) begin(o order, why string) (out *outcome, first bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	// rule: an order is carried out once, however often its form is sent.
	if out := f.kept[o.Nonce]; out != nil {
		return out, false, nil
	}
	for nonce, out := range f.kept {
		if time.Since(out.began) > formLife && out.hasEnded() {
			delete(f.kept, nonce)
		}
	}
	if f.closed {
		return nil, false, errStop
	}
	if f.running >= mostActions || len(f.kept) >= mostKept {
		return nil, false, errBusy
	}
	f.running++
	f.acting.Add(1)
	out = &outcome{order: o, why: why, began: time.Now(), done: make(chan struct{}), state: underWay}
	f.kept[o.Nonce] = out
	return out, true, nil
}

// end records that an order has been carried out.
func (f *forms) end(out *outcome) {
	f.mu.Lock()
	f.running--
	f.mu.Unlock()
	close(out.done)
	f.acting.Done()
}

// close prevents new actions, and waits for those in progress.
func (f *forms) close() {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	f.acting.Wait()
}

// find returns the outcome of a user's order, nil if it is not kept.
func (f *forms) find(nonce, user string) *outcome {
	f.mu.Lock()
	defer f.mu.Unlock()
	if out := f.kept[nonce]; out != nil && out.order.User == user {
		return out
	}
	return nil
}

func (out *outcome) hasEnded() bool {
	select {
	case <-out.done:
		return true
	default:
		return false
	}
}

// wait waits for the end of the action, for at most d.
func (out *outcome) wait(ctx context.Context, d time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	select {
	case <-out.done:
	case <-ctx.Done():
	}
}
