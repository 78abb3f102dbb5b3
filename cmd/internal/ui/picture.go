package ui

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/fencepost/fencepost/storage"
)

const (
	pictureWidth = 1000.0
	mostParts    = 400 // parts of one bar
	mostFiles    = 20  // bars
	mostRegions  = 50  // rows of the table
)

// files are the files of a type, oldest first.
type files struct {
	storage.Chain
	next  uint64   // the index after the last record, according to the files or the registry
	wrong []string // defects of the files, and mismatches between them
}

// chain returns the files of a type, or why they cannot be shown here.
func (u *UI) chain(ctx context.Context, t *typeState) (f files, missing string) {
	o, here := u.o.Files, u.here()
	there := ""
	if t.file.there && t.file.Place != "" && t.file.Place != o.Place {
		there = fmt.Sprintf("The file is at %s, and this program reads %s. Start it there to see the file: with --dir on that host, or with --store.", t.file.Place, o.Place)
	}
	chain, err := storage.ReadChain(o.FS(ctx), o.Dir, t.name)
	switch {
	case errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil:
		return f, fmt.Sprintf("Cannot read the files: %v.", context.Cause(ctx))
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return f, fmt.Sprintf("Cannot read %s: %s", here, u.clean(err))
	case len(chain) == 0 && there != "":
		return f, there
	case len(chain) == 0 && t.file.damaged != "":
		return f, "The entry of the file is damaged: " + t.file.damaged
	case len(chain) == 0 && !t.file.there:
		return f, "There is no file yet: no worker has appended anything, or a handler takes the messages."
	case len(chain) == 0:
		return f, fmt.Sprintf("There is no file of this type in %s.", here)
	}
	newest := chain[len(chain)-1]
	if newest.Err != nil && newest.Type == "" {
		return f, "The newest file cannot be read: " + u.clean(newest.Err)
	}
	if t.file.there && !slices.ContainsFunc(chain, func(l storage.Link) bool { return l.FileID == storage.FileID(t.file.FileID) }) {
		if there != "" {
			return f, there + " There are other files of this name here, which are not shown."
		}
		return f, fmt.Sprintf("The file in %s is not the registered one, and not shown: fencepost doctor says more.", here)
	}
	f.Chain, f.next = chain, t.file.DurableIndex
	for _, l := range chain {
		if f.next = max(f.next, l.Next); l.Err != nil {
			f.wrong = append(f.wrong, base(l.Path)+" cannot be read whole: "+u.clean(l.Err))
		}
	}
	for _, e := range chain.Check() {
		f.wrong = append(f.wrong, u.clean(e))
	}
	return f, ""
}

// filePicture is the display of a type's files on its page.
type filePicture struct {
	Missing string
	Bars    []fileBar
	Older   int // files that are not shown
	Wrong   []string
	Facts   []fact
	Regions []regionRow
	More    string
	Notes   []string
}

// fileBar shows the bytes of one file as a bar, from its beginning to its end.
type fileBar struct {
	Name, Size, Range string
	Parts             []barPart
	Ticks             []barTick
	Status            string
	ScanLink          string
}

type barPart struct{ X, W, Class, Title string }

type barTick struct{ X, Title string }

// regionRow is one writer's part of a file.
type regionRow struct {
	Class, Epoch, Holder, Began, Records, Bytes string
	First                                       string // link to its first record
}

func (u *UI) picture(ctx context.Context, t *typeState, f files, missing string, asked bool) *filePicture {
	p := &filePicture{Missing: missing, Wrong: f.wrong}
	if missing != "" {
		return p
	}
	shown := f.Chain
	if len(shown) > mostFiles {
		p.Older, shown = len(shown)-mostFiles, shown[len(shown)-mostFiles:]
	}
	newest := shown[len(shown)-1]
	add := func(name, value string) { p.Facts = append(p.Facts, fact{Name: name, Value: value}) }
	add("records", count(f.next))
	if t.file.known {
		add("acknowledged", count(t.file.DurableIndex))
	}
	add("generation", count(newest.Generation))
	add("epoch", strconv.FormatUint(max(newest.Epoch, t.file.Epoch), 10))
	add("identity", newest.FileID.String())
	add("place", cmp.Or(t.file.Place, u.o.Files.Place))
	for i, l := range shown {
		last := i == len(shown)-1
		bar := fileBar{Name: base(l.Path), Range: indexes(l.First, l.Next)}
		info, err := u.o.Files.FS(ctx).Stat(l.Path)
		if err != nil {
			bar.Status = "cannot be read: " + u.clean(err)
			p.Bars = append(p.Bars, bar)
			continue
		}
		bar.Size = size(info.Size)
		c := u.scans.look(l.Path, info.Size, asked && last)
		switch {
		case c.running && c.report == nil:
			bar.Status = fmt.Sprintf("reading it, %d %%", c.share)
		case c.err != nil:
			bar.Status = "cannot be read: " + u.clean(c.err)
		case c.report == nil && last:
			bar.Status, bar.ScanLink = "not read yet", "?scan=1"
		case c.report == nil:
			bar.Status = "not read yet"
		default:
			bar.Status = "as of " + clock(c.at)
			if n := c.report.CorruptCount; n > 0 {
				bar.Status = plural(int(n), "damaged place", "damaged places") + ", " + bar.Status
			}
		}
		if c.report != nil {
			u.draw(&bar, c.report)
			if last {
				u.regions(p, c.report, t)
			}
		} else {
			bar.Parts = []barPart{{"0", "1000", "unread", "not read yet"}}
		}
		p.Bars = append(p.Bars, bar)
	}
	slices.Reverse(p.Bars) // the newest first
	return p
}

