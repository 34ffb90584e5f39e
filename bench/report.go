package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// resultsFormat is the version of the JSON form of Results. A change that readers would notice raises it.
const resultsFormat = 1

// Results are the figures of one run, with where and how it was made, so that it can be repeated. README.md describes
// the JSON form.
type Results struct {
	Format   int       `json:"format"`
	Started  time.Time `json:"started"`
	Machine  Machine   `json:"machine"`
	Settings settings  `json:"settings"`
	Figures  []Figure  `json:"figures"`
}

// Figure is one thing that was measured.
type Figure struct {
	Part    string    `json:"part"`
	Name    string    `json:"name"`
	Unit    string    `json:"unit,omitempty"` // empty for a ratio
	Value   float64   `json:"value"`          // the median of the rounds
	Rounds  []float64 `json:"rounds,omitempty"`
	Target  *Target   `json:"target,omitempty"`
	Reached *bool     `json:"reached,omitempty"` // nil without a target
	Details []Detail  `json:"details,omitempty"`
}

// Target is the bound that a figure should keep.
type Target struct {
	Bound string  `json:"bound"` // atLeast or atMost
	Value float64 `json:"value"`
}

// The values of Target.Bound.
const (
	atLeast = "at least"
	atMost  = "at most"
)

// Detail is a value from which a figure comes. It is absolute, so it holds for this machine only.
type Detail struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit,omitempty"`
}

// newFigure has the median of rounds as its value.
func newFigure(name, unit string, rounds []float64, details ...Detail) Figure {
	return Figure{Name: name, Unit: unit, Value: median(rounds), Rounds: rounds, Details: details}
}

// want sets the target and notes whether the value keeps it. 0 is no target.
func (f Figure) want(bound string, value float64) Figure {
	if value == 0 {
		return f
	}
	reached := f.Value >= value
	if bound == atMost {
		reached = f.Value <= value
	}
	f.Target, f.Reached = &Target{bound, value}, &reached
	return f
}

// WriteText writes the table: a line for each figure, and below it the figure's details.
func (r *Results) WriteText(out io.Writer) error {
	m := &r.Machine
	_, err := fmt.Fprintf(out,
		"%s, %d cores, %.0f GiB, Linux %s, %s, %s on %s (fsync %.0f µs), revision %s\n%v for each side in a round, "+
			"%d rounds; values are medians. Before the run other programs used %.0f %% of the CPU\n\n",
		m.CPU, m.Cores, float64(m.MemoryBytes)/(1<<30), m.Kernel, m.Go, m.Arch, m.FileSystem, m.FsyncMicros, m.Revision,
		r.Settings.Duration, r.Settings.Rounds, 100*m.BusyBefore)
	t := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "PART\tFIGURE\tVALUE\tSPREAD\tTARGET\tREACHED")
	for _, f := range r.Figures {
		target, reached := "–", "–"
		if f.Target != nil {
			target = map[string]string{atLeast: "≥ ", atMost: "≤ "}[f.Target.Bound] +
				number(f.Target.Value) + unit(f.Unit)
			reached = map[bool]string{true: "yes", false: "NO"}[*f.Reached]
		}
		fmt.Fprintf(t, "%s\t%s\t%s%s\t%.0f %%\t%s\t%s\n", f.Part, f.Name, number(f.Value), unit(f.Unit),
			100*spread(f.Rounds), target, reached)
	}
	err = errors.Join(err, t.Flush())
	for _, f := range r.Figures {
		if len(f.Details) == 0 {
			continue
		}
		var d []string
		for _, x := range f.Details {
			d = append(d, x.Name+" "+number(x.Value)+unit(x.Unit))
		}
		_, e := fmt.Fprintf(out, "\n%s, %s: %s", f.Part, f.Name, strings.Join(d, "; "))
		err = errors.Join(err, e)
	}
	if len(r.Figures) > 0 {
		_, e := fmt.Fprintln(out)
		err = errors.Join(err, e)
	}
	return err
}

// number formats a value with three significant digits where it can, and without an exponent, which tables cannot bear.
func number(v float64) string {
	a := math.Abs(v)
	switch {
	case a == 0 || math.IsNaN(v):
		return strconv.FormatFloat(v, 'g', -1, 64)
	case a >= 1e6:
		return strconv.FormatFloat(v/1e6, 'f', 2, 64) + " M"
	case a >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	decimals := 2 - int(math.Floor(math.Log10(a)))
	s := strconv.FormatFloat(v, 'f', min(decimals, 4), 64)
	if strings.Contains(s, ".") {
		s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
	}
	return s
}

func unit(u string) string {
	if u == "" {
		return ""
	}
	return " " + u
}

// write writes the results as JSON to a file; with an empty path it does nothing.
func (r *Results) write(path string) error {
	if path == "" {
		return nil
	}
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("results: %w", err)
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}
