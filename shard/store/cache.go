package store

import (
	"math"
	"runtime"
	"slices"
	"sync"
	"syscall"

	"github.com/VictoriaMetrics/metrics"
	"github.com/cockroachdb/pebble/v2"
)

// Cache is what the stores of several engines share: the cache of blocks, and the open files. Close it after the
// engines.
type Cache struct {
	blocks *pebble.Cache
	files  *pebble.FileCache
}

// NewCache makes a cache of so many bytes of blocks, and of so many open files, or of a quarter of those that the
// process may open, for stores whose memtables take maxMemTables times so many bytes together. Pebble takes the
// memtables that there are out of the size of the cache; they have memory of their own here, so what they may take is
// added.
func NewCache(bytes, memTable int64, files int) *Cache {
	c := &Cache{pebble.NewCache(bytes + maxMemTables*memTable),
		pebble.NewFileCache(min(runtime.GOMAXPROCS(0), maxFileShards), max(min(files, ProcessFiles()/4), minOpenFiles))}
	caches.add(c)
	return c
}

// maxMemTables is how many memtables there are at most; beyond that writers wait.
const maxMemTables = 4

// maxFileShards is bounded because each shard of a file cache has a goroutine.
const (
	maxFileShards = 8
	minOpenFiles  = 64
	maxOpenFiles  = 1 << 12 // of a store with a cache of its own
)

// ProcessFiles is how many files the process may open.
func ProcessFiles() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return math.MaxInt
	}
	return int(min(limit.Cur, math.MaxInt))
}

// Close frees the cache once no engine uses it. It does nothing without a cache.
func (c *Cache) Close() {
	if c != nil {
		caches.remove(c)
		c.files.Unref()
		c.blocks.Unref()
	}
}

// caches are all caches that are open, for the metrics of the process.
var caches cacheList

type cacheList struct {
	mu     sync.Mutex
	open   []*Cache
	closed pebble.CacheMetrics // hits and misses of caches that were closed
}

func (l *cacheList) add(c *Cache) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open = append(l.open, c)
}

func (l *cacheList) remove(c *Cache) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := c.blocks.Metrics()
	l.closed.Hits, l.closed.Misses = l.closed.Hits+m.Hits, l.closed.Misses+m.Misses
	l.open = slices.DeleteFunc(l.open, func(x *Cache) bool { return x == c })
}

// sum is the bytes of blocks in all caches, and how often a block was looked for and was or was not there.
func (l *cacheList) sum() pebble.CacheMetrics {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.closed
	for _, c := range l.open {
		m := c.blocks.Metrics()
		s.Size, s.Hits, s.Misses = s.Size+m.Size, s.Hits+m.Hits, s.Misses+m.Misses
	}
	return s
}

var (
	_ = metrics.NewGauge("millrace_store_cache_bytes", func() float64 { return float64(caches.sum().Size) })
	_ = metrics.NewGauge("millrace_store_cache_hits_total", func() float64 { return float64(caches.sum().Hits) })
	_ = metrics.NewGauge("millrace_store_cache_misses_total", func() float64 { return float64(caches.sum().Misses) })
)
