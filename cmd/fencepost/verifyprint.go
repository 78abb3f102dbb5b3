package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/internal/printable"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/worker"
)

func tornBytes(r *storage.Report) int64 { return r.Torn.End - r.Torn.Offset }

// messages returns the number of messages that cat prints: all records except those that a repair could not read and those that were skipped.
func messages(r *storage.Report) uint64 { return r.Messages - r.Skipped - r.Lost }

// The verdicts as printed.
const (
	verdictOK       = "OK"
	verdictReplaced = "REPLACED"
	verdictBad      = "BAD"
	verdictStopped  = "STOPPED"
	verdictUnread   = "UNREADABLE" // not known to be bad
)

func (r *fileReport) word() string {
	switch {
	case r.stopped():
		return verdictStopped
	case errors.Is(r.err, fs.ErrPermission) && len(r.chain) == 0:
		return verdictUnread
	case r.verdict() != nil:
		return verdictBad
	case r.passedOver():
		return verdictReplaced
	}
	return verdictOK
}

// printReports prints the reports for people, with a sum if there are several.
func printReports(w io.Writer, reports []*fileReport, verbose bool) {
	for _, r := range reports {
		if r.report == nil {
			continue
		}
		r.print(w)
		if verbose {
			r.printDetails(w)
		}
	}
	if len(reports) > 1 {
		printSum(w, reports)
	}
}

// printSum prints the sum of several files. Messages of a replaced or copied file count once.
func printSum(w io.Writer, reports []*fileReport) {
	count, n := map[string]int{}, uint64(0)
	for _, r := range reports {
		count[r.word()]++
		if r.report != nil && !r.replaced && !r.copied {
			n += messages(r.report)
		}
	}
	printable.Fprintf(w, "%s files ", humanize.Comma(int64(len(reports))))
	for _, verdict := range []string{verdictBad, verdictUnread, verdictStopped, verdictReplaced, verdictOK} {
		if count[verdict] > 0 {
			printable.Fprintf(w, " %s %s ", verdict, humanize.Comma(int64(count[verdict])))
		}
	}
	printable.Fprintf(w, " %s messages\n", humanize.Comma(int64(n)))
}

// print prints one line per file, and a line for everything unusual.
func (r *fileReport) print(w io.Writer) {
	w = r.files.out(w)
	rep := r.report
	printable.Fprintf(w, "%s  %s  %s messages", r.path, r.word(), humanize.Comma(int64(messages(rep))))
	if rep.Messages > 0 {
		printable.Fprintf(w, "  index %d..%d", rep.FirstIndex, rep.NextIndex-1)
	}
	producers := r.audit.Producers()
	contiguous := 0
	for _, p := range producers {
		if p.Contiguous() {
			contiguous++
		}
	}
	printable.Fprintf(w, "  producers %d", len(producers))
	if contiguous == len(producers) {
		printable.Fprintf(w, " (contiguous)")
	}
	if n := r.audit.Loose(); n > 0 {
		printable.Fprintf(w, "  loose %s", humanize.Comma(int64(n)))
	}
	printable.Fprintf(w, "  epochs %d  gaps %d  skipped %d  torn %d B  void %d B  %s  %s/s\n", rep.RegionCount, rep.Gaps, rep.Skipped, tornBytes(rep),
		rep.VoidBytes, humanize.IBytes(uint64(rep.Size)), humanize.Bytes(uint64(float64(rep.Size)/max(rep.Duration.Seconds(), 1e-6))))
	if rep.Lost > 0 {
		printable.Fprintf(w, "  lost %d: a repair could not read them, or gave them up\n", rep.Lost)
	}
	if r.passedOver() {
		printable.Fprintf(w, "  damaged, but replaced by a repair or compaction; lost messages are marked in the later file\n")
	}
	for _, p := range producers {
		if !p.Contiguous() {
			printable.Fprintf(w, "  producer %016x: n %s\n", p.Number, rangesText(p.Ranges))
		}
	}
	if s := rep.Sealed; s != nil {
		printable.Fprintf(w, "  sealed; it continues in %s\n", successorPath(r.path, rep.Type, s))
	}
	if r.copied {
		printable.Fprintf(w, "  a copy: it holds generation %d of type %s, and is not counted\n", rep.Generation, rep.Type)
	}
	if f := r.first; f != nil {
		printable.Fprintf(w, "  first kept: generation %d, from index %d\n", f.Generation, f.First)
	}
	for _, c := range slices.Concat(rep.Corrupt, r.chain) {
		printable.Fprintf(w, "  %v\n", c)
	}
	if n := rep.CorruptCount - uint64(len(rep.Corrupt)); n > 0 {
		printable.Fprintf(w, "  and %d more damaged places\n", n)
	}
	problems, n := r.audit.Problems()
	for _, p := range problems {
		printable.Fprintf(w, "  %v\n", p)
	}
	if n > len(problems) {
		printable.Fprintf(w, "  and %d more\n", n-len(problems))
	}
}

