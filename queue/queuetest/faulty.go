package queuetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/fencepost/fencepost/queue"
)

// Op names an operation of a queue.
type Op string

// The operations that Faulty can disturb.
const (
	OpInsert            Op = "insert"
	OpFetch             Op = "fetch"
	OpAck               Op = "ack"
	OpRegisterType      Op = "registerType"
	OpTypes             Op = "types"
	OpDepth             Op = "depth"
	OpRegistryEntry     Op = "file"
	OpRegisterFile      Op = "registerFile"
	OpUpdateFile        Op = "updateFile"
	OpSucceedFile       Op = "succeedFile"
	OpNow               Op = "now"
	OpMoveToDeadLetters Op = "bury"
	OpDeadLetters       Op = "dead"
	OpRemoveDeadLetters Op = "removeDead"
	OpHolderNote        Op = "holderNote"
	OpSetHolderNote     Op = "setHolderNote"
	OpSettings          Op = "settings"
	OpAllSettings       Op = "allSettings"
	OpPatchSettings     Op = "changeSettings"
	OpHeartbeat         Op = "heartbeat"
	OpMembers           Op = "members"
	OpLeave             Op = "leave"
	OpForeignKeys       Op = "foreign"
	OpRemoveForeignKeys Op = "removeForeign"
	OpNotify            Op = "notify"
	OpNotifications     Op = "notifications"
	OpPendingTypes      Op = "pendingTypes"
	OpPending           Op = "pending"
)

// Kind is a kind of fault of an operation.
type Kind int

// Kinds of faults. The errors are those of a real server: an Insert is unclear unless stated otherwise.
const (
	// None: the operation works.
	None Kind = iota
	// LostAnswer: performed, but the answer is an error.
	LostAnswer
	// Lost: not performed, and the answer is the same error as for LostAnswer.
	Lost
	// Partial: performed for the first Keep messages or IDs, then as Lost. Other operations: as Lost.
	Partial
	// Late: the answer is an error at once; an Insert is performed after Delay, message by message, Step apart.
	Late
	// Hang: not performed; blocks until the context ends.
	Hang
	// HangPerformed: performed, then blocks until the context ends.
	HangPerformed
	// Refused: an Insert is performed for the first Keep messages and certainly refused for the others. Other operations
	// fail with ErrPermission.
	Refused
	// Unreachable: certainly not performed; a retry may succeed.
	Unreachable
)

// ErrFault is wrapped by every injected error.
var ErrFault = errors.New("injected fault")

// Fault is what goes wrong with one operation. The zero value is no fault.
type Fault struct {
	Kind  Kind
	Keep  int
	Delay time.Duration
	Step  time.Duration
}

// Faulty injects faults into the operations of another queue. It is safe for concurrent use.
type Faulty struct {
	queue.Queue

	// Next decides about each operation; n is the number of messages or IDs. nil means no faults. It may be called
	// concurrently.
	Next func(op Op, typ string, n int) Fault
	// Around, if set, is called before Next, and the function that it returns is called when the operation is about to return. Both run
	// in the caller's goroutine without any lock held, so they may take their time.
	Around func(op Op, typ string) (after func())

	mu    sync.Mutex
	calls map[Op]int
	late  sync.WaitGroup
}

var _ queue.Queue = (*Faulty)(nil)

// Calls returns how many operations of a kind have begun.
func (f *Faulty) Calls(op Op) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[op]
}

// Wait returns when all late inserts are done.
func (f *Faulty) Wait() { f.late.Wait() }

// Close waits for late inserts and closes the queue.
func (f *Faulty) Close() error {
	f.late.Wait()
	return f.Queue.Close()
}

// around begins an operation; the function that it returns ends it.
func (f *Faulty) around(op Op, typ string) (after func()) {
	if f.Around == nil {
		return func() {}
	}
	return f.Around(op, typ)
}

// next counts the operation, and decides about its fault.
func (f *Faulty) next(op Op, typ string, n int) Fault {
	f.mu.Lock()
	if f.calls == nil {
		f.calls = map[Op]int{}
	}
	f.calls[op]++
	f.mu.Unlock()
	if f.Next == nil {
		return Fault{}
	}
	return f.Next(op, typ, n)
}

