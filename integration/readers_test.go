package integration

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fencepost/fencepost/integration/kit"
	"github.com/fencepost/fencepost/internal/race"
	"github.com/klauspost/compress/zstd"
)

// maxReaderRSS is the most memory that a program may take to read a file, whatever its content: docs/limits.md.
const maxReaderRSS = 256 << 20

const envPeak = "FENCEPOST_TEST_PEAK" // makes this binary run its arguments, and write their peak memory to this file

// peakProcess runs a program. The kernel's peak for a process starts with that of its parent, so the parent must be small.
func peakProcess(file string) int {
	cmd := exec.Command(os.Args[1], os.Args[2:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Run()
	peak := cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss // KiB
	os.WriteFile(file, strconv.AppendInt(nil, int64(peak)<<10, 10), 0o600)
	return cmd.ProcessState.ExitCode()
}

// peakOf returns exit code, peak memory in bytes, and stderr of a program, whose stdout is discarded.
func peakOf(t *testing.T, program string, args ...string) (code int, peak int64, stderr string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "peak")
	if !filepath.IsAbs(program) {
		program = filepath.Join(bin, program)
	}
	cmd := exec.Command(os.Args[0], append([]string{program}, args...)...)
	cmd.Env = append(kit.Env(), envPeak+"="+file)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	cmd.Run()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err, errs.String())
	}
	peak, err = strconv.ParseInt(string(text), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), peak, errs.String()
}

