package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// Machine describes where a run took place, as far as that bears on figures. It names neither the machine nor its user.
type Machine struct {
	CPU         string  `json:"cpu"`
	Cores       int     `json:"cores"`
	MemoryBytes int64   `json:"memory_bytes"`
	Kernel      string  `json:"kernel"`
	Arch        string  `json:"arch"`
	Go          string  `json:"go"`
	FileSystem  string  `json:"file_system"`  // of the data directories
	FsyncMicros float64 `json:"fsync_micros"` // of 4 KiB appended to a file there, median; it bounds every rate of few connections
	BusyBefore  float64 `json:"busy_before"`  // share of the machine's CPU that others used in the second before
	Revision    string  `json:"revision"`     // of the checkout
	Profiled    bool    `json:"profiled"`     // the bench is compiled by a CPU profile, as the server is
}

func inspect(dir string) Machine {
	m := Machine{
		CPU: "unknown CPU", Cores: runtime.NumCPU(), Arch: runtime.GOARCH, Go: runtime.Version(),
		MemoryBytes: bytesOf(meminfo().MemTotalBytes), FileSystem: fileSystem(dir), Revision: "unknown",
		Profiled: profiled(),
	}
	m.FsyncMicros, _ = syncTime(dir, 50)
	if cpus, err := proc.CPUInfo(); err == nil && len(cpus) > 0 && cpus[0].ModelName != "" {
		m.CPU = cpus[0].ModelName
	}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		m.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	if out, err := exec.Command("git", "describe", "--always", "--dirty").Output(); err == nil {
		m.Revision = strings.TrimSpace(string(out))
	}
	idle, total := cpuTimes()
	time.Sleep(time.Second)
	if idle2, total2 := cpuTimes(); total2 > total {
		m.BusyBefore = 1 - (idle2-idle)/(total2-total)
	}
	return m
}

// profiled reports whether this program was compiled by a CPU profile.
func profiled() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.ContainsFunc(info.Settings, func(s debug.BuildSetting) bool { return s.Key == "-pgo" })
}

// warn says what makes the figures of this run less reliable.
func (m *Machine) warn(out io.Writer) {
	if m.BusyBefore > 0.1 {
		fmt.Fprintf(out, "bench: WARNING: other programs use %.0f %% of this machine's CPU\n", 100*m.BusyBefore)
	}
	if !m.Profiled {
		fmt.Fprintln(out, "bench: WARNING: what runs within the bench (decoder, engine, encoders of streams) isn't "+
			"compiled by the profile that the server is compiled by; `make bench` does that")
	}
	if m.FileSystem == "tmpfs" {
		fmt.Fprintln(out,
			"bench: WARNING: the temporary directory is in memory, where fsync costs nothing; choose another with -dir")
	}
}

// diskDir is the first of the usual places that is not in memory; "" (the system's default) when all are.
func diskDir() string {
	for _, dir := range []string{os.TempDir(), "/var/tmp", "."} {
		if fs := fileSystem(dir); fs != "tmpfs" && fs != "unknown" {
			return dir
		}
	}
	return ""
}

func fileSystem(dir string) string {
	var s unix.Statfs_t
	if unix.Statfs(dir, &s) != nil {
		return "unknown"
	}
	switch int64(s.Type) {
	case unix.TMPFS_MAGIC, unix.RAMFS_MAGIC:
		return "tmpfs"
	case unix.EXT4_SUPER_MAGIC:
		return "ext4"
	case unix.XFS_SUPER_MAGIC:
		return "xfs"
	case unix.BTRFS_SUPER_MAGIC:
		return "btrfs"
	case unix.OVERLAYFS_SUPER_MAGIC:
		return "overlay"
	}
	return fmt.Sprintf("%#x", s.Type)
}

// proc is /proc. Values that can't be read there are 0.
var proc, _ = procfs.NewDefaultFS()

func meminfo() procfs.Meminfo {
	m, _ := proc.Meminfo()
	return m
}

func bytesOf(n *uint64) int64 {
	if n == nil {
		return 0
	}
	return int64(*n)
}

// cpuTimes are seconds since the start of the machine, over all cores. Guests are part of user time.
func cpuTimes() (idle, total float64) {
	s, _ := proc.Stat()
	c := s.CPUTotal
	idle = c.Idle + c.Iowait
	return idle, idle + c.User + c.Nice + c.System + c.IRQ + c.SoftIRQ + c.Steal
}

// residentBytes is this process's resident memory, exactly.
func residentBytes() int64 {
	p, _ := proc.Self()
	maps, _ := p.ProcSMapsRollup()
	return int64(maps.Rss)
}

// cpuSeconds is what a process has used so far; 0 when it is gone.
func cpuSeconds(pid int) float64 {
	p, err := proc.Proc(pid)
	if err != nil {
		return 0
	}
	s, _ := p.Stat()
	return s.CPUTime()
}

const cpuTick = 0.01 // steps in which the system counts seconds of CPU

// quiet waits, for 15 seconds at most, until a process has ended what it does behind its answers (checkpoints,
// packing), so that it does not disturb the next measurement.
func quiet(pid int) {
	const interval = 200 * time.Millisecond
	last := cpuSeconds(pid)
	for end := time.Now().Add(15 * time.Second); time.Now().Before(end); {
		time.Sleep(interval)
		now := cpuSeconds(pid)
		if now-last <= 0.05*interval.Seconds()+cpuTick {
			return
		}
		last = now
	}
	note("process %d did not come to rest", pid)
}
