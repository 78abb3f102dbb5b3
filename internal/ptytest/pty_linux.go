package ptytest

import (
	"bytes"
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Open returns both sides of a terminal: the person's and the program's. The test is skipped if there are none.
func Open(t testing.TB) (person, program *os.File) {
	t.Helper()
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { person.Close() })
	conn, err := person.SyscallConn() // Fd would make reads block forever
	if err != nil {
		t.Fatal(err)
	}
	number := 0
	if cerr := conn.Control(func(fd uintptr) {
		if err = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0); err == nil {
			number, err = unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
		}
	}); cerr != nil || err != nil {
		t.Fatal(cerr, err)
	}
	program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { program.Close() })
	return person, program
}

// Shown returns what the program has written to the terminal so far.
func Shown(t testing.TB, person, program *os.File) string {
	t.Helper()
	end := []byte("<end>") // a terminal delivers in pieces, later
	if _, err := program.Write(end); err != nil {
		t.Fatal(err)
	}
	person.SetReadDeadline(time.Now().Add(time.Minute))
	var text []byte
	for !bytes.HasSuffix(text, end) {
		b := make([]byte, 1<<16)
		n, err := person.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		text = append(text, b[:n]...)
	}
	return string(bytes.TrimSuffix(text, end))
}
