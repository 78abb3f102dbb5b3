package storage_test

import (
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/storage"
)

// exampleFile is the file of FORMAT.md's example: a fence, its open record, and a batch of one record.
func exampleFile() []byte {
	var id storage.FileID
	var marker [16]byte
	for i := range 16 {
		id[i], marker[i] = byte(i), byte(0x10+i)
	}
	b := &builder{data: storage.NewHeaderBytes("orders", id, marker), end: 4096}
	b.region(7, 0x1122334455667788, storage.Holder{ID: "w1", Host: "h", PID: 7, Version: "v", Wall: time.Unix(1_700_000_000, 0)})
	b.batch([]storage.Record{{ID: []byte("id-1"), Time: 1e18, Payload: []byte("hello"), Headers: []storage.Header{{Key: "k", Value: "v"}}}}, 8)
	return b.data
}

// TestFormatExample: the example in FORMAT.md is what this package writes and reads.
func TestFormatExample(t *testing.T) {
	file := exampleFile()
	var want strings.Builder
	fmt.Fprintf(&want, "file header, bytes 0 to 127, and its CRC in bytes 4092 to 4095:\n%s%s", dump(file, 0, 128), dump(file, 4092, 4096))
	fmt.Fprintf(&want, "records, bytes 4096 to %d:\n%s", len(file)-1, dump(file, 4096, len(file)))
	table := crc32.MakeTable(crc32.Castagnoli)
	fmt.Fprintf(&want, "CRC32C(\"123456789\")      = %08x\n", crc32.Checksum([]byte("123456789"), table))
	fmt.Fprintf(&want, "CRC32C(file_id)          = %08x\n", crc32.Checksum(file[16:32], table))
	batch := strings.Index(string(file), "FPB1")
	cover := append(append([]byte(nil), file[16:32]...), file[batch:batch+4]...)
	cover = append(cover, file[batch+8:batch+96]...)
	fmt.Fprintf(&want, "batch head_crc           = %08x = CRC32C(file_id ++ bytes %d..%d ++ bytes %d..%d)\n", crc32.Checksum(cover, table), batch, batch+3, batch+8, batch+95)
	body := append(append([]byte(nil), file[16:32]...), file[batch+96:]...)
	fmt.Fprintf(&want, "batch body_crc           = %08x = CRC32C(file_id ++ bytes %d..%d)\n", crc32.Checksum(body, table), batch+96, len(file)-1)

	doc, err := os.ReadFile("FORMAT.md")
	must(t, err)
	if !strings.Contains(string(doc), want.String()) {
		t.Errorf("FORMAT.md does not contain the example as it is written now:\n%s", want.String())
	}
	if rep := verifyBytes(t, file); rep.Err() != nil || rep.Messages != 1 || rep.Torn.End != 0 || rep.Regions[0].Holder.ID != "w1" {
		t.Errorf("%+v", rep)
	}
	recs, _ := salvage(t, file)
	if len(recs) != 1 || string(recs[0].Payload) != "hello" || recs[0].Headers[0] != (storage.Header{Key: "k", Value: "v"}) {
		t.Errorf("%+v", recs)
	}
}

// dump is like hexdump -C without the text.
func dump(b []byte, from, to int) string {
	var s strings.Builder
	for p := from; p < to; p += 16 {
		line := b[p:min(p+16, to)]
		fmt.Fprintf(&s, "%04x  %s\n", p, strings.TrimSpace(spaced(line)))
	}
	return s.String()
}

func spaced(b []byte) string {
	var s strings.Builder
	for i, c := range b {
		if i == 8 {
			s.WriteByte(' ')
		}
		s.WriteString(hex.EncodeToString([]byte{c}) + " ")
	}
	return s.String()
}

// TestFormatLimits: the limits that FORMAT.md states are the ones in the code.
func TestFormatLimits(t *testing.T) {
	doc, err := os.ReadFile("FORMAT.md")
	must(t, err)
	for name, n := range map[string]int{"type": storage.MaxType, "schema": storage.MaxSchema, "entry ID": storage.MaxID,
		"payload": storage.MaxPayload, "headers of one entry": storage.MaxHeaders, "batch or checkpoint body": storage.MaxBatchBytes,
		"entries of one batch": storage.MaxBatchRecords, "checkpoint state": storage.MaxState} {
		if row := fmt.Sprintf("| %s | %d |", name, n); !strings.Contains(string(doc), row) {
			t.Errorf("FORMAT.md has no row %q", row)
		}
	}
}
