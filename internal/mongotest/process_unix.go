//go:build unix

package mongotest

import (
	"os/exec"
	"syscall"
)

// detach gives a command its own session, and so its own process group.
func detach(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} }

// killGroup ends a detached command with its children.
func killGroup(cmd *exec.Cmd) { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