// craftedFile writes files that no Fencepost writer would write, but whose checksums are correct.
type craftedFile struct {
	t     *testing.T
	path  string
	f     *os.File
	w     *bufio.Writer
	seed  uint32
	off   uint64
	next  uint64 // index
	chain uint64
	epoch uint64

	anchor, fence, end, durable uint64
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var craftedMarker = bytes.Repeat([]byte{0xa5, 0x5a, 1, 2}, 4)

func craft(t *testing.T, dir, typ string) *craftedFile {
	t.Helper()
	c := &craftedFile{t: t, path: filepath.Join(dir, typ+".fpl"), off: 4096, end: 4096, durable: 4096}
	var err error
	if c.f, err = os.Create(c.path); err != nil {
		t.Fatal(err)
	}
	c.w = bufio.NewWriterSize(c.f, 1<<20)
	le := binary.LittleEndian
	h := make([]byte, 4096)
	copy(h, "\x89FPL\r\n\x1a\n")
	le.PutUint16(h[8:], 1)
	le.PutUint32(h[12:], 4096)
	copy(h[16:], "0123456789"+typ)
	copy(h[32:], craftedMarker)
	le.PutUint64(h[48:], 1)
	le.PutUint16(h[100:], uint16(len(typ)))
	copy(h[104:], typ)
	c.seed = crc32.Checksum(h[16:32], castagnoli)
	le.PutUint32(h[4092:], crc32.Update(c.seed, castagnoli, h[:4092]))
	c.w.Write(h)
	return c
}

// record appends a record; count is 0 for anchors. raw is the length of the decompressed body, or 0 if it is not compressed.
func (c *craftedFile) record(magic string, count, flags, raw int, body []byte) {
	le := binary.LittleEndian
	lead := 16
	if count > 0 {
		lead = 0
	}
	b := make([]byte, lead+(96+len(body)+7)&^7)
	h := b[lead:]
	if lead > 0 {
		copy(b, craftedMarker)
	}
	copy(h, magic)
	le.PutUint64(h[8:], c.off)
	le.PutUint64(h[16:], c.epoch)
	le.PutUint32(h[32:], uint32(count))
	if raw == 0 {
		raw = len(body)
	} else {
		flags |= 1
	}
	le.PutUint16(h[36:], uint16(flags))
	le.PutUint16(h[38:], 96)
	le.PutUint32(h[40:], uint32(len(body)))
	le.PutUint32(h[44:], uint32(raw))
	le.PutUint64(h[48:], c.durable)
	if magic != "FPF1" {
		le.PutUint64(h[24:], c.next)
		le.PutUint64(h[56:], c.anchor)
		le.PutUint64(h[64:], c.chain)
	}
	le.PutUint64(h[72:], c.epoch+77)
	copy(h[96:], body)
	bodyCRC := crc32.Update(c.seed, castagnoli, h[96:])
	le.PutUint32(h[88:], bodyCRC)
	headCRC := crc32.Update(crc32.Update(c.seed, castagnoli, h[:4]), castagnoli, h[8:96])
	le.PutUint32(h[4:], headCRC)
	if _, err := c.w.Write(b); err != nil {
		c.t.Fatal(err)
	}
	switch magic {
	case "FPF1":
		c.fence = c.off
	case "FPO1", "FPC1":
		c.anchor = c.off
	}
	c.off += uint64(len(b))
	c.next += uint64(count)
	if magic != "FPF1" {
		c.chain, c.end = uint64(bodyCRC)<<32|uint64(headCRC), c.off
	}
}

// region begins a region; everything before it is durable.
func (c *craftedFile) region(holder string) {
	c.epoch++
	durable := c.durable
	c.durable = 4096
	c.record("FPF1", 0, 0, 0, append([]byte{1, byte(len(holder))}, holder...))
	c.durable = durable
	body := binary.LittleEndian.AppendUint64(nil, c.end)
	body = binary.LittleEndian.AppendUint64(body, c.fence)
	body = binary.LittleEndian.AppendUint64(body, 0)
	body = binary.LittleEndian.AppendUint64(body, c.fence-c.end)
	c.record("FPO1", 0, 0, 0, body)
}

// checkpoint appends a checkpoint with any state.
func (c *craftedFile) checkpoint(state []byte) {
	c.durable = c.off
	body := make([]byte, 9, 32+len(state))
	c.record("FPC1", 0, 0, 0, append(binary.AppendUvarint(body, uint64(len(state))), state...))
}

func (c *craftedFile) close() string {
	c.t.Helper()
	if err := c.w.Flush(); err != nil {
		c.t.Fatal(err)
	}
	if err := c.f.Close(); err != nil {
		c.t.Fatal(err)
	}
	return c.path
}

// craftedID returns the ID of message n of a producer.
func craftedID(producer, n uint64) []byte {
	id := binary.BigEndian.AppendUint64([]byte{1, 2, 3, 4, 5, 6}, producer)
	return append(id, byte(n>>40), byte(n>>32), byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
}

// craftedMessage appends a message to a body: rest is the payload with its length, and any headers.
func craftedMessage(b []byte, producer, n uint64, rest []byte) []byte {
	b = append(append(b, 0, 20), craftedID(producer, n)...)
	return append(append(b, 0), rest...)
}

// headerBomb writes batches of 200 records with the most headers that a record can have, all empty.
func headerBomb(c *craftedFile, pack *zstd.Encoder) {
	rest := binary.AppendUvarint([]byte{0}, 65537)
	rest = append(rest, make([]byte, 2*65537)...)
	n := uint64(0)
	for k := range 2 { // each at other positions of its batch than the previous one
		var body []byte
		for range k * 200 {
			n++
			body = craftedMessage(body, 1, n, []byte{0, 0})
		}
		for range 200 {
			n++
			body = craftedMessage(body, 1, n, rest)
		}
		c.record("FPB1", k*200+200, 8, len(body), pack.EncodeAll(body, nil))
	}
}

// recordBomb writes as many records as a batch can have, 64 MiB, and then a quarter of that, each with its own producer.
func recordBomb(c *craftedFile, pack *zstd.Encoder) {
	rest := make([]byte, 64-23)
	rest[0] = byte(len(rest) - 1)
	const most = 1 << 20
	var body []byte
	for n := range uint64(most) {
		body = craftedMessage(body, 1, n+1, rest)
	}
	c.record("FPB1", most, 0, len(body), pack.EncodeAll(body, nil))
	body = body[:0]
	for producer := range uint64(most / 4) {
		body = craftedMessage(body, producer+2, 1, rest)
	}
	c.record("FPB1", most/4, 0, len(body), pack.EncodeAll(body, nil))
}

// largeBatches writes batches of up to 64 MiB stored, and of up to 64 MiB decompressed, and one payload in which each byte takes six in JSON.
func largeBatches(c *craftedFile, pack *zstd.Encoder) {
	r := rand.NewChaCha8([32]byte{})
	n := uint64(0)
	message := func(body []byte, size int, text bool) []byte {
		rest := binary.AppendUvarint(nil, uint64(size))
		rest = append(rest, make([]byte, size)...)
		if !text {
			r.Read(rest[5:])
		}
		n++
		return craftedMessage(body, 1, n, rest)
	}
	body := message(nil, 16<<20, true)
	c.record("FPB1", 1, 0, len(body), pack.EncodeAll(body, nil))
	for _, mib := range []int{3, 17, 63, 64} {
		body = body[:0]
		for range mib {
			body = message(body, 1<<20-64, false)
		}
		c.record("FPB1", mib, 0, 0, body)
		c.record("FPB1", mib, 0, len(body), pack.EncodeAll(body, nil)) // random, so about as long; its numbers occur twice
	}
}

// TestNoFileTakesDownAReader runs every program that reads files on files crafted to take much memory.
func TestNoFileTakesDownAReader(t *testing.T) {
	t.Parallel()
	if race.Enabled {
		t.Skip("the race detector takes memory of its own")
	}
	pack, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	if err != nil {
		t.Fatal(err)
	}
	for name, fill := range map[string]func(c *craftedFile){
		"headers": func(c *craftedFile) { c.region("w1"); headerBomb(c, pack) },
		"records": func(c *craftedFile) { c.region("w1"); recordBomb(c, pack) },
		"large":   func(c *craftedFile) { c.region("w1"); largeBatches(c, pack) },
		// 16 million gaps of one producer.
		"gaps": func(c *craftedFile) {
			c.region("w1")
			state := binary.LittleEndian.AppendUint64([]byte{1, 1}, 7)
			state = binary.AppendUvarint(state, 1<<40)
			state = append(state, 1)
			const spans = 32<<19 - 32
			state = binary.AppendUvarint(state, spans)
			c.checkpoint(append(state, bytes.Repeat([]byte{1}, 2*spans)...))
		},
		// More than a million producers in a checkpoint.
		"producers": func(c *craftedFile) {
			c.region("w1")
			state := binary.AppendUvarint([]byte{4}, 1<<20)
			for i := range uint64(1 << 20) {
				state = binary.LittleEndian.AppendUint64(state, i)
				state = append(state, 1, 1, 1, 0, 0)
			}
			c.checkpoint(append(state, 0, 0))
		},
		"fences": func(c *craftedFile) {
			for i := range 60_000 {
				c.region(fmt.Sprintf("%0250d", i))
			}
		},
		// Fences of writers that never opened the file, so that there are void bytes between all regions.
		"void": func(c *craftedFile) {
			for range 40_000 {
				c.region("w1")
				c.w.Write(make([]byte, 8))
				c.off += 8
			}
		},
		// Nothing proves that any of these records is durable.
		"unproved": func(c *craftedFile) {
			c.region("w1")
			for i := range uint64(300_000) {
				c.record("FPB1", 1, 0, 0, craftedMessage(nil, 1, i+1, []byte{0}))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			c := craft(t, dir, "t")
			fill(c)
			worker := int64(maxReaderRSS)
			if name == "producers" {
				worker = 300 << 20 // with a state of more than a million producers, see docs/limits.md
			}
			readersStayWithin(t, dir, c.close(), worker)
		})
	}
}

// TestPythonReaderStaysSmall: a batch of few bytes does not take much memory as messages.
func TestPythonReaderStaysSmall(t *testing.T) {
	t.Parallel()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3")
	}
	c := craft(t, t.TempDir(), "t")
	c.region("w1")
	rest := binary.AppendUvarint([]byte{0}, 65537)
	rest = append(rest, make([]byte, 2*65537)...)
	var body []byte
	for n := range uint64(8) {
		body = craftedMessage(body, 1, n+1, rest)
	}
	c.record("FPB1", 8, 8, 0, body)
	c.record("FPB1", 1, 0, 64<<20, []byte("\x28\xb5\x2f\xfd")) // claims a large size, and does not decode, if this Python has zstd
	path := c.close()
	for _, command := range []string{"cat", "verify"} {
		code, peak, stderr := peakOf(t, python, "../docs/format/read_fpl.py", command, path)
		t.Logf("%s: exit code %d, %d MiB", command, code, peak>>20)
		if code != 1 && code != 3 || strings.Contains(stderr, "Traceback") || peak > 64<<20 {
			t.Errorf("%s: exit code %d, %d MiB: %s", command, code, peak>>20, stderr)
		}
	}
}

// TestTooMuchToTakeInTakesLittleMemory: a worker that reads a file with two million producers stops after some of them and refuses the file.
func TestTooMuchToTakeInTakesLittleMemory(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector takes memory of its own")
	}
	dir := t.TempDir()
	url := "sqlite://" + filepath.Join(dir, "fencepost.db")
	c := craft(t, dir, "t")
	c.region("w1")
	c.record("FPB1", 1, 0, 0, craftedMessage(nil, 1<<40, 1, []byte{0}))
	c.durable = c.off // so unreadable bytes are damage
	for k := range uint64(2) {
		var body []byte
		for i := range uint64(1 << 20) {
			body = craftedMessage(body, k<<20+i, 1, []byte{0})
		}
		c.record("FPB1", 1<<20, 0, 0, body)
	}
	path := c.close()
	mustRun(t, nil, "producer", "publish", "--url", url, "--type", "t", "--message", "for a worker to open the file")
	for _, args := range [][]string{
		{"worker", "--type", "t", "--dir", dir, "--url", url, "--until-empty", "--allow-overlay"},
		{"fencepost", "compact", "--allow-overlay", "--url", url, path},
		{"fencepost", "repair", "--allow-overlay", "--url", url, path},
	} {
		if args[1] == "repair" { // repair changes only damaged files
			damageFirst(t, path)
		}
		code, peak, stderr := peakOf(t, args[0], args[1:]...)
		t.Logf("measured: %d MiB (%s)", peak>>20, strings.Join(args[:2], " "))
		if code != integrity || peak > maxReaderRSS || !strings.Contains(stderr, "producers and gaps behind its last checkpoint") {
			t.Errorf("%s: exit code %d, %d MiB: %s", strings.Join(args, " "), code, peak>>20, stderr)
		}
	}
}

