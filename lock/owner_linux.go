package lock

import (
	"bytes"
	"errors"
	"os"
	"strconv"
	"strings"
)

// processIdentity returns what identifies a process of this machine beyond its PID, which can be
// reused: see [Process]. It returns empty strings if /proc lacks any of it, or belongs to another PID
// namespace.
func processIdentity(pid int) (boot, namespace, started string) {
	if self, err := os.Readlink("/proc/self"); err != nil || self != strconv.Itoa(os.Getpid()) {
		return "", "", "" // /proc belongs to another PID namespace, where this PID is another process
	}
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", "", ""
	}
	ns, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return "", "", ""
	}
	started, _, ok := processStarted(pid)
	if !ok || started == "" {
		return "", "", ""
	}
	return strings.TrimSpace(string(b)), ns, started
}

// processStarted returns field 22 of /proc/<pid>/stat (proc_pid_stat(5)): the start time in clock
// ticks since boot. gone means that the process has ended. known is false if /proc cannot tell, for
// example because it hides the processes of other users.
func processStarted(pid int) (started string, gone, known bool) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if errors.Is(err, os.ErrNotExist) {
		// With hidepid, processes of other users appear not to exist, so a missing entry proves
		// nothing.
		return "", true, !procHidden()
	}
	if err != nil {
		return "", false, false
	}
	// The command name is in parentheses and may contain anything: count from the last one.
	i := bytes.LastIndexByte(stat, ')')
	if i < 0 {
		return "", false, false
	}
	f := strings.Fields(string(stat[i+1:])) // f[0] is field 3
	if len(f) < 20 {
		return "", false, false
	}
	// A zombie has ended, unless only its main thread has: then field 20, the number of threads, is
	// above 1.
	zombie := (f[0] == "Z" || f[0] == "X") && (f[17] == "0" || f[17] == "1")
	return f[19], zombie, true
}

// procHidden reports whether /proc may hide processes of other users (hidepid): then process 1 is
// invisible to all but root.
func procHidden() bool {
	_, err := os.Stat("/proc/1/stat")
	return err != nil
}
