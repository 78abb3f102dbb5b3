package main

import (
	"io"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
)

// byteProgress is one progress bar over the bytes of several files; nil shows nothing. Safe for concurrent use.
type byteProgress struct {
	mu    sync.Mutex
	bar   *progressbar.ProgressBar
	sizes map[string]int64 // of the files, at the start
	done  map[string]int64
}

// newByteProgress shows the progress over files; size returns the size of one.
func newByteProgress(w io.Writer, what string, paths []string, size func(path string) (int64, error)) *byteProgress {
	p := &byteProgress{sizes: map[string]int64{}, done: map[string]int64{}}
	total := int64(0)
	for _, path := range paths {
		if n, err := size(path); err == nil && p.sizes[path] == 0 {
			p.sizes[path] = n
			total += n
		}
	}
	p.bar = progressbar.NewOptions64(total, progressbar.OptionSetWriter(w), progressbar.OptionShowBytes(true), progressbar.OptionClearOnFinish(),
		progressbar.OptionSetDescription(what), progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionSetWidth(30))
	return p
}

// file returns the progress callback for one of the files.
func (p *byteProgress) file(path string) func(done, total int64) {
	if p == nil {
		return nil
	}
	return func(done, total int64) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if grown := total - p.sizes[path]; grown > 0 { // the file has grown, or a compaction also reads the files before it
			p.bar.AddMax64(grown)
			p.sizes[path] = total
		}
		done = min(done, p.sizes[path])
		if more := done - p.done[path]; more > 0 {
			p.bar.Add64(more)
			p.done[path] = done
		}
	}
}

// more adds a file, unless the bar already has it.
func (p *byteProgress) more(path string, size int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sizes[path] != 0 {
		return
	}
	p.sizes[path] = size
	ended, done := p.bar.IsFinished(), p.bar.State().CurrentNum
	p.bar.AddMax64(size)
	if ended { // a bar that has reached its end shows nothing more
		p.bar.Reset()
		p.bar.Add64(done)
	}
}

// finish counts a file as done, however far it was read.
func (p *byteProgress) finish(path string) {
	if p != nil {
		p.file(path)(p.sizes[path], 0)
	}
}

// clear removes the bar from the terminal, so that something else can be printed.
func (p *byteProgress) clear() {
	if p != nil {
		p.bar.Clear()
	}
}
