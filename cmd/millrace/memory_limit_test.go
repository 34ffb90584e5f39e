package main

import (
	"log/slog"
	"math"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"millrace/loadtest/testlog"
)

// The least of what limits the memory counts: the machine, the group of the process, and the groups that it is in.
func TestMemoryThere(t *testing.T) {
	const meminfo = "MemTotal:       16384 kB\nMemFree:        100 kB\n"
	for about, test := range map[string]struct {
		files map[string]string
		want  int64
	}{
		"nothing is known":    {nil, math.MaxInt64},
		"a machine":           {map[string]string{"proc/meminfo": meminfo}, 16 << 20},
		"a group of no limit": {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "max\n"}, 16 << 20},
		"a limit above the machine": {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/a\n",
			"sys/fs/cgroup/a/memory.max": "33554432\n"}, 16 << 20},
		"a container":                      {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "8388608\n"}, 8 << 20},
		"a group outside of the namespace": {map[string]string{"proc/self/cgroup": "0::/../../a\n", "sys/fs/cgroup/memory.max": "8388608\n"}, 8 << 20},
		"a service in a slice": {map[string]string{"proc/self/cgroup": "0::/system.slice/a.service\n",
			"sys/fs/cgroup/system.slice/memory.max": "4194304\n", "sys/fs/cgroup/system.slice/a.service/memory.max": "8388608\n"}, 4 << 20},
		"the first version": {map[string]string{"proc/self/cgroup": "5:cpu,cpuacct:/b\n4:hugetlb,memory:/a\n0::/c\n",
			"sys/fs/cgroup/memory/a/memory.limit_in_bytes": "4194304\n", "sys/fs/cgroup/memory/b/memory.limit_in_bytes": "1\n"}, 4 << 20},
		"the first version, in a container": {map[string]string{"proc/self/cgroup": "4:memory:/docker/a\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "4194304\n"}, 4 << 20},
	} {
		system := fstest.MapFS{}
		for name, text := range test.files {
			system[name] = &fstest.MapFile{Data: []byte(text)}
		}
		require.Equal(t, test.want, memoryThere(system), about)
	}
}

func TestMoreMemoryThanThereIs(t *testing.T) {
	var log testlog.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	system := fstest.MapFS{"proc/meminfo": {Data: []byte("MemTotal: 1048576 kB\n")}}
	c := &serveCommand{Memory: 1<<30 - 128<<20 - overhead, StoreCache: 128 << 20}
	c.warnOfMemory(system, logger)
	require.Empty(t, log.String())
	c.Memory++
	c.warnOfMemory(system, logger)
	require.Contains(t, log.String(), "may_use_bytes=1073741825 there_bytes=1073741824")
}
