//go:build unix

package main

import (
	"os"
	"syscall"
)

// freeze stops a process at its current instruction, as suspending its machine would.
func freeze(p *os.Process) error { return p.Signal(syscall.SIGSTOP) }

func thaw(p *os.Process) error { return p.Signal(syscall.SIGCONT) }
