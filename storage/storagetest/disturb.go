package storagetest

import (
	"context"
	"errors"
	"syscall"

	"github.com/fencepost/fencepost/storage"
)

// level says which operations of a place are disturbed.
type level func(Place, context.Context, Hooks) Disturbed

// orNothing fills in hooks that do nothing.
func (h Hooks) orNothing() Hooks {
	if h.Before == nil {
		h.Before = func(Operation) Fate { return Made }
	}
	if h.After == nil {
		h.After = func(Operation) {}
	}
	return h
}

// requests disturbs requests.
func (p Place) requests(ctx context.Context, h Hooks) Disturbed { return p.Requests(ctx, h) }

// calls disturbs the calls of the file system.
func (p Place) calls(ctx context.Context, h Hooks) Disturbed {
	fsys := p.FS(ctx)
	tap := &Tap{FS: fsys}
	tap.Before = func(c Call) *Fault { return faultOf(c.Op, h.Before(c.operation())) }
	tap.After = func(c Call) { h.After(c.operation()) }
	if half, ok := fsys.(storage.HalfRemover); ok {
		return Disturbed{halfTap{tap, half}, tap}
	}
	return Disturbed{tap, tap}
}

func (c Call) operation() Operation {
	return Operation{N: c.N, Name: string(c.Op), Changes: c.Op.Changes() || c.Op == OpOpen, Reads: c.Op == OpRead || c.Op == OpStat || c.Op == OpFileStat}
}

// errDisturbed is returned by disturbed calls.
var errDisturbed = errors.Join(errors.New("storagetest: the call was disturbed"), syscall.EIO)

func faultOf(op Op, f Fate) *Fault {
	switch {
	case f == Made, f == Old:
		return nil
	case f == Full && (op == OpAppend || op == OpAllocate):
		return &Fault{Err: syscall.ENOSPC}
	case f == Full:
		return nil
	}
	// A file is closed even if close(2) returns an error.
	return &Fault{Err: errDisturbed, Applied: f == Unanswered || op == OpClose, Late: f == Late}
}

// halfTap is a Tap around a file system that removes files in steps.
type halfTap struct {
	*Tap
	half storage.HalfRemover
}

// HalfRemoved implements storage.HalfRemover.
func (t halfTap) HalfRemoved(typ string) (names []string, err error) {
	err = t.call(Call{Op: OpList, Name: typ}, nil, func() (err error) {
		names, err = t.half.HalfRemoved(typ)
		return err
	})
	return names, err
}
