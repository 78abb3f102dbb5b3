package main

import (
	"os"
	"testing"

	"github.com/fencepost/fencepost/cmd/internal/clitest"
	"go.yaml.in/yaml/v3"
)

// This program accepts the command lines in the documents.
func TestCommandLinesInDocuments(t *testing.T) { clitest.Documents(t, "../..", root, 2) }

// It also accepts the one in deploy/compose.yaml.
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

// docs/cli.md matches this program.
func TestReference(t *testing.T) { clitest.Reference(t, "../../docs/cli.md", root()) }