// damageFirst damages the first batch of a file.
func damageFirst(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	b := make([]byte, 64<<10)
	_, err = f.ReadAt(b, 0)
	must(t, err)
	at := bytes.Index(b, []byte("FPB1")) + 100
	_, err = f.WriteAt([]byte{^b[at]}, int64(at))
	must(t, err)
}

// readersStayWithin runs all reading programs on the one file of a directory. worker is the most memory that a worker may take, in bytes.
func readersStayWithin(t *testing.T, dir, path string, worker int64) {
	t.Helper()
	url := "sqlite://" + filepath.Join(dir, "fencepost.db")
	mustRun(t, nil, "producer", "publish", "--url", url, "--type", "t", "--message", "for a worker to open the file")
	largest, by := int64(0), ""
	for _, args := range [][]string{
		{"fencepost", "verify", "-v", path},
		{"fencepost", "verify", "--json", "--deep", path},
		{"fencepost", "cat", path},
		{"fencepost", "cat", "--format", "json", "--salvage", path},
		{"fencepost", "tail", "-n", "5", path},
		{"worker", "--type", "t", "--dir", dir, "--url", url, "--until-empty", "--allow-overlay"},
		{"fencepost", "doctor", "--dir", dir, "--url", url},
		{"fencepost", "compact", "--allow-overlay", "--url", url, path},
		{"fencepost", "repair", "--allow-overlay", "--url", url, path},
		{"fencepost", "types", "show", "t", "--url", url},
	} {
		start := time.Now()
		code, peak, stderr := peakOf(t, args[0], args[1:]...)
		t.Logf("%s: exit code %d, %d MiB, %v%s", strings.Join(args[:2], " "), code, peak>>20, time.Since(start).Round(time.Millisecond), firstLine(stderr))
		most := int64(maxReaderRSS)
		if args[0] == "worker" {
			most = worker
		}
		if peak > most {
			t.Errorf("%s takes %d MiB", strings.Join(args, " "), peak>>20)
		}
		if code < 0 || strings.Contains(stderr, "panic") || strings.Contains(stderr, "fatal error") {
			t.Errorf("%s: exit code %d: %s", strings.Join(args, " "), code, stderr)
		}
		if peak > largest {
			largest, by = peak, strings.Join(args[:2], " ")
		}
	}
	t.Logf("measured: %d MiB (%s)", largest>>20, by)
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return ": " + line[:min(len(line), 200)]
}
