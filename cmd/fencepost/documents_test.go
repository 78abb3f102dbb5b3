package main

import (
	"testing"

	"github.com/fencepost/fencepost/cmd/internal/clitest"
)

// The command lines in the documents are ones that this program takes.
func TestCommandLinesInDocuments(t *testing.T) { clitest.Documents(t, "../..", root, 40) }

// docs/cli.md describes this program as it is.
func TestReference(t *testing.T) { clitest.Reference(t, "../../docs/cli.md", root()) }
