package ui

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/fencepost/fencepost/cmd/internal/admin"
	"github.com/fencepost/fencepost/lock"
)

func planLock(u *UI, ctx context.Context, q url.Values, s *snapshot, p *plan) error {
	name := q.Get("lock")
	r, err := u.o.Backend.Locker.Inspect(ctx, name)
	switch {
	case errors.Is(err, lock.ErrUnknown), errors.Is(err, lock.ErrInvalid):
		return notFound("There is no lock %s.", name)
	case err != nil && !errors.Is(err, lock.ErrDamaged):
		return err
	}
	p.begin(u, q)
	force := p.order.Action == "force"
	p.order.Token, p.Danger = r.Token, force
	p.Hint = "The holder logs it, and the page of the locks shows it."
	holds := r.Holds()
	damaged := r.Damaged != nil || err != nil
	for _, h := range holds[:min(len(holds), someRows)] {
		row := holderOf(h)
		p.Facts = append(p.Facts, fact{Name: "holder", Value: strings.TrimSuffix(row.Who+", "+row.Kind+", lease "+row.Lease+": "+row.Why, ": ")})
		if h.Asked != "" {
			p.Facts = append(p.Facts, fact{Name: "already asked", Value: h.Asked})
		}
	}
	if !damaged {
		p.Facts = append(p.Facts, fact{Name: "token", Value: fmt.Sprint(r.Token)}, fact{Name: "in line", Value: count(len(r.Queue))})
	}
	switch {
	case len(holds) == 0 && !damaged:
		p.Nothing = "Nobody holds this lock."
	case !force && damaged:
		p.Nothing = "The record of this lock is damaged, so its holder is unknown and cannot be asked. Taking the lock away removes the record."
	case !force:
		p.say("The holder of %s is asked to release it, and sees that at its next renewal. A worker finishes what it has fetched, and releases the type.", name)
	case damaged:
		p.say("The damaged record of %s is removed. Then the lock is free.", name)
	default:
		p.say("The lock %s is taken away. Its holder notices within a fifth of its lease. The file refuses its writes as soon as the next holder has opened it, so nothing is lost or written twice.", name)
		p.Warnings = append(p.Warnings, "Do this only if a holder hangs, and ask it first. A dead holder loses the lock without this.")
	}
	return nil
}

func doLock(u *UI, ctx context.Context, d *doing) (did, error) {
	ctx, cancel := context.WithTimeout(ctx, pageTimeout)
	defer cancel()
	name := d.q.Get("lock")
	r, err := u.o.Backend.Locker.Inspect(ctx, name)
	// rule: an action applies to the holder that was shown, not to one that has taken the lock since.
	if err == nil && r.Token != d.order.Token {
		return did{said: []string{"The lock has changed hands since the confirmation page was made. Nothing was done."}}, nil
	}
	said, err := admin.ReleaseLock(ctx, u.o.Backend, name, d.why, d.order.Action == "force")
	switch {
	case errors.Is(err, lock.ErrNotHeld), errors.Is(err, lock.ErrUnknown):
		return did{said: []string{"Nobody holds the lock any more. Nothing was done."}}, nil
	case err != nil:
		return did{}, err
	}
	return did{admin.Outcome{Chosen: 1, Done: 1}, []string{strings.ToUpper(said[:1]) + said[1:] + "."}}, nil
}
