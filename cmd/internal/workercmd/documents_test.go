package workercmd

import (
	"testing"

	"github.com/fencepost/fencepost/cmd/internal/clitest"
)

// The command lines in the documents are ones that this program takes.
func TestCommandLinesInDocuments(t *testing.T) { clitest.Documents(t, "../../..", New, 5) }

// docs/cli.md describes this program as it is.
func TestReference(t *testing.T) { clitest.Reference(t, "../../../docs/cli.md", New()) }
