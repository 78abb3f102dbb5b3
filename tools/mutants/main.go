// Command mutants shows that the tests detect the loss of each safety rule: it removes one rule after another from the
// code, and for each the tests named in the table must fail.
//
//	go run ./tools/mutants [-list] [-fast] [-build] [-run REGEXP] [-p N]
//
// A mutant is a small change of one source file. The go command gets it with -overlay, so the tree stays unchanged and
// the product needs no switches. A mutant must compile, and a test must report a failure: a failed build or a test that
// does not end proves nothing. The same tests must pass without a mutant.
//
// It prints a line per mutant and exits with 1 if one survives. The table is in rules_*.go; TestTable keeps it complete.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("mutants", flag.ExitOnError)
	list := flags.Bool("list", false, "print the table of rules, with what is not tested here and why")
	fast := flags.Bool("fast", false, "try one rule of each package only")
	build := flags.Bool("build", false, "only compile the mutants: after code was moved or renamed")
	pattern := flags.String("run", "", "try only rules whose file and text match this `regexp`")
	parallel := flags.Int("p", runtime.GOMAXPROCS(0), "how many to try concurrently")
	flags.Parse(args)
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q: rules are chosen with -run REGEXP", flags.Arg(0))
	}
	if *parallel < 1 {
		return fmt.Errorf("-p %d: at least one must be tried at a time", *parallel)
	}
	re, err := regexp.Compile(*pattern)
	if err != nil {
		return fmt.Errorf("-run: %w", err)
	}
	root, err := findRoot()
	if err != nil {
		return err
	}
	chosen := slices.DeleteFunc(table(), func(r rule) bool { return !re.MatchString(r.String()) })
	if *fast {
		chosen = onePerPackage(chosen)
	}
	if len(chosen) == 0 {
		return fmt.Errorf("no rule matches -run %s; -list prints them", *pattern)
	}
	if *list {
		return printTable(chosen)
	}
	chosen = slices.DeleteFunc(chosen, func(r rule) bool { return !r.isMutant() })
	if len(chosen) == 0 {
		return fmt.Errorf("what matches -run %s is not tested here; -list says where or why", *pattern)
	}
	for _, r := range chosen {
		if err := r.check(root); err != nil {
			return err
		}
	}
	if *build {
		return buildAll(ctx, root, chosen, *parallel)
	}
	return try(ctx, root, chosen, *parallel)
}

// onePerPackage returns the first mutant of each package.
func onePerPackage(all []rule) (some []rule) {
	seen := map[string]bool{}
	for _, r := range all {
		if dir := path.Dir(r.file); r.isMutant() && !r.open && !seen[dir] {
			seen[dir] = true
			some = append(some, r)
		}
	}
	return some
}

func printTable(rules []rule) error {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	for _, r := range rules {
		fmt.Fprintf(w, "%s\t%s\n", r, r.shownBy())
	}
	return w.Flush()
}

func (r rule) shownBy() string {
	switch {
	case r.untested != "":
		return "not tested: " + r.untested
	case r.open:
		return "open: no test is known to notice"
	case r.isMutant():
		return "fails without it: " + r.where() + " " + r.tests
	default:
		return "removed by the test itself: " + r.where() + " " + r.tests
	}
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