// Insert implements queue.Queue.
func (f *Faulty) Insert(ctx context.Context, typ string, msgs []queue.Message) error {
	defer f.around(OpInsert, typ)()
	fault := f.next(OpInsert, typ, len(msgs))
	keep := min(fault.Keep, len(msgs))
	perform := func(ctx context.Context, msgs []queue.Message) error {
		if len(msgs) == 0 {
			return nil
		}
		return f.Queue.Insert(ctx, typ, msgs)
	}
	unclear := &queue.InsertError{Err: fmt.Errorf("%w: the answer was lost", ErrFault)}
	switch fault.Kind {
	case LostAnswer:
		_ = perform(ctx, msgs)
		return unclear
	case Lost:
		return unclear
	case Partial:
		_ = perform(ctx, msgs[:keep])
		return unclear
	case Late:
		// The server has the messages: the caller can no longer stop it or change them.
		lateCtx, msgs := context.WithoutCancel(ctx), slices.Clone(msgs)
		for i := range msgs {
			msgs[i].Payload, msgs[i].Headers = bytes.Clone(msgs[i].Payload), maps.Clone(msgs[i].Headers)
		}
		f.late.Go(func() {
			time.Sleep(fault.Delay)
			for i := range msgs {
				if perform(lateCtx, msgs[i:i+1]) != nil {
					return
				}
				time.Sleep(fault.Step)
			}
		})
		return unclear
	case Hang, HangPerformed:
		if fault.Kind == HangPerformed {
			_ = perform(ctx, msgs)
		}
		<-ctx.Done()
		return &queue.InsertError{Err: context.Cause(ctx)}
	case Refused:
		if err := perform(ctx, msgs[:keep]); err != nil {
			return err
		}
		return &queue.InsertError{Stored: keep, Refused: true, Err: fmt.Errorf("%w: %w", ErrFault, queue.ErrPermission)}
	case Unreachable:
		return &queue.InsertError{Refused: true, Temporary: true, Err: fmt.Errorf("%w: %w", ErrFault, queue.ErrUnreachable)}
	}
	return f.Queue.Insert(ctx, typ, msgs)
}

// disturb performs an operation other than Insert with the next fault.
func disturb[T any](ctx context.Context, f *Faulty, op Op, typ string, n int, perform func(keep int) (T, error)) (T, error) {
	var zero T
	defer f.around(op, typ)()
	fault := f.next(op, typ, n)
	switch fault.Kind {
	case LostAnswer:
		_, _ = perform(n)
		return zero, fmt.Errorf("%s: %w: the answer was lost", op, ErrFault)
	case Partial:
		if op == OpAck || op == OpMoveToDeadLetters || op == OpRemoveDeadLetters || op == OpPromote || op == OpCancelDelayed {
			_, _ = perform(min(fault.Keep, n))
		}
		return zero, fmt.Errorf("%s: %w: the answer was lost", op, ErrFault)
	case Lost, Late:
		return zero, fmt.Errorf("%s: %w: the answer was lost", op, ErrFault)
	case Hang, HangPerformed:
		if fault.Kind == HangPerformed {
			_, _ = perform(n)
		}
		<-ctx.Done()
		return zero, context.Cause(ctx)
	case Refused:
		return zero, fmt.Errorf("%s: %w: %w", op, ErrFault, queue.ErrPermission)
	case Unreachable:
		return zero, fmt.Errorf("%s: %w: %w", op, ErrFault, queue.ErrUnreachable)
	}
	return perform(n)
}

// Fetch implements queue.Queue.
func (f *Faulty) Fetch(ctx context.Context, typ string, after queue.ID, limit queue.Limit) ([]queue.Message, error) {
	return disturb(ctx, f, OpFetch, typ, limit.Messages, func(int) ([]queue.Message, error) {
		return f.Queue.Fetch(ctx, typ, after, limit)
	})
}

// Ack implements queue.Queue.
func (f *Faulty) Ack(ctx context.Context, typ string, ids []queue.ID) error {
	_, err := disturb(ctx, f, OpAck, typ, len(ids), func(keep int) (struct{}, error) {
		return struct{}{}, f.Queue.Ack(ctx, typ, ids[:keep])
	})
	return err
}

