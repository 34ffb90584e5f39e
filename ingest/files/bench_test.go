package files

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// cpuTime is the CPU time of the process. Other work on the machine affects it less than the clock.
func cpuTime(b *testing.B) time.Duration {
	var u unix.Rusage
	require.NoError(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkRows goes over a file as the importer does, to check the file and to make objects of it. An operation is a
// row.
func BenchmarkRows(b *testing.B) {
	const rows = 10_000
	var lines, cells strings.Builder
	cells.WriteString("external_id,kind,payload\n")
	for n := range rows {
		kind := Kinds[n%3]
		payload := fmt.Sprintf(`{"external_id":"user-%08d","name":"signed up","time":"2026-01-02T03:04:05Z","loyalty":%d,`+
			`"city":"Göteborg","vip":true,"properties":{"plan":"gold","n":%d,"tags":["a","b"],"source":"a campaign of a length"}}`,
			n*7919%100_000, n, n)
		fmt.Fprintf(&lines, `{"kind":%q,"payload":%s}`+"\n", kind, payload)
		fmt.Fprintf(&cells, ",%s,\"%s\"\n", kind, strings.ReplaceAll(payload, `"`, `""`))
	}
	for format, text := range map[Format]string{NDJSON: lines.String(), CSV: cells.String()} {
		run := func(b *testing.B, strict bool, each func(*Row)) {
			b.SetBytes(int64(len(text) / rows))
			b.ReportAllocs()
			before := cpuTime(b)
			defer func() { b.ReportMetric(float64(cpuTime(b)-before)/float64(b.N), "cpu-ns/op") }()
			for done := 0; done < b.N; {
				r, err := NewReader(strings.NewReader(text), int64(len(text)), format, Position{}, Options{Strict: strict})
				require.NoError(b, err)
				row := new(Row)
				for err = r.Next(row); err == nil && done < b.N; err = r.Next(row) {
					each(row)
					done++
				}
				if done < b.N {
					require.Equal(b, io.EOF, err)
				}
			}
		}
		b.Run(string(format)+"/check", func(b *testing.B) { run(b, true, func(*Row) {}) })
		b.Run(string(format)+"/objects", func(b *testing.B) {
			var o Object
			run(b, false, func(r *Row) {
				o = Object{Text: o.Text[:0]}
				if fault := r.AppendObject(&o, &ObjectOptions{Kind: Attributes}); fault != "" {
					b.Fatal(fault)
				}
			})
		})
	}
	b.Run(string(NDJSON)+"/notes", func(b *testing.B) {
		b.SetBytes(int64(lines.Len() / rows))
		b.ReportAllocs()
		before := cpuTime(b)
		defer func() { b.ReportMetric(float64(cpuTime(b)-before)/float64(b.N), "cpu-ns/op") }()
		n, text := new(noter), []byte(lines.String())
		for done := 0; done < b.N; done += rows {
			p := &piece{text: text, noting: true, lineBytes: 200}
			if p.check(n, Options{Kind: Attributes, MaxRowBytes: 1 << 20, Strict: true}); len(p.notes) != rows {
				b.Fatal(len(p.notes))
			}
		}
	})
}
