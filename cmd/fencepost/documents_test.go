package main

import (
	"testing"

	"github.com/fencepost/fencepost/internal/cli/clitest"
)

// The command lines in the documents are ones that this program takes.
func TestCommandLinesInDocuments(t *testing.T) { clitest.Documents(t, "../..", root, 40) }
