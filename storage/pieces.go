package storage

// Files in pieces (slots). To open one, a reader lists its pieces, then reads piece by piece. So not
// only the bytes but also the number of pieces decides how long the next Open takes. There are stores
// that read all bytes of a file to list its pieces.

const (
	checkpointPieces = 256     // a checkpoint is due after this many pieces …
	checkpointShare  = 8       // … unless its state is larger than this part of the bytes that it saves a reader
	rotatePieces     = 10_000  // a file with this many, 200 KB of names, is rotated …
	rotateSize       = 1 << 30 // … and one with so many bytes
)

// piecesDue tells whether a checkpoint is due for the number of pieces since the last one. mu is
// held.
func (w *Writer) piecesDue() bool {
	f, ok := w.file.(InPieces)
	return ok && f.Pieces()-w.pieces >= checkpointPieces && w.end-w.sinceCheckpoint >= checkpointShare*w.stateSize
}

// RotateDue reports whether the file should be rotated, see Rotate, because it consists of pieces
// that are too many, or too large together. It is safe for concurrent use.
func (w *Writer) RotateDue() bool {
	f, ok := w.file.(InPieces)
	return ok && (f.Pieces() >= rotatePieces || w.Size() >= rotateSize)
}
