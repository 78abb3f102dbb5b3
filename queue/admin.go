package queue

// AdminLock is the name of the lock under which people change by hand what is stored for a type:
// requeueing and removing dead letters, scheduled rm and types purge hold it, so that one of them
// works on a type at a time. A program that calls [Requeue] holds it, too:
//
//	err := backend.Locker.Do(ctx, queue.AdminLock("orders"), func(ctx context.Context) error {
//		// choose the letters here, under the lock
//		_, err := queue.Requeue(ctx, backend.Queue, publisher, letters)
//		return err
//	})
//
// Workers and publishers do without it, and so do compact and repair, which hold the lock of the
// type itself.
func AdminLock(typ string) string { return "_admin." + typ } // no type has such a name
