package mongotest

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// owner identifies this process for as long as containers may outlive it: "host/boot id/pid namespace/pid/start
// time of the process". Without the start time a later process with the same number would keep a leftover alive;
// without the others a process elsewhere, which is invisible here, would look dead.
func owner() string {
	return strings.Join(append(place(), strconv.Itoa(os.Getpid()), startTime(os.Getpid())), "/")
}

// place identifies where a process number is meaningful. Parts that the system cannot provide are empty.
func place() []string {
	host, _ := os.Hostname()
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	namespace, _ := os.Readlink("/proc/self/ns/pid")
	return []string{host, strings.TrimSpace(string(boot)), namespace}
}

// ownerGone reports whether an owner has certainly ended. In doubt it has not.
func ownerGone(label string) bool {
	parts := strings.Split(label, "/")
	if len(parts) != 5 {
		return false
	}
	here := place()
	if parts[0] != here[0] {
		return false // another machine, or another container with the same daemon
	}
	if parts[1] != here[1] {
		return true // this machine, before it was last started
	}
	if parts[2] != here[2] {
		return false
	}
	pid, err := strconv.Atoi(parts[3])
	if err != nil {
		return false
	}
	return !processExists(pid) || startTime(pid) != parts[4]
}

func processExists(pid int) bool {
	p, err := os.FindProcess(pid)
	if err != nil {
		return false
	}
	defer p.Release() //nolint:errcheck // always nil
	err = p.Signal(syscall.Signal(0))
	return err == nil || errors.Is(err, os.ErrPermission)
}

// startTime returns when a process started, in the kernel's units since boot; empty where there is no /proc.
func startTime(pid int) string {
	fields, ok := processStat(pid)
	if !ok || len(fields) < 20 {
		return ""
	}
	return fields[19] // proc(5): field 22, and these begin with field 3
}

// processStat returns the fields of /proc/PID/stat after the name, which may contain anything.
func processStat(pid int) ([]string, bool) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return nil, false
	}
	s := string(b)
	return strings.Fields(s[strings.LastIndexByte(s, ')')+1:]), true
}
