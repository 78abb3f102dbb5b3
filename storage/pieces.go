package storage

// A file in pieces is opened by listing them, and read piece by piece. So how many there are counts
// as their bytes do: for what the next Open has to read, and for what it has to list.

const (
	checkpointPieces = 256    // a checkpoint is due after so many pieces …
	checkpointShare  = 8      // … unless its state would be more than one part in so many of what it spares a reader
	rotatePieces     = 10_000 // a file with so many goes on in another one: 200 KB of names
)

// piecesDue tells whether a checkpoint is due for the number of pieces since the last one. mu is
// held.
func (w *Writer) piecesDue() bool {
	f, ok := w.file.(InPieces)
	return ok && f.Pieces()-w.pieces >= checkpointPieces && w.end-w.sinceCheckpoint >= checkpointShare*w.stateSize
}

// RotateDue reports whether the file should be rotated, see Rotate, because it consists of too many
// pieces, even if it is not large. It is safe for concurrent use.
func (w *Writer) RotateDue() bool {
	f, ok := w.file.(InPieces)
	return ok && f.Pieces() >= rotatePieces
}
