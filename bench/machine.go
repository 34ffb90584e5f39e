package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Machine is where a run took place, as far as it bears on figures. It names neither the machine nor its user.
type Machine struct {
	CPU         string  `json:"cpu"`
	Cores       int     `json:"cores"`
	MemoryBytes int64   `json:"memory_bytes"`
	Kernel      string  `json:"kernel"`
	Arch        string  `json:"arch"`
	Go          string  `json:"go"`
	FileSystem  string  `json:"file_system"`  // of the data directories
	FsyncMicros float64 `json:"fsync_micros"` // of 4 KiB appended to a file there, median
	BusyBefore  float64 `json:"busy_before"`  // part of the machine's CPU that others used in the second before
	Revision    string  `json:"revision"`     // of the checkout
}

func inspect(dir string) Machine {
	m := Machine{
		CPU: "unknown CPU", Cores: runtime.NumCPU(), Arch: runtime.GOARCH, Go: runtime.Version(), MemoryBytes: memInfo("MemTotal"),
		FileSystem: fileSystem(dir), FsyncMicros: fsyncMicros(dir), Revision: "unknown",
	}
	for line := range strings.Lines(readText("/proc/cpuinfo")) {
		if name, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			m.CPU = strings.TrimSpace(v)
			break
		}
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

// warn says what makes the figures of this run worth less.
func (m *Machine) warn(out io.Writer) {
	if m.BusyBefore > 0.1 {
		fmt.Fprintf(out, "bench: WARNING: something else uses %.0f %% of this machine\n", 100*m.BusyBefore)
	}
	if m.FileSystem == "tmpfs" {
		fmt.Fprintln(out, "bench: WARNING: the data directory is in memory, where fsync costs nothing; choose another with -dir")
	}
}

// diskDir is the first of the usual places that is not in memory; "" (the system's) when all are.
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

// fsyncMicros is what the disk asks for one small durable write, which bounds every rate of few connections.
func fsyncMicros(dir string) float64 {
	f, err := os.Create(filepath.Join(dir, "fsync"))
	if err != nil {
		return 0
	}
	defer os.Remove(f.Name())
	defer f.Close()
	block := make([]byte, 4096)
	var micros []float64
	for range 50 {
		start := time.Now()
		if _, err := f.Write(block); err != nil || unix.Fdatasync(int(f.Fd())) != nil {
			return 0
		}
		micros = append(micros, float64(time.Since(start).Nanoseconds())/1e3)
	}
	return median(micros)
}

// memInfo is a line of /proc/meminfo, in bytes; 0 when it is not there.
func memInfo(name string) int64 {
	for line := range strings.Lines(readText("/proc/meminfo")) {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			n, _ := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			return n << 10
		}
	}
	return 0
}

// cpuTimes are ticks since the start of the machine, over all cores.
func cpuTimes() (idle, total float64) {
	first, _, _ := strings.Cut(readText("/proc/stat"), "\n")
	for i, field := range strings.Fields(first) {
		v, err := strconv.ParseFloat(field, 64)
		if err != nil {
			continue
		}
		if i == 4 || i == 5 { // idle, waiting for the disk
			idle += v
		}
		if i <= 8 { // the rest is part of user time already
			total += v
		}
	}
	return idle, total
}

// residentBytes is this process's resident memory, exactly.
func residentBytes() int64 {
	for line := range strings.Lines(readText("/proc/self/smaps_rollup")) {
		if rest, ok := strings.CutPrefix(line, "Rss:"); ok {
			n, _ := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			return n << 10
		}
	}
	return 0
}

const ticksPerSecond = 100 // USER_HZ, the same on every Linux

// cpuSeconds is what a process has used so far; 0 when it is gone.
func cpuSeconds(pid int) float64 {
	text := readText("/proc/" + strconv.Itoa(pid) + "/stat")
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:]) // the name before may hold spaces
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.ParseFloat(fields[11], 64)
	system, _ := strconv.ParseFloat(fields[12], 64)
	return (user + system) / ticksPerSecond
}

// quiet waits until a process has put away what it does behind its answers (checkpoints, packing), so that it does not disturb whoever
// is measured next; not longer than 15 seconds.
func quiet(pid int) {
	const interval = 200 * time.Millisecond
	last := cpuSeconds(pid)
	for end := time.Now().Add(15 * time.Second); time.Now().Before(end); {
		time.Sleep(interval)
		now := cpuSeconds(pid)
		if now-last <= 0.05*interval.Seconds()+1.0/ticksPerSecond {
			return
		}
		last = now
	}
	note("process %d does not come to rest", pid)
}

func readText(path string) string {
	text, _ := os.ReadFile(path)
	return string(text)
}