// AckFile implements queue.Queue. It counts as OpAck. Partial removes only some of the messages.
func (f *Faulty) AckFile(ctx context.Context, typ string, file queue.RegistryEntry, ids []queue.ID) (bool, error) {
	return disturb(ctx, f, OpAck, typ, len(ids), func(keep int) (bool, error) { return f.Queue.AckFile(ctx, typ, file, ids[:keep]) })
}

// RegisterType implements queue.Queue.
func (f *Faulty) RegisterType(ctx context.Context, typ string) error {
	_, err := disturb(ctx, f, OpRegisterType, typ, 1, func(int) (struct{}, error) {
		return struct{}{}, f.Queue.RegisterType(ctx, typ)
	})
	return err
}

// Types implements queue.Queue.
func (f *Faulty) Types(ctx context.Context) ([]string, error) {
	return disturb(ctx, f, OpTypes, "", 1, func(int) ([]string, error) { return f.Queue.Types(ctx) })
}

// Depth implements queue.Queue.
func (f *Faulty) Depth(ctx context.Context, typ string, most int) (queue.Depth, error) {
	return disturb(ctx, f, OpDepth, typ, most, func(int) (queue.Depth, error) { return f.Queue.Depth(ctx, typ, most) })
}

// RegistryEntry implements queue.Queue.
func (f *Faulty) RegistryEntry(ctx context.Context, typ string) (file queue.RegistryEntry, ok bool, err error) {
	file, err = disturb(ctx, f, OpRegistryEntry, typ, 1, func(int) (r queue.RegistryEntry, err error) {
		r, ok, err = f.Queue.RegistryEntry(ctx, typ)
		return r, err
	})
	return file, ok && err == nil, err
}

// RegisterFile implements queue.Queue.
func (f *Faulty) RegisterFile(ctx context.Context, typ string, file queue.RegistryEntry) (queue.RegistryEntry, error) {
	return disturb(ctx, f, OpRegisterFile, typ, 1, func(int) (queue.RegistryEntry, error) { return f.Queue.RegisterFile(ctx, typ, file) })
}

// UpdateFile implements queue.Queue.
func (f *Faulty) UpdateFile(ctx context.Context, typ string, file queue.RegistryEntry) (bool, error) {
	return disturb(ctx, f, OpUpdateFile, typ, 1, func(int) (bool, error) { return f.Queue.UpdateFile(ctx, typ, file) })
}

// SucceedFile implements queue.Queue.
func (f *Faulty) SucceedFile(ctx context.Context, typ string, old [16]byte, file queue.RegistryEntry) (now queue.RegistryEntry, ok bool, err error) {
	now, err = disturb(ctx, f, OpSucceedFile, typ, 1, func(int) (r queue.RegistryEntry, err error) {
		r, ok, err = f.Queue.SucceedFile(ctx, typ, old, file)
		return r, err
	})
	return now, ok && err == nil, err
}

// Now implements queue.Queue.
func (f *Faulty) Now(ctx context.Context) (time.Time, error) {
	return disturb(ctx, f, OpNow, "", 1, func(int) (time.Time, error) { return f.Queue.Now(ctx) })
}

// MoveToDeadLetters implements queue.Queue. Partial leaves the others where they are.
func (f *Faulty) MoveToDeadLetters(ctx context.Context, typ string, letters []queue.DeadLetter) error {
	_, err := disturb(ctx, f, OpMoveToDeadLetters, typ, len(letters), func(keep int) (struct{}, error) {
		return struct{}{}, f.Queue.MoveToDeadLetters(ctx, typ, letters[:keep])
	})
	return err
}

// DeadLetters implements queue.Queue.
func (f *Faulty) DeadLetters(ctx context.Context, typ string, after queue.ID, limit queue.Limit) ([]queue.DeadLetter, error) {
	return disturb(ctx, f, OpDeadLetters, typ, limit.Messages, func(int) ([]queue.DeadLetter, error) { return f.Queue.DeadLetters(ctx, typ, after, limit) })
}

// RemoveDeadLetters implements queue.Queue.
func (f *Faulty) RemoveDeadLetters(ctx context.Context, typ string, ids []queue.ID) error {
	_, err := disturb(ctx, f, OpRemoveDeadLetters, typ, len(ids), func(keep int) (struct{}, error) {
		return struct{}{}, f.Queue.RemoveDeadLetters(ctx, typ, ids[:keep])
	})
	return err
}

