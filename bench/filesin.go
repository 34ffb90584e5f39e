package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"millrace/cmd/millrace/importer"
	"millrace/loadtest/body"
)

const (
	filesInTarget      = 1.0
	filesInConnections = 64
	bulkConnections    = 16 // the command's default: with requests of 1,000 rows, more of them only take more memory
	maxFilesInRows     = 2_000_000
)

// filesIn compares rows/s of `millrace import files`, from the first look at a file to the report, with objects/s of
// the load test with the same objects, requests and connections. The import also reads the file, checks it and takes
// notes, on the cores that the server needs; the load test has its bodies ready. So the first figure is about both
// programs, and the second about what is the same on both sides: the server's part. The others are about the same
// import through /users/track/bulk, whose requests are larger than those of the load test, and fewer at a time.
func filesIn(ctx context.Context, s *settings) (figures []Figure, err error) {
	for i, l := range cases[:2] {
		note("filesin: %s", l.name)
		f, err := filesInCase(ctx, s, fmt.Sprint("data", i), l.name, l.mix)
		if err != nil {
			return figures, fmt.Errorf("%s: %w", l.name, err)
		}
		figures = append(figures, f...)
	}
	return figures, nil
}

func filesInCase(ctx context.Context, s *settings, dir, name string, mix body.Mix) (f []Figure, err error) {
	server, track, err := s.startWarm(ctx, dir, filesInConnections, s.bodies(mix))
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, server.stop()) }()
	rate, err := track.measure(ctx)
	if err != nil {
		return f, err
	}
	file := &rowsFile{s: s, server: server, dir: filepath.Join(s.dir, dir+"-files"), mix: mix}
	if err := file.write(min(int(rate*s.Duration.Seconds())+mix.Total(), maxFilesInRows)); err != nil {
		return f, err
	}
	plain := &imports{rowsFile: file, connections: filesInConnections}
	bulk := &imports{rowsFile: file, connections: bulkConnections, bulk: true}
	var loadCPU []float64
	track.cpu = nil // drops that of the warm-up
	rates, err := inTurns(ctx, s.Rounds, plain.turn(ctx),
		func(int) (float64, error) {
			own := cpuSeconds(os.Getpid())
			rate, err := track.measure(ctx)
			loadCPU = append(loadCPU, (cpuSeconds(os.Getpid())-own)/(rate*s.Duration.Seconds())*1e6)
			return rate, err
		}, bulk.turn(ctx))
	if err != nil {
		return f, err
	}
	of := fmt.Sprintf("%s, %d connections", name, filesInConnections)
	load := &loadFigures{rates: rates[1], cpu: loadCPU, serverCPU: track.cpu}
	withBulk := fmt.Sprintf("import of files with --bulk (%d connections)", bulkConnections)
	return append(plain.figures("import of files", of, rates[0], load),
		bulk.figures(withBulk, of, rates[2], load)...), nil
}

// loadFigures are what the load test has come to, round by round.
type loadFigures struct{ rates, cpu, serverCPU []float64 }

// figures compares an import with the load test.
func (r *imports) figures(what, of string, rates []float64, load *loadFigures) []Figure {
	whole := newFigure(what+" ÷ /users/track, "+of, "", ratios(rates, load.rates),
		Detail{"import", median(rates), "rows/s"}, Detail{"track", median(load.rates), "objects/s"},
		Detail{"import's CPU", median(r.cpu), "s per million rows"},
		Detail{"loadtest's CPU", median(load.cpu), "s per million objects"},
		Detail{"rows", float64(r.rows), ""}, Detail{"file", float64(r.bytes) / 1e6, "MB"})
	part := newFigure(what+": the server's CPU for a row ÷ for an object of /users/track, "+of, "",
		ratios(r.serverCPU, load.serverCPU),
		Detail{"for the import", median(r.serverCPU), "s per million rows"},
		Detail{"for the load test", median(load.serverCPU), "s per million objects"})
	return []Figure{whole.want(atLeast, filesInTarget), part}
}

// rowsFile is the file that is imported. It has another name in each round, since the import takes no file twice.
type rowsFile struct {
	s      *settings
	server *process
	dir    string
	mix    body.Mix
	rows   int
	bytes  int64
}

// imports is one way in which the file is imported.
type imports struct {
	*rowsFile
	connections    int
	bulk           bool
	cpu, serverCPU []float64 // of a million rows
}

func (r *rowsFile) path() string { return filepath.Join(r.dir, "rows") }

// write writes the objects of the load test's bodies into the file, one a row.
func (r *rowsFile) write(rows int) error {
	if err := os.MkdirAll(r.dir, 0o700); err != nil {
		return err
	}
	generator, err := body.New(r.s.bodies(r.mix))
	if err != nil {
		return err
	}
	f, err := os.Create(r.path())
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(f, 1<<20)
	for r.rows < rows && err == nil {
		err = r.writeBody(w, generator.Next().Bytes)
	}
	if err = errors.Join(err, w.Flush(), f.Sync(), f.Close()); err != nil {
		return err
	}
	info, err := os.Stat(r.path())
	if err == nil {
		r.bytes = info.Size()
	}
	return err
}

func (r *rowsFile) writeBody(w *bufio.Writer, text []byte) error {
	var arrays map[string][]json.RawMessage
	if err := json.Unmarshal(text, &arrays); err != nil {
		return err
	}
	for _, kind := range []string{"attributes", "events", "purchases"} {
		for _, object := range arrays[kind] {
			fmt.Fprintf(w, `{"kind":%q,"payload":%s}`+"\n", kind, object)
			r.rows++
		}
	}
	return nil
}

// turn is measure as a side of inTurns.
func (r *imports) turn(ctx context.Context) func(int) (float64, error) {
	return func(round int) (float64, error) { return r.measure(ctx, round) }
}

// measure imports the file and returns rows/s.
func (r *imports) measure(ctx context.Context, round int) (float64, error) {
	path := filepath.Join(r.dir, fmt.Sprint("rows", round, r.bulk, ".ndjson"))
	if err := os.Link(r.path(), path); err != nil {
		return 0, err
	}
	own, server := cpuSeconds(os.Getpid()), cpuSeconds(r.server.pid())
	report, err := importer.Run(ctx,
		importer.Options{URL: []string{"http://" + r.server.address}, Key: apiKey, Paths: []string{path},
			State: filepath.Join(r.dir, "state"), Connections: r.connections, Bulk: r.bulk,
			Timeout: time.Minute})
	if err != nil {
		return 0, err
	}
	if report.Taken != int64(r.rows) || report.Replayed != 0 {
		return 0, fmt.Errorf("some rows were not imported: %+v", report)
	}
	r.cpu = append(r.cpu, (cpuSeconds(os.Getpid())-own)/float64(r.rows)*1e6)
	quiet(r.server.pid())
	r.serverCPU = append(r.serverCPU, (cpuSeconds(r.server.pid())-server)/float64(r.rows)*1e6)
	return float64(report.Rows) / report.Duration.Seconds(), nil
}
