package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/fencepost/fencepost"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// configHelp documents the configuration file in --config's help.
const configHelp = "YAML file of settings: every flag's name is a key, the same under 'worker:', 'producer:' or 'fencepost:' for one program only"

// maxConfig is the maximum size of a configuration file in bytes: no real one is larger.
const maxConfig = 1 << 20

// programs are the sections of a configuration file.
var programs = []string{"worker", "producer", "fencepost"}

// notInFiles are flags that a configuration file cannot set.
var notInFiles = append([]string{"config", "help", "version"}, ofOneCall...)

// ofOneCall are flags that concern a single call: what it confirms, selects or tries. Only the command line sets them. In an environment or a
// file, a confirmation would confirm every later call, and a limit would cut every later export. docs/cli.md lists them.
var ofOneCall = []string{
	"yes", "force", "accept-loss", "adopt", "create", "dry-run", "check", "why",
	"all", "id", "message", "from", "count", "lines", "since", "before", "older", "age", "size", "reason", "replaced", "foreign", "pending", "salvage", "unsynced",
	"follow", "once", "request", "drain", "publish", "max-backlog", "resume", "at",
}

// sourceKey is the annotation of a flag that records the source of its value.
const sourceKey = "fencepost_source"

func setSource(f *pflag.Flag, source string) {
	if f.Annotations == nil {
		f.Annotations = map[string][]string{}
	}
	f.Annotations[sourceKey] = []string{source}
}

// Setting is the effective value of a flag.
type Setting struct {
	Name   string `json:"name"`
	Value  string `json:"value"` // without secrets
	Source string `json:"source"`
}

// Effective lists all settings of a command that runs, sorted by name. It shows no secrets.
func Effective(cmd *cobra.Command) []Setting {
	var list []Setting
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Name == "help" || f.Name == "version" {
			return
		}
		s := Setting{f.Name, f.Value.String(), "default"}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			s.Value = strings.Join(list.GetSlice(), ",")
		}
		switch f.Name {
		case urlFlag:
			s.Value = fencepost.Redact(s.Value)
		case storeFlag:
			s.Value = StoreAddress(s.Value)
		}
		switch source := f.Annotations[sourceKey]; {
		case len(source) > 0:
			s.Source = source[0]
		case f.Changed:
			s.Source = "flag"
		}
		list = append(list, s)
	})
	return list
}

// fromFile sets the flags that neither the command line nor the environment has set from the configuration file.
func fromFile(cmd *cobra.Command, path string) error {
	data, mode, err := readFile(path, maxConfig, fileWithin)
	if err != nil {
		return Usagef("config file %s: %w", path, err)
	}
	doc, err := parseConfig(path, data)
	if err != nil || doc == nil {
		return err
	}
	values, err := settingsIn(cmd, path, doc)
	if err != nil {
		return err
	}
	var urls []string
	for _, key := range []string{urlFlag, storeFlag} {
		if n := values[key]; n != nil {
			urls = append(urls, n.Value)
		}
	}
	warnOfReaders(cmd, "config file "+path, mode, urls...)
	var failed error
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		n := values[f.Name]
		if n == nil || f.Changed || failed != nil || slices.Contains(notInFiles, f.Name) {
			return
		}
		where := fmt.Sprintf("%s:%d", path, n.Line)
		if err := setFromNode(cmd, f, n); err != nil {
			failed = Usagef("config file %s: %s: %w", where, f.Name, plain(err))
			return
		}
		setSource(f, where)
	})
	return failed
}

// settingsIn returns the values in the file for the flags of cmd, by flag name.
func settingsIn(cmd *cobra.Command, path string, doc *yaml.Node) (map[string]*yaml.Node, error) {
	known := knownFlags(cmd.Root())
	values, err := readSection(cmd, path, "", doc, known)
	if err != nil {
		return nil, err
	}
	for _, section := range programs {
		node := values[section]
		if node == nil || section != cmd.Root().Name() && section != cmd.Name() {
			continue
		}
		own, err := readSection(cmd, path, section, node, known)
		if err != nil {
			return nil, err
		}
		maps.Copy(values, own) // a program's own section takes precedence
	}
	return values, nil
}

// readSection returns the keys and values of a section; "" means the whole file. A key that is not the name of a known flag is an error.
func readSection(cmd *cobra.Command, path, section string, node *yaml.Node, known map[string]bool) (map[string]*yaml.Node, error) {
	values, err := pairs(path, node)
	if err != nil {
		return nil, err
	}
	// In the order of the file, so that the same file always gives the same error.
	for _, key := range slices.SortedFunc(maps.Keys(values), func(a, b string) int { return values[a].Line - values[b].Line }) {
		n := values[key]
		switch {
		case section == "" && slices.Contains(programs, key):
			continue
		case slices.Contains(notInFiles, key):
			return nil, Usagef("config file %s:%d: %q cannot be set in a file; give --%s on the command line of each call", path, n.Line, key, key)
		case !known[key]:
			hint := ""
			if near := meant(key, known); near != "" {
				hint = fmt.Sprintf("; did you mean %q?", near)
			} else if section == "" {
				hint = fmt.Sprintf("; a flag that only another program has belongs under '%s:'", strings.Join(others(cmd), ":' or '"))
			}
			return nil, Usagef("config file %s:%d: unknown key%s%s", path, n.Line, quoted(key), hint)
		}
	}
	return values, nil
}

