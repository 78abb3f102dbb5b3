//go:build unix

package main

import (
	"os"
	"syscall"
)

// freeze stops a process where it is, as the suspension of its machine would.
func freeze(p *os.Process) error { return p.Signal(syscall.SIGSTOP) }

func thaw(p *os.Process) error { return p.Signal(syscall.SIGCONT) }
