package sqlitedb

// Waiting returns how many writers wait for the right to write.
func (db *DB) Waiting() int {
	db.turns.Lock()
	defer db.turns.Unlock()
	return len(db.waiting)
}

// BusyRetries counts the attempts since Open that found the file locked by another process.
func (db *DB) BusyRetries() int64 { return db.busy.Load() }
