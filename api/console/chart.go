package console

import (
	"math"
	"strconv"
	"strings"
	"time"
)

// A chart is drawn on the server, as SVG: it needs no code in the browser, and takes its colours from the style.

// Size of the drawing, in its own units; the page stretches it.
const (
	chartWidth  = 720.0
	chartHeight = 160.0
)

// chart is one as the template shows it.
type chart struct {
	Title, Unit string
	Lines       []line
	Ticks       []tick // of the scale, from the top
	From, To    int64  // Unix ms
	IsEmpty     bool   // nothing has happened
}

// line is one of the lines: its class gives the colour.
type line struct {
	Name, Class string
	Last        float64
	Path, Area  string
	values      []float64
}

type tick struct {
	Label string
	Y     float64
}

// newChart draws values that were taken at times.
func newChart(title, unit string, now int64, times []int64, lines ...line) chart {
	c := chart{Title: title, Unit: unit, From: now - time.Hour.Milliseconds(), To: now, IsEmpty: true}
	top := 0.0
	for _, l := range lines {
		for _, v := range l.values {
			top = max(top, v)
			c.IsEmpty = c.IsEmpty && v == 0
		}
	}
	top = niceTop(top)
	for i := range 3 {
		share := 1 - float64(i)/2
		c.Ticks = append(c.Ticks, tick{number(top * share), round(chartHeight * (1 - share))})
	}
	for _, l := range lines {
		l.draw(c.From, c.To, times, top)
		c.Lines = append(c.Lines, l)
	}
	return c
}

// draw makes the paths of a line, and of the area below it.
func (l *line) draw(from, to int64, times []int64, top float64) {
	var b strings.Builder
	first, last := 0.0, 0.0
	for i, v := range l.values {
		x := chartWidth * float64(times[i]-from) / float64(to-from)
		if x < 0 {
			continue
		}
		command := " L"
		if b.Len() == 0 {
			command, first = "M", x
		}
		last, l.Last = x, v
		b.WriteString(command + coordinate(x) + " " + coordinate(chartHeight*(1-v/top)))
	}
	if l.Path = b.String(); l.Path != "" {
		l.Area = l.Path + " L" + coordinate(last) + " " + coordinate(chartHeight) + " L" + coordinate(first) + " " + coordinate(chartHeight) + " Z"
	}
}

func round(v float64) float64 { return math.Round(v*10) / 10 }

func coordinate(v float64) string { return strconv.FormatFloat(round(v), 'f', -1, 64) }

// niceTop is the end of a scale that holds v: 1, 2 or 5 and zeros.
func niceTop(v float64) float64 {
	if v <= 0 {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, m := range []float64{1, 2, 5, 10} {
		if m*power >= v {
			return m * power
		}
	}
	return 10 * power
}