// HolderNote implements queue.Queue.
func (f *Faulty) HolderNote(ctx context.Context, typ string) ([]byte, error) {
	return disturb(ctx, f, OpHolderNote, typ, 1, func(int) ([]byte, error) { return f.Queue.HolderNote(ctx, typ) })
}

// SetHolderNote implements queue.Queue.
func (f *Faulty) SetHolderNote(ctx context.Context, typ string, note []byte) error {
	_, err := disturb(ctx, f, OpSetHolderNote, typ, 1, func(int) (struct{}, error) { return struct{}{}, f.Queue.SetHolderNote(ctx, typ, note) })
	return err
}

// Settings implements queue.Queue.
func (f *Faulty) Settings(ctx context.Context, typ string) (queue.Settings, error) {
	return disturb(ctx, f, OpSettings, typ, 1, func(int) (queue.Settings, error) { return f.Queue.Settings(ctx, typ) })
}

// AllSettings implements queue.Queue.
func (f *Faulty) AllSettings(ctx context.Context) (map[string]queue.Settings, error) {
	return disturb(ctx, f, OpAllSettings, "", 1, func(int) (map[string]queue.Settings, error) { return f.Queue.AllSettings(ctx) })
}

// PatchSettings implements queue.Queue.
func (f *Faulty) PatchSettings(ctx context.Context, typ string, c queue.SettingsPatch) (queue.Settings, error) {
	return disturb(ctx, f, OpPatchSettings, typ, 1, func(int) (queue.Settings, error) { return f.Queue.PatchSettings(ctx, typ, c) })
}

// Heartbeat implements queue.Queue.
func (f *Faulty) Heartbeat(ctx context.Context, m queue.Member) error {
	_, err := disturb(ctx, f, OpHeartbeat, "", 1, func(int) (struct{}, error) { return struct{}{}, f.Queue.Heartbeat(ctx, m) })
	return err
}

// Members implements queue.Queue.
func (f *Faulty) Members(ctx context.Context, after string, most int) ([]queue.Member, error) {
	return disturb(ctx, f, OpMembers, "", 1, func(int) ([]queue.Member, error) { return f.Queue.Members(ctx, after, most) })
}

// ForeignKeys implements queue.Queue.
func (f *Faulty) ForeignKeys(ctx context.Context, typ, after string, most int) ([]string, error) {
	return disturb(ctx, f, OpForeignKeys, typ, most, func(int) ([]string, error) { return f.Queue.ForeignKeys(ctx, typ, after, most) })
}

// RemoveForeignKeys implements queue.Queue.
func (f *Faulty) RemoveForeignKeys(ctx context.Context, typ string, keys []string) (int, error) {
	return disturb(ctx, f, OpRemoveForeignKeys, typ, len(keys), func(int) (int, error) { return f.Queue.RemoveForeignKeys(ctx, typ, keys) })
}

// Leave implements queue.Queue.
func (f *Faulty) Leave(ctx context.Context, id string) error {
	_, err := disturb(ctx, f, OpLeave, "", 1, func(int) (struct{}, error) { return struct{}{}, f.Queue.Leave(ctx, id) })
	return err
}

// Notify implements queue.Queue.
func (f *Faulty) Notify(ctx context.Context, types []string) error {
	_, err := disturb(ctx, f, OpNotify, "", len(types), func(int) (struct{}, error) { return struct{}{}, f.Queue.Notify(ctx, types) })
	return err
}

// Notifications implements queue.Queue.
func (f *Faulty) Notifications(ctx context.Context, since queue.NotificationMark) (queue.Notifications, error) {
	return disturb(ctx, f, OpNotifications, "", 1, func(int) (queue.Notifications, error) { return f.Queue.Notifications(ctx, since) })
}

// Pending implements queue.Queue.
func (f *Faulty) Pending(ctx context.Context, types []string, most int) ([]string, error) {
	return disturb(ctx, f, OpPending, "", len(types), func(int) ([]string, error) { return f.Queue.Pending(ctx, types, most) })
}

// PendingTypes implements queue.Queue.
func (f *Faulty) PendingTypes(ctx context.Context) ([]string, error) {
	return disturb(ctx, f, OpPendingTypes, "", 1, func(int) ([]string, error) { return f.Queue.PendingTypes(ctx) })
}
