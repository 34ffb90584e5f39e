package stream

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/api/control"
	"millrace/api/control/document"
	"millrace/shard/op"
)

// BenchmarkStream reads packed events out of the event log and writes the files of a stream, on one core with -cpu 1.
// The events have an external id, an app, and four properties, as in bench; columns is Parquet with a column for each,
// young is Parquet of events that aren't packed yet, and of "x none" the files are not compressed.
// ns/event is all of it, cpu-ns/event what it has taken of processors, by which a busy machine is judged; B/event is what
// lies on the disk.
func BenchmarkStream(b *testing.B) {
	const requests, events = 4000, 75
	for _, format := range []string{"ndjson", "ndjson gzip", "ndjson none", "parquet", "avro", "avro snappy", "avro zstd", "avro none", "columns", "young"} {
		b.Run(format, func(b *testing.B) {
			of := document.Stream{}
			of.Format, of.Compression, _ = strings.Cut(format, " ")
			switch format {
			case "young":
				of.Format = "parquet"
			case "columns":
				of.Format = "parquet"
				of.Columns = []string{"plan:string", "count:number", "amount:number", "mobile:boolean"}
			}
			w := newWorld(b, 32<<20)
			w.commitRealistic(requests, events)
			if format != "young" {
				w.pack()
			}
			o := w.options()
			o.FileBytes, o.disk = 256<<20, machine{}
			written, cpu := int64(0), time.Duration(0)
			b.ResetTimer()
			for i := range b.N {
				b.StopTimer()
				of.ID = fmt.Sprintf("s%d", i)
				s := w.create(of)
				b.StartTimer()
				before := cpuTime(b)
				require.NoError(b, w.turns(o, s))
				cpu += cpuTime(b) - before
				b.StopTimer()
				m := &Manager{o: o}
				status := m.Status("shop", s)
				require.EqualValues(b, requests*events, status.Events)
				written += status.Bytes
				require.NoError(b, w.c.Streams.Remove(control.Actor{}, "shop", s.ID, nil))
				b.StartTimer()
			}
			n := float64(b.N) * requests * events
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/n, "ns/event")
			b.ReportMetric(float64(cpu.Nanoseconds())/n, "cpu-ns/event")
			b.ReportMetric(float64(written)/n, "B/event")
		})
	}
}

// cpuTime is what the process has taken of all cores.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func (w *world) commitRealistic(requests, events int) {
	for r := range requests {
		b := w.e.NewBatch(w.ws.Number, 0)
		for range events {
			w.sent++
			start, user := b.Begin(), fmt.Sprintf("user-%08d", w.sent*7919%100_000)
			b.Buf = op.AppendEventBody(b.Buf)
			op.PutEvent(b.Buf[start+op.OpHeaderBytes:], 1_790_000_000_000+int64(r), b.Intern(fmt.Append(nil, "event_", w.sent%20)), b.Intern([]byte("11ae5b4b-2445-4440-a04f-bf537764c9ad"))+1)
			b.Buf = append(b.Buf, byte(b.Intern([]byte("plan"))))
			b.Buf = op.AppendString(b.Buf, fmt.Append(nil, "plan ", w.sent%5))
			b.Buf = append(b.Buf, byte(b.Intern([]byte("count"))))
			b.Buf = op.AppendInt(b.Buf, int64(w.sent%1000))
			b.Buf = append(b.Buf, byte(b.Intern([]byte("amount"))))
			b.Buf = op.AppendFloat(b.Buf, float64(w.sent%10_000)/100)
			b.Buf = append(b.Buf, byte(b.Intern([]byte("mobile"))))
			b.Buf = op.AppendBool(b.Buf, w.sent%2 == 0)
			b.Buf = append(b.Buf, user...)
			require.True(w.t, b.End(start, op.Event, 0, op.ExternalID, len(user)))
		}
		require.NoError(w.t, b.Commit())
		b.Release()
	}
}
