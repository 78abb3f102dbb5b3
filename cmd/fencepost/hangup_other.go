//go:build !linux

package main

import (
	"context"
	"io"
)

// waitForHangup waits for nothing here: systems differ in how they report it.
func waitForHangup(context.Context, io.Writer) bool { return false }