// parseConfig returns the mapping in a file; nil if there is none.
func parseConfig(path string, data []byte) (*yaml.Node, error) {
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var doc, more yaml.Node
	switch err := decoder.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil, nil
	case err != nil:
		return nil, syntaxError(path, err)
	}
	switch err := decoder.Decode(&more); {
	case errors.Is(err, io.EOF):
	case err != nil:
		return nil, syntaxError(path, err)
	default:
		return nil, Usagef("config file %s:%d: a second document; use one", path, more.Line)
	}
	root := doc.Content[0]
	if root.Kind == yaml.ScalarNode && root.Tag == "!!null" {
		return nil, nil
	}
	return root, nil
}

// yamlError matches the beginning of the parser's errors. Only syntax errors start with one of these words; other errors quote the file.
var yamlError = regexp.MustCompile(`^yaml: (?:line (\d+): )?((?:did not|could not|found|mapping|block|control) .*)?`)

// syntaxError rewrites an error of the parser. rule: it does not quote the file. --config may name another file by mistake, perhaps one with passwords.
func syntaxError(path string, err error) error {
	why := ""
	if m := yamlError.FindStringSubmatch(err.Error()); m != nil {
		if m[1] != "" {
			path += ":" + m[1]
		}
		if m[2] != "" {
			why = ": " + m[2]
		}
	}
	return Usagef("config file %s: not valid YAML%s; write lines as in 'lease: 30s', and quote text with special characters", path, why)
}

// flagName matches keys that may have been meant as the name of a flag.
var flagName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_-]{0,31}$`)

// quoted returns a key for an error. rule: a key that may be a line of some other file is not quoted. YAML reads lines of /etc/shadow as keys.
func quoted(key string) string {
	if !flagName.MatchString(key) {
		return ""
	}
	return fmt.Sprintf(" %q", key)
}

// pairs returns the values of a mapping by key, as written.
func pairs(path string, node *yaml.Node) (map[string]*yaml.Node, error) {
	if node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	if node.Kind != yaml.MappingNode {
		return nil, Usagef("config file %s:%d: expected lines such as 'lease: 30s'", path, node.Line)
	}
	values := map[string]*yaml.Node{}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		if key.Kind != yaml.ScalarNode {
			return nil, Usagef("config file %s:%d: a key must be the name of a flag", path, key.Line)
		}
		if values[key.Value] != nil {
			return nil, Usagef("config file %s:%d: duplicate key%s", path, key.Line, quoted(key.Value))
		}
		if value.Kind == yaml.AliasNode {
			value = value.Alias
		}
		values[key.Value] = value
	}
	return values, nil
}

// setFromNode sets a flag to the text of a value, as if given on the command line, or to a list of texts.
func setFromNode(cmd *cobra.Command, f *pflag.Flag, n *yaml.Node) error {
	list, isList := f.Value.(pflag.SliceValue)
	switch {
	case n.Kind == yaml.MappingNode:
		return errors.New("expected a value, found keys")
	case n.Kind == yaml.SequenceNode && !isList:
		return errors.New("expected one value, found a list")
	case n.Kind == yaml.SequenceNode:
		var values []string
		for _, item := range n.Content {
			if item.Kind != yaml.ScalarNode || item.Tag == "!!null" {
				return errors.New("expected a list of plain values")
			}
			values = append(values, item.Value)
		}
		f.Changed = true
		return list.Replace(values)
	case n.Tag == "!!null":
		return errors.New("has no value; give one, or remove the key")
	case isList && f.Value.Type() == "stringArray":
		f.Changed = true
		return list.Replace([]string{n.Value})
	case isList:
		f.Changed = true
		return list.Replace(strings.Split(n.Value, ","))
	}
	return cmd.Flags().Set(f.Name, n.Value)
}

// knownFlags returns the names of all flags of a program.
func knownFlags(root *cobra.Command) map[string]bool {
	known := map[string]bool{}
	eachFlag(root, func(f *pflag.Flag) { known[f.Name] = true })
	return known
}

// eachFlag calls do for the flags of a command and of those below it.
func eachFlag(cmd *cobra.Command, do func(*pflag.Flag)) {
	for _, set := range []*pflag.FlagSet{cmd.Flags(), cmd.PersistentFlags()} {
		set.VisitAll(do)
	}
	for _, sub := range cmd.Commands() {
		eachFlag(sub, do)
	}
}

// others returns the sections of the other programs.
func others(cmd *cobra.Command) []string {
	return slices.DeleteFunc(slices.Clone(programs), func(p string) bool { return p == cmd.Root().Name() })
}

// meant returns the known name that key may be a misspelling of; "" if there is none.
func meant(key string, known map[string]bool) string { return nearest(key, known, max(len(key)/3, 1)) }

// nearest returns the known name that is most like key, and differs from it by at most so many letters; "" if there is none.
func nearest(key string, known map[string]bool, letters int) string {
	best, least := "", letters+1
	for _, name := range slices.Sorted(maps.Keys(known)) {
		if d := distance(strings.ToLower(strings.ReplaceAll(key, "_", "-")), name); d < least {
			best, least = name, d
		}
	}
	return best
}

// distance returns the Levenshtein distance: how many letters to insert, remove or replace.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(diagonal+cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
