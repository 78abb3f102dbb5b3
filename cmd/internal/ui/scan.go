package ui

import (
	"context"
	"sync"
	"time"

	"github.com/fencepost/fencepost/cmd/internal/chain"
	"github.com/fencepost/fencepost/storage"
)

const (
	scanOfDir   = 64 << 20 // bytes: a larger file is read only when the user asks for it
	scanOfStore = 1 << 20  // the same in a store, where reading costs requests
	scanPause   = 5 * time.Second
	keptScans   = 64
)

// scan is the result of reading a whole file.
type scan struct {
	report  *storage.Report // of the last scan that succeeded; nil: none
	err     error           // of the last scan
	at      time.Time
	took    time.Duration
	size    int64
	running bool
	share   int // read so far, in percent
}

// scanner reads whole files in the background, one at a time, and keeps the results.
type scanner struct {
	files   chain.Files
	unasked bool // small files are read without a user's request
	ctx     context.Context
	cancel  context.CancelFunc
	wg      sync.WaitGroup

	mu    sync.Mutex
	scans map[string]*scan
	busy  bool
}

func newScanner(f chain.Files, unasked bool) *scanner {
	s := &scanner{files: f, unasked: unasked, scans: map[string]*scan{}}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

func (s *scanner) close() {
	s.cancel()
	s.wg.Wait()
}

// look returns the last result for a file. It starts a scan if the file has changed, and is small or the user asked for it.
func (s *scanner) look(path string, size int64, asked bool) scan {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.scans[path]
	if c == nil {
		c = &scan{}
		s.forget()
		s.scans[path] = c
	}
	most := int64(scanOfDir)
	if s.files.Until != nil {
		most = scanOfStore
	}
	// A file that was read once is read again as it grows. Repeated scans of a file take at most a twentieth of the time.
	wanted := asked || s.unasked && size <= most || c.report != nil
	due := c.at.IsZero() || c.size != size && time.Since(c.at) > max(scanPause, leisure*c.took)
	if wanted && due && !c.running && !s.busy && s.ctx.Err() == nil {
		c.running, c.share, s.busy = true, 0, true
		s.wg.Go(func() { s.read(c, path, size) })
	}
	return *c
}

// forget makes room for one scan; s.mu is held.
func (s *scanner) forget() {
	if len(s.scans) < keptScans {
		return
	}
	oldest := ""
	for path, c := range s.scans {
		if !c.running && (oldest == "" || c.at.Before(s.scans[oldest].at)) {
			oldest = path
		}
	}
	delete(s.scans, oldest)
}

func (s *scanner) read(c *scan, path string, size int64) {
	began := time.Now()
	report, err := storage.Verify(s.ctx, path, storage.VerifyOptions{FS: s.files.FS(s.ctx), Progress: func(done, total int64) {
		s.mu.Lock()
		defer s.mu.Unlock()
		c.share = int(100 * done / max(total, 1))
	}})
	s.mu.Lock()
	defer s.mu.Unlock()
	c.running, s.busy = false, false
	c.err, c.at, c.took, c.size = err, time.Now(), time.Since(began), size
	if err == nil {
		c.report = report
	}
}
