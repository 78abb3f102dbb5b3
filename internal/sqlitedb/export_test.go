package sqlitedb

// Waiting returns how many writers wait for the right to write.
func (db *DB) Waiting() int {
	db.turns.Lock()
	defer db.turns.Unlock()
	return len(db.waiting)
}
