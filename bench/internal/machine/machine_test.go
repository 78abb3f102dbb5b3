package machine

import (
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
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

func TestElsewhere(t *testing.T) {
	done := Elsewhere()
	for start := time.Now(); time.Since(start) < 300*time.Millisecond; {
	}
	if busy := done(); busy < 0 || busy > float64(runtime.NumCPU())-.5 {
		t.Errorf("%v cores are busy elsewhere, while this test kept one busy", busy)
	}
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