// printDetails prints the additional output of --verbose.
func (r *fileReport) printDetails(w io.Writer) {
	w = r.files.out(w)
	rep := r.report
	for _, g := range rep.Regions {
		printable.Fprintf(w, "  epoch %d  %s pid %d  %s  ", g.Epoch, cmp.Or(g.Holder.Host, "?"), g.Holder.PID, g.Holder.Wall.Format(time.RFC3339))
		switch {
		case !g.Opened:
			printable.Fprintf(w, "fenced only")
		case g.Next == g.First:
			printable.Fprintf(w, "no messages")
		default:
			printable.Fprintf(w, "index %d..%d", g.First, g.Next-1)
		}
		printable.Fprintf(w, "  bytes %d..%d\n", g.Offset, g.End-1)
	}
	if n := rep.RegionCount - uint64(len(rep.Regions)); n > 0 {
		printable.Fprintf(w, "  and %d more epochs, before the last one\n", n)
	}
	for _, v := range rep.Void {
		printable.Fprintf(w, "  void bytes %d..%d\n", v.Offset, v.End-1)
	}
	if t := rep.Torn; t.End > t.Offset {
		printable.Fprintf(w, "  torn bytes %d..%d\n", t.Offset, t.End-1)
	}
	for _, g := range rep.GapList {
		printable.Fprintf(w, "  declared gap before index %d, message %s\n", g.Index, cli.IDText(g.ID))
	}
	if n := rep.Gaps - uint64(len(rep.GapList)); n > 0 {
		printable.Fprintf(w, "  and %d more declared gaps\n", n)
	}
	printable.Fprintf(w, "  batches %d  checkpoints %d  generation %d\n", rep.Batches, rep.Checkpoints, rep.Generation)
	for i, p := range r.audit.Producers() {
		if i == 100 {
			printable.Fprintf(w, "  and %d more producers\n", len(r.audit.Producers())-i)
			break
		}
		if p.Contiguous() { // print has printed the others
			printable.Fprintf(w, "  producer %016x: n %s\n", p.Number, rangesText(p.Ranges))
		}
	}
}

func rangesText(ranges []worker.Range) string {
	var s []string
	for i, r := range ranges {
		if i == 10 {
			s = append(s, fmt.Sprintf("and %d more ranges", len(ranges)-i))
			break
		}
		s = append(s, fmt.Sprintf("%d..%d", r.From, r.To))
	}
	return strings.Join(s, ", ")
}

