package printable

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// All output of the programs passes through this package, except terminal control sequences, and payloads.
func TestProgramsPrintThroughThisPackage(t *testing.T) {
	refused := map[string]string{
		"fmt.Print": "Fprintf", "fmt.Printf": "Fprintf", "fmt.Println": "Fprintf", "fmt.Fprint": "Fprintf", "fmt.Fprintf": "Fprintf", "fmt.Fprintln": "Fprintf",
		"cmd.Print": "Fprintf", "cmd.Printf": "Fprintf", "cmd.Println": "Fprintf", "cmd.PrintErr": "Fprintf", "cmd.PrintErrf": "Fprintf", "cmd.PrintErrln": "Fprintf",
		"io.WriteString": "Fprintf", "log.Print": "Fprintf", "log.Printf": "Fprintf", "log.Println": "Fprintf", "os.Stdout": "Fprintf", "os.Stderr": "Fprintf",
		"tabwriter.NewWriter": "NewTable", "json.NewEncoder": "EncodeJSON", "zerolog.New": "JSONWriter", "zerolog.ConsoleWriter": "Text", "out.Write": "Fprintf",
	}
	except := map[string][]string{
		filepath.Join("cmd", "fencepost", "topscreen.go"): {"io.WriteString"},                       // the screen
		filepath.Join("cmd", "internal", "cli", "log.go"): {"zerolog.New", "zerolog.ConsoleWriter"}, // its output passes through this package
		filepath.Join("cmd", "internal", "clitest"):       nil,                                      // tests
	}
	root := filepath.Join("..", "..")
	files := 0
	look := func(path string, e fs.DirEntry, err error) error {
		name, _ := filepath.Rel(root, path)
		excepted, skip := except[name]
		switch {
		case err != nil:
			return err
		case e.IsDir() && skip:
			return fs.SkipDir
		case filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		files++
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			s, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			of, ok := s.X.(*ast.Ident)
			if !ok {
				return true
			}
			name := of.Name + "." + s.Sel.Name
			if instead := refused[name]; instead != "" && !slices.Contains(excepted, name) {
				t.Errorf("%s: %s prints what others have written as it is; use printable.%s", set.Position(s.Pos()), name, instead)
			}
			return true
		})
		return nil
	}
	if err := filepath.WalkDir(filepath.Join(root, "cmd"), look); err != nil {
		t.Fatal(err)
	}
	if files < 30 {
		t.Errorf("only %d files were checked", files)
	}
}
