package main

import (
	"testing"

	"github.com/fencepost/fencepost/cmd/internal/clitest"
)

// This program accepts the command lines in the documents.
func TestCommandLinesInDocuments(t *testing.T) { clitest.Documents(t, "../..", root, 40) }

// docs/cli.md matches this program.
func TestReference(t *testing.T) { clitest.Reference(t, "../../docs/cli.md", root()) }
