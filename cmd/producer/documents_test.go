package main

import (
	"os"
	"testing"

	"github.com/fencepost/fencepost/internal/cli/clitest"
	"go.yaml.in/yaml/v3"
)

// The command lines in the documents are ones that this program takes.
func TestCommandLinesInDocuments(t *testing.T) {
	total := 0
	for _, doc := range []string{"../../README.md", "../../docs/operations.md", "../../deploy/README.md", "../../deploy/kubernetes/README.md"} {
		checked, problems, err := clitest.CheckDocument(doc, root)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range problems {
			t.Error(p)
		}
		total += checked
	}
	if total < 2 {
		t.Errorf("only %d command lines found", total)
	}
}

// So is the one in deploy/compose.yaml.
func TestCommandLineInCompose(t *testing.T) {
	b, err := os.ReadFile("../../deploy/compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var c struct {
		Services struct {
			Producer struct{ Entrypoint, Command []string }
		}
	}
	if err := yaml.Unmarshal(b, &c); err != nil {
		t.Fatal(err)
	}
	p := c.Services.Producer
	if len(p.Entrypoint) != 1 || p.Entrypoint[0] != "producer" || len(p.Command) == 0 {
		t.Fatalf("entrypoint %q, command %q; want the producer", p.Entrypoint, p.Command)
	}
	if err := clitest.Check(root(), p.Command); err != nil {
		t.Errorf("producer %q: %v", p.Command, err)
	}
}
