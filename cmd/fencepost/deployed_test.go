package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/cmd/internal/cli"
	"go.yaml.in/yaml/v3"
)

// The files in deploy start fencepost serve with flags and variables that exist. Tests in cmd/worker check the rest of the files.
func TestDeployedServe(t *testing.T) {
	found := 0
	check := func(where string, args []string, env []string) {
		found++
		cmd := serveCommand()
		cli.Prepare(cmd)
		if err := cmd.ParseFlags(args); err != nil || len(cmd.Flags().Args()) > 0 {
			t.Errorf("%s: %q: %v %q", where, args, err, cmd.Flags().Args())
		}
		for _, name := range env {
			if flag, ours := strings.CutPrefix(name, "FENCEPOST_"); ours && cmd.Flags().Lookup(strings.ToLower(strings.ReplaceAll(flag, "_", "-"))) == nil {
				t.Errorf("%s: %s stands for no flag of serve", where, name)
			}
		}
	}
	manifests, err := os.ReadFile("../../deploy/kubernetes/serve/serve.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for doc := range bytes.SplitSeq(manifests, []byte("\n---\n")) {
		var o struct {
			Spec struct {
				Template struct {
					Spec struct {
						Containers []struct {
							Args []string
							Env  []struct{ Name string }
						}
					}
				}
			}
		}
		if err := yaml.Unmarshal(doc, &o); err != nil {
			continue // a Service, whose ports are not those of a workload
		}
		for _, c := range o.Spec.Template.Spec.Containers {
			var env []string
			for _, e := range c.Env {
				env = append(env, e.Name)
			}
			check("serve.yaml", c.Args, env)
		}
	}
	compose, err := os.ReadFile("../../deploy/compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var c struct {
		Services map[string]struct {
			Entrypoint, Command []string
			Environment         map[string]string
		}
	}
	if err := yaml.Unmarshal(compose, &c); err != nil {
		t.Fatal(err)
	}
	var env []string
	for name := range c.Services["serve"].Environment {
		env = append(env, name)
	}
	check("compose.yaml", c.Services["serve"].Command, env)
	if found != 2 {
		t.Errorf("it is started in %d places, want 2", found)
	}
}
