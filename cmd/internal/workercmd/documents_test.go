package workercmd

import (
	"testing"

	"github.com/fencepost/fencepost/cmd/internal/clitest"
)

// This program accepts the command lines in the documents.
func TestCommandLinesInDocuments(t *testing.T) { clitest.Documents(t, "../../..", New, 5) }

// docs/cli.md matches this program.
func TestReference(t *testing.T) { clitest.Reference(t, "../../../docs/cli.md", New()) }
