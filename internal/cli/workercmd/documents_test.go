package workercmd

import (
	"testing"

	"github.com/fencepost/fencepost/internal/cli/clitest"
)

// The command lines in the documents are ones that this program takes.
func TestCommandLinesInDocuments(t *testing.T) {
	total := 0
	for _, doc := range []string{"../../../README.md", "../../../docs/operations.md", "../../../deploy/README.md", "../../../deploy/kubernetes/README.md"} {
		checked, problems, err := clitest.CheckDocument(doc, New)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range problems {
			t.Error(p)
		}
		total += checked
	}
	if total < 5 {
		t.Errorf("only %d command lines found", total)
	}
}
