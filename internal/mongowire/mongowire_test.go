package mongowire_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"testing"

	"github.com/fencepost/fencepost/internal/mongowire"
)

func TestRead(t *testing.T) {
	message := func(n uint32) []byte {
		b := binary.LittleEndian.AppendUint32(nil, n)
		b = append(b, 1, 0, 0, 0, 2, 0, 0, 0)
		b = binary.LittleEndian.AppendUint32(b, mongowire.OpMsg)
		return append(b, "body"...)
	}
	b := append(message(20), message(20)...)
	r := bytes.NewReader(b)
	for range 2 {
		if m, err := mongowire.Read(r); err != nil || !bytes.Equal(m, b[:20]) || mongowire.Op(m) != mongowire.OpMsg {
			t.Errorf("%x, %v", m, err)
		}
	}
	if _, err := mongowire.Read(r); err != io.EOF {
		t.Errorf("at the end: %v", err)
	}
	if _, err := mongowire.Read(bytes.NewReader(b[:19])); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("in the middle: %v", err)
	}
	for _, n := range []uint32{0, mongowire.HeaderSize - 1, mongowire.MaxMessage + 1, 1 << 31} {
		if _, err := mongowire.Read(bytes.NewReader(message(n))); err == nil || errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
}
