package main

import (
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
)

// warnOfMemory warns when the process may use more memory than there is. It is killed then once enough users are
// active, and when all profiles are loaded at a start, at each start.
func (c *serveCommand) warnOfMemory(system fs.FS, logger *slog.Logger) {
	most := int64(c.Memory) + int64(c.StoreCache) + overhead
	if there := memoryThere(system); most > there {
		logger.Warn("this server may use more memory than its machine or container has: lower --memory",
			"may_use_bytes", most, "there_bytes", there)
	}
}

// memoryThere returns the memory of the machine or, if that is less, of the control groups that this process is in: the
// limits of a container or of a service. What can't be found out is no limit.
func memoryThere(system fs.FS) int64 {
	least := int64(math.MaxInt64)
	machine, _ := fs.ReadFile(system, "proc/meminfo")
	var kib int64
	if _, err := fmt.Sscanf(string(machine), "MemTotal: %d kB", &kib); err == nil {
		least = kib << 10
	}
	groups, _ := fs.ReadFile(system, "proc/self/cgroup")
	for line := range strings.Lines(string(groups)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3) // number, controllers, group
		switch {
		case len(parts) < 3:
		case parts[1] == "":
			least = min(least, limitOf(system, "sys/fs/cgroup", parts[2], "memory.max"))
		case slices.Contains(strings.Split(parts[1], ","), "memory"): // the first version of control groups
			least = min(least, limitOf(system, "sys/fs/cgroup/memory", parts[2], "memory.limit_in_bytes"))
		}
	}
	return least
}

// limitOf returns the least limit of a group and all that it is in. A container may see its own group as the root of
// all, under another name than the one that it is told.
func limitOf(system fs.FS, root, group, file string) int64 {
	least := int64(math.MaxInt64)
	for dir := path.Join(root, path.Join("/", group)); ; dir = path.Dir(dir) {
		text, _ := fs.ReadFile(system, path.Join(dir, file))
		if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil { // otherwise it is "max"
			least = min(least, n)
		}
		if dir == root {
			return least
		}
	}
}
