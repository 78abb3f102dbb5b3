//go:build !unix

package mongotest

import "os/exec"

func detach(*exec.Cmd) {}

func killGroup(cmd *exec.Cmd) { _ = cmd.Process.Kill() }