// The json output of verify.
type (
	verifyJSON struct {
		File        string         `json:"file"`
		OK          bool           `json:"ok"`
		Error       string         `json:"error,omitempty"`
		Type        string         `json:"type,omitempty"`
		FileID      string         `json:"file_id,omitempty"`
		Messages    uint64         `json:"messages"`
		FirstIndex  uint64         `json:"first_index"`
		NextIndex   uint64         `json:"next_index"`
		Skipped     uint64         `json:"skipped"`
		Gaps        uint64         `json:"declared_gaps"`
		Lost        uint64         `json:"lost"`               // a repair could not read them, or gave them up
		Replaced    bool           `json:"replaced,omitempty"` // by a compaction or repair: its damage does not count
		Size        int64          `json:"size"`
		DurableEnd  int64          `json:"durable_end"`
		TornBytes   int64          `json:"torn_bytes"`
		VoidBytes   int64          `json:"void_bytes"`
		Void        [][2]int64     `json:"void_ranges"` // [from, to)
		Torn        *[2]int64      `json:"torn_range,omitempty"`
		GapList     []gapJSON      `json:"gaps"` // the declared gaps; only the first if there are very many
		Generation  uint64         `json:"generation"`
		Sealed      *sealedJSON    `json:"sealed,omitempty"`
		Batches     uint64         `json:"batches"`
		Checkpoints uint64         `json:"checkpoints"`
		Corruptions []string       `json:"corruptions,omitempty"`
		Chain       []string       `json:"chain,omitempty"` // why this file does not fit those before and after it
		Duplicates  uint64         `json:"duplicates"`
		Violations  int            `json:"sequence_violations"`
		Loose       uint64         `json:"loose,omitempty"` // messages that were published in transactions
		Producers   []producerJSON `json:"producers"`
		Regions     []regionJSON   `json:"regions"`
		Seconds     float64        `json:"seconds"`
	}
	producerJSON struct {
		Producer string      `json:"producer"`
		Messages uint64      `json:"messages"`
		Ranges   [][2]uint64 `json:"n"`
	}
	regionJSON struct {
		Epoch  uint64    `json:"epoch"`
		Host   string    `json:"host"`
		PID    int       `json:"pid"`
		First  uint64    `json:"first_index"`
		Next   uint64    `json:"next_index"`
		Offset int64     `json:"offset"`
		End    int64     `json:"end"`
		Wall   time.Time `json:"wall,omitzero"` // the holder's clock at its fence
	}
	// gapJSON is a declared gap, named by the message after it.
	gapJSON struct {
		Index uint64 `json:"index"`
		ID    string `json:"id"`
	}
	sealedJSON struct {
		Successor  string `json:"successor"` // its file_id
		Generation uint64 `json:"generation"`
		File       string `json:"file"`
	}
)

func (r *fileReport) json() verifyJSON {
	err := r.verdict()
	j := verifyJSON{File: r.path, OK: err == nil, Producers: []producerJSON{}, Regions: []regionJSON{}, Void: [][2]int64{}, GapList: []gapJSON{}}
	if err != nil {
		j.Error = err.Error()
	}
	for _, c := range r.chain {
		j.Chain = append(j.Chain, c.Error())
	}
	j.Replaced = r.replaced
	rep := r.report
	if rep == nil {
		return j
	}
	j.Type, j.FileID = rep.Type, rep.FileID.String()
	j.Messages, j.FirstIndex, j.NextIndex, j.Skipped, j.Gaps = messages(rep), rep.FirstIndex, rep.NextIndex, rep.Skipped, rep.Gaps
	j.Size, j.DurableEnd, j.TornBytes, j.VoidBytes = rep.Size, rep.DurableEnd, tornBytes(rep), rep.VoidBytes
	j.Duplicates, j.Seconds = rep.DuplicateCount, rep.Duration.Seconds()
	j.Generation, j.Batches, j.Checkpoints, j.Lost = rep.Generation, rep.Batches, rep.Checkpoints, rep.Lost
	for _, v := range rep.Void {
		j.Void = append(j.Void, [2]int64{v.Offset, v.End})
	}
	if tornBytes(rep) > 0 {
		j.Torn = &[2]int64{rep.Torn.Offset, rep.Torn.End}
	}
	for _, g := range rep.GapList {
		j.GapList = append(j.GapList, gapJSON{g.Index, cli.IDText(g.ID)})
	}
	if s := rep.Sealed; s != nil {
		j.Sealed = &sealedJSON{s.Successor.String(), s.Generation, successorPath(r.path, rep.Type, s)}
	}
	for _, c := range rep.Corrupt {
		j.Corruptions = append(j.Corruptions, c.Error())
	}
	_, j.Violations = r.audit.Problems()
	j.Loose = r.audit.Loose()
	for _, p := range r.audit.Producers() {
		pj := producerJSON{Producer: fmt.Sprintf("%016x", p.Number), Messages: p.Messages}
		for _, x := range p.Ranges {
			pj.Ranges = append(pj.Ranges, [2]uint64{x.From, x.To})
		}
		j.Producers = append(j.Producers, pj)
	}
	for _, g := range rep.Regions {
		j.Regions = append(j.Regions, regionJSON{g.Epoch, g.Holder.Host, g.Holder.PID, g.First, g.Next, g.Offset, g.End, g.Holder.Wall})
	}
	return j
}