func base(path string) string { return path[strings.LastIndexByte(path, '/')+1:] }

// indexes formats a range of records.
func indexes(first, next uint64) string {
	if next <= first {
		return "no records"
	}
	return count(first) + " to " + count(next-1)
}

// draw adds the parts of a file that was read to its bar.
func (u *UI) draw(bar *fileBar, r *storage.Report) {
	x := func(off int64) float64 { return pictureWidth * float64(off) / float64(max(r.Size, 1)) }
	part := func(from, to int64, class, title string) {
		if len(bar.Parts) < mostParts {
			bar.Parts = append(bar.Parts, barPart{number(x(from)), number(max(x(to)-x(from), 1.5)), class, title})
		}
	}
	part(0, r.Size, "space", "header, and parts that readers skip")
	for i, g := range r.Regions {
		part(g.Offset, g.End, regionClass(i), fmt.Sprintf("epoch %d: %s, written by %s pid %d", g.Epoch, indexes(g.First, g.Next), holderHost(g), g.Holder.PID))
	}
	for _, v := range r.Void {
		part(v.Offset, v.End, "void", fmt.Sprintf("void: %s that readers skip, from a writer that was fenced or died", size(v.End-v.Offset)))
	}
	if r.Torn.End > r.Torn.Offset {
		part(r.Torn.Offset, r.Torn.End, "torn", fmt.Sprintf("%s of an incomplete batch at the end: being written, or left by a crash", size(r.Torn.End-r.Torn.Offset)))
	}
	for _, err := range r.Corrupt {
		var c *storage.CorruptError
		if errors.As(err, &c) {
			part(c.Offset, c.End, "damage", "damage: "+c.Reason)
		}
	}
	for _, g := range r.GapList {
		for _, region := range r.Regions {
			if g.Index >= region.First && g.Index < region.Next && len(bar.Ticks) < mostParts {
				at := x(region.Offset) + (x(region.End)-x(region.Offset))*float64(g.Index-region.First)/float64(region.Next-region.First)
				bar.Ticks = append(bar.Ticks, barTick{number(at), fmt.Sprintf("declared gap before index %s", count(g.Index))})
			}
		}
	}
}

func regionClass(i int) string {
	if i%2 == 0 {
		return "region-a"
	}
	return "region-b"
}

func holderHost(g storage.Region) string { return cmp.Or(g.Holder.Host, "?") }

func number(f float64) string { return strconv.FormatFloat(f, 'f', 1, 64) }

// regions fills the table below the bars, the newest first, and the notes.
func (u *UI) regions(p *filePicture, r *storage.Report, t *typeState) {
	for i, g := range slices.Backward(r.Regions) {
		if len(p.Regions) == mostRegions {
			break
		}
		row := regionRow{Class: regionClass(i), Epoch: strconv.FormatUint(g.Epoch, 10), Holder: fmt.Sprintf("%s pid %d", holderHost(g), g.Holder.PID), Began: date(g.Holder.Wall),
			Records: indexes(g.First, g.Next), Bytes: size(g.End - g.Offset)}
		if !g.Opened {
			row.Records = "fenced only"
		} else if g.Next > g.First {
			row.First = withQuery(u.link("types", t.name, "records"), "at", strconv.FormatUint(g.First, 10))
		}
		p.Regions = append(p.Regions, row)
	}
	if n := int(r.RegionCount) - len(p.Regions); n > 0 {
		p.More = plural(n, "more epoch", "more epochs")
	}
	note := func(n uint64, one, many string) {
		if n > 0 {
			p.Notes = append(p.Notes, plural(int(n), one, many))
		}
	}
	note(r.Gaps, "declared gap", "declared gaps")
	note(r.Skipped, "message put aside (dead letter)", "messages put aside (dead letters)")
	note(r.Lost, "record lost: a repair could not read it, or gave it up", "records lost: a repair could not read them, or gave them up")
	if r.VoidBytes > 0 {
		p.Notes = append(p.Notes, size(r.VoidBytes)+" void, which readers skip")
	}
	for i, err := range r.Corrupt {
		if i == someRows {
			p.Wrong = append(p.Wrong, fmt.Sprintf("and %d more damaged places: fencepost verify lists them", int(r.CorruptCount)-i))
			break
		}
		p.Wrong = append(p.Wrong, u.clean(err))
	}
}
