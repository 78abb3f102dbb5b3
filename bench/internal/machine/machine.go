// Package machine describes the kind of computer and nothing else: no names, no paths.
package machine

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Describe returns processor, memory and kernel.
func Describe() string {
	kernel := "unknown"
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		kernel = unix.ByteSliceToString(u.Release[:])
	}
	return fmt.Sprintf("%s, %d cores, %.0f GiB RAM, Linux %s", cpu(), runtime.NumCPU(), memory(), kernel)
}

func cpu() string {
	b, _ := os.ReadFile("/proc/cpuinfo")
	if v := field(string(b), "model name"); v != "" {
		return v
	}
	return runtime.GOARCH
}

func memory() float64 {
	var si unix.Sysinfo_t
	if unix.Sysinfo(&si) != nil {
		return 0
	}
	return float64(si.Totalram) * float64(si.Unit) / (1 << 30)
}

// AvailableMemory returns the bytes that can be used without swapping, and within a container's limit; 0 when that is unknown.
func AvailableMemory() int64 {
	b, _ := os.ReadFile("/proc/meminfo")
	var kib, limit int64
	fmt.Sscanf(field(string(b), "MemAvailable"), "%d", &kib)
	b, _ = os.ReadFile("/sys/fs/cgroup/memory.max") // of the outermost group visible to this process; "max" means no limit
	if n, _ := fmt.Sscanf(string(b), "%d", &limit); n == 1 {
		return min(kib<<10, limit)
	}
	return kib << 10
}

// field returns the value of the first "name : value" line.
func field(text, name string) string {
	for line := range strings.Lines(text) {
		k, v, ok := strings.Cut(line, ":")
		if ok && strings.TrimSpace(k) == name {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// Load returns the load average of the last minute as the kernel writes it.
func Load() string {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	one, _, _ := strings.Cut(string(b), " ")
	return one
}

// Elsewhere begins to measure how many cores other processes keep busy; the returned function ends the measurement.
func Elsewhere() func() float64 {
	start, before := time.Now(), busyElsewhere()
	return func() float64 { return max(0, busyElsewhere()-before) / time.Since(start).Seconds() }
}

// busyElsewhere returns the seconds of processor time that other processes have used on all cores since the machine started.
func busyElsewhere() float64 {
	const tick = .01 // of /proc/stat, seconds
	b, _ := os.ReadFile("/proc/stat")
	var user, nice, system, idle, wait, irq, soft, steal float64
	fmt.Sscanf(string(b), "cpu %g %g %g %g %g %g %g %g", &user, &nice, &system, &idle, &wait, &irq, &soft, &steal)
	var own unix.Rusage
	unix.Getrusage(unix.RUSAGE_SELF, &own)
	ours := time.Duration(own.Utime.Nano() + own.Stime.Nano()).Seconds()
	return (user+nice+system+irq+soft+steal)*tick - ours
}

// Busy begins to measure the processor time of processes with these names. The returned function ends the measurement and returns the
// seconds of all of them together, NaN if there are none.
func Busy(names ...string) func() float64 {
	before := processes(names)
	return func() float64 {
		sum, after := 0., processes(names)
		if len(after) == 0 {
			return math.NaN()
		}
		for pid, seconds := range after {
			sum += seconds - before[pid] // 0 for a new one
		}
		return sum
	}
}

// processes returns the seconds of processor time used by each process with one of these names.
func processes(names []string) map[string]float64 {
	const tick = .01 // of /proc/<pid>/stat, seconds
	seconds := map[string]float64{}
	paths, _ := filepath.Glob("/proc/[0-9]*/stat") // the pattern is valid
	for _, path := range paths {
		b, _ := os.ReadFile(path)
		before, rest, _ := strings.Cut(string(b), ") ") // after the name, which is in parentheses
		_, name, _ := strings.Cut(before, "(")
		fields := strings.Fields(rest)
		if len(fields) < 13 || !slices.Contains(names, name) {
			continue
		}
		var user, system float64
		fmt.Sscan(fields[11]+" "+fields[12], &user, &system)
		seconds[path] = (user + system) * tick
	}
	return seconds
}

// FileSystem describes the file system of dir, for example "ext4 on a virtio disk", and reports whether it is in memory.
func FileSystem(dir string) (description string, inMemory bool) {
	b, _ := os.ReadFile("/proc/self/mountinfo")
	dir, err := filepath.Abs(dir)
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	if err != nil {
		return "an unknown file system", false
	}
	kind, source := mountOf(string(b), dir)
	switch {
	case kind == "tmpfs" || kind == "ramfs":
		return kind + " in memory", true
	case !strings.HasPrefix(source, "/dev/"):
		return kind, false
	}
	block, err := filepath.EvalSymlinks("/sys/class/block/" + filepath.Base(source))
	if err != nil {
		return kind, false
	}
	return kind + " on a " + device(block), false
}

// mountOf returns the type and the source of the mount that contains the directory: the longest mount point wins, and of equal ones the
// last.
func mountOf(mountinfo, dir string) (kind, source string) {
	longest := -1
	for line := range strings.Lines(mountinfo) {
		mount, device, ok := strings.Cut(line, " - ")
		m, d := strings.Fields(mount), strings.Fields(device)
		if !ok || len(m) < 5 || len(d) < 2 {
			continue
		}
		point := strings.ReplaceAll(m[4], `\040`, " ")
		if (point == "/" || dir == point || strings.HasPrefix(dir, point+"/")) && len(point) >= longest {
			longest, kind, source = len(point), d[0], d[1]
		}
	}
	return kind, source
}

// device describes a block device by its directory in /sys.
func device(block string) string {
	what := "disk"
	for _, kind := range []string{"virtio", "nvme", "loop", "mmc", "ata", "usb"} {
		if strings.Contains(block, "/"+kind) {
			what = kind + " disk"
			break
		}
	}
	for _, dir := range []string{block, filepath.Dir(block)} { // a partition uses the queue of its disk
		b, err := os.ReadFile(filepath.Join(dir, "queue/rotational"))
		if err == nil {
			return what + map[string]string{"0": ", flagged not rotational", "1": ", flagged rotational"}[strings.TrimSpace(string(b))]
		}
	}
	return what
}

// Versions returns the versions of the named modules that this program was built with.
func Versions(modules ...string) string {
	var found []string
	info, _ := debug.ReadBuildInfo()
	for _, m := range modules {
		version := "unknown version"
		if info != nil {
			if i := slices.IndexFunc(info.Deps, func(d *debug.Module) bool { return d.Path == m }); i >= 0 {
				version = info.Deps[i].Version
			}
		}
		found = append(found, m+" "+version)
	}
	return strings.Join(found, ", ")
}
