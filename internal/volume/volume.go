// Package volume tells how much room there is on the volume of a directory.
package volume

// Room is the room on a volume, in bytes.
type Room struct {
	Free int64 // what this process may still use
	Size int64 // the whole volume
}

// Low reports whether a tenth or less is free.
func (r Room) Low() bool { return r.Free <= r.Size/10 }
