package storage

import "io"

// Files in pieces (slots). To open one, a reader lists its pieces, then reads piece by piece. So the
// duration of the next Open depends on the number of pieces as well as on the bytes. Some stores read
// all bytes of a file to list its pieces.

const (
	checkpointPieces = 256     // a checkpoint is due after this many pieces …
	checkpointShare  = 8       // … unless its state is larger than one part in this many of the bytes that it saves a reader
	rotatePieces     = 10_000  // a file is rotated at this many pieces, 200 KB of names …
	rotateSize       = 1 << 30 // … or at this many bytes
)

// piecesDue reports whether a checkpoint is due because of the number of pieces since the last one. mu
// is held.
func (w *Writer) piecesDue() bool {
	f, ok := w.file.(InPieces)
	return ok && f.Pieces()-w.pieces >= checkpointPieces && w.end-w.sinceCheckpoint >= checkpointShare*w.stateSize
}

// RotateDue reports whether the file should be rotated, see Rotate, because its pieces are too many, or
// too large in total. It is false for a file that is not InPieces. It is safe for concurrent use.
func (w *Writer) RotateDue() bool {
	f, ok := w.file.(InPieces)
	return ok && (f.Pieces() >= rotatePieces || w.Size() >= rotateSize)
}

// piecesOf names the pieces that have, or should have, the bytes [off, end) of a file; "" if it is not InPieces.
func piecesOf(file io.ReaderAt, off, end int64) string {
	f, ok := file.(InPieces)
	if !ok {
		return ""
	}
	first, last := f.Names(off, end)
	if first == last {
		return "slot " + first
	}
	return "slots " + first + " to " + last
}

// in adds the names of the pieces that the damage is in.
func (e *CorruptError) in(file io.ReaderAt) *CorruptError {
	e.Pieces = piecesOf(file, e.Offset, e.End)
	return e
}
