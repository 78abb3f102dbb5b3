package queue

// AdminLock is the name of the lock for manual changes to the stored messages of a type. The commands
// that requeue or remove dead letters, remove delayed messages, or purge a type hold it, so that only
// one of them works on a type at a time. A program that calls [Requeue] should hold it, too:
//
//	err := backend.Locker.Do(ctx, queue.AdminLock("orders"), func(ctx context.Context) error {
//		// choose the letters here, under the lock
//		_, err := queue.Requeue(ctx, backend.Queue, publisher, letters)
//		return err
//	})
//
// Workers and publishers do not use this lock. Compactions and repairs hold the lock of the type
// itself.
func AdminLock(typ string) string { return "_admin." + typ } // not a valid type name
