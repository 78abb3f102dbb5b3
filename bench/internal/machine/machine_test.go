package machine

import (
	"math"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestMountOf(t *testing.T) {
	const info = `22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
25 22 0:21 / /dev/shm rw - tmpfs tmpfs rw
26 22 0:22 / /data rw shared:1 - xfs /dev/nvme0n1p2 rw
27 22 0:22 / /data\040two rw shared:1 - btrfs /dev/sdb1 rw
`
	for dir, want := range map[string]string{
		"/":             "ext4 /dev/vda",
		"/database":     "ext4 /dev/vda",
		"/data":         "xfs /dev/nvme0n1p2",
		"/data/x/y":     "xfs /dev/nvme0n1p2",
		"/data two/x":   "btrfs /dev/sdb1",
		"/dev/shm/a":    "tmpfs tmpfs",
		"/dev/shmother": "ext4 /dev/vda",
	} {
		if kind, source := mountOf(info, dir); kind+" "+source != want {
			t.Errorf("%s: %s %s, want %s", dir, kind, source, want)
		}
	}
}

// TestElsewhere: this process's own work does not count, however busy the machine is.
func TestElsewhere(t *testing.T) {
	cores := runtime.NumCPU()
	start, before, done := time.Now(), processorTime(t), Elsewhere()
	var all sync.WaitGroup
	for range cores {
		all.Go(func() {
			for time.Since(start) < 500*time.Millisecond {
			}
		})
	}
	all.Wait()
	busy := done()
	own := (processorTime(t) - before).Seconds() / time.Since(start).Seconds()
	if busy < 0 || busy+own > float64(cores)*1.2 {
		t.Errorf("%.2f cores are busy elsewhere, and %.2f here; there are %d", busy, own, cores)
	}
}

func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func TestDescribe(t *testing.T) {
	all := Describe() + Load()
	fs, _ := FileSystem(t.TempDir())
	all += fs
	if AvailableMemory() <= 0 || !strings.Contains(all, "cores") || strings.Contains(all, "unknown") {
		t.Error(all)
	}
	if host, err := os.Hostname(); err == nil && len(host) > 3 && strings.Contains(all, host) {
		t.Errorf("the host's name %q is in %q", host, all)
	}
	if strings.Contains(all, "/") {
		t.Errorf("a path is in %q", all)
	}
}

// TestBusy: a process is found by its name, even if it begins later, and its work is counted.
func TestBusy(t *testing.T) {
	b, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		t.Skip(err)
	}
	done := Busy(strings.TrimSpace(string(b)))
	for before := processorTime(t); processorTime(t) < before+100*time.Millisecond; {
	}
	if got := done(); got < .05 {
		t.Errorf("%v s of at least 0.1", got)
	}
	if got := Busy("no process has this name")(); !math.IsNaN(got) {
		t.Errorf("%v s of no process", got)
	}
}
