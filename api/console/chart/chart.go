// Package chart draws charts on the server, as SVG: they need no code in the browser, and take their colours from the
// style sheet.
package chart

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Size of the drawing, in its own units; the page stretches it.
const (
	width  = 720.0
	height = 160.0
)

// Chart is one chart as the template shows it.
type Chart struct {
	Title, Unit string
	Span        string // the time that it shows, in words: hour, 7 days
	IsLong      bool   // the time is days
	Lines       []Line
	Ticks       []tick // of the scale, from the top
	From, To    int64  // Unix ms
	IsEmpty     bool   // nothing has happened
}

// Line is one line of a chart, or one kind of bars: its class gives the colour.
type Line struct {
	Name, Class string
	Shown       float64 // beside the name: the last value, or the sum of bars
	Path, Area  string
	Bars        string
	Values      []float64
}

type tick struct{ Value, Y float64 }

// OfHour draws values that were taken at times of the last hour.
func OfHour(title, unit string, now int64, times []int64, lines ...Line) Chart {
	c := Chart{Title: title, Unit: unit, Span: "hour", From: now - time.Hour.Milliseconds(), To: now}
	top := 0.0
	for _, l := range lines {
		for _, v := range l.Values {
			top = max(top, v)
		}
	}
	top = c.scale(top)
	for _, l := range lines {
		l.draw(c.From, c.To, times, top)
		c.Lines = append(c.Lines, l)
	}
	return c
}

// Bars draws counts of periods of the same length, the last of which ends at the time to; the bars of one period are
// stacked.
func Bars(title, unit, span string, to int64, period time.Duration, lines ...Line) Chart {
	n := len(lines[0].Values)
	c := Chart{Title: title, Unit: unit, Span: span, IsLong: true,
		From: to - int64(n)*period.Milliseconds(), To: to - 1}
	sums := make([]float64, n)
	for _, l := range lines {
		for i, v := range l.Values {
			sums[i] += v
		}
	}
	top := c.scale(slices.Max(sums))
	clear(sums)
	for _, l := range lines {
		l.drawBars(sums, top)
		c.Lines = append(c.Lines, l)
	}
	return c
}

// scale makes the ticks for values up to most, and returns the end of the scale.
func (c *Chart) scale(most float64) (top float64) {
	c.IsEmpty, top = most == 0, niceTop(most)
	for i := range 3 {
		share := 1 - float64(i)/2
		c.Ticks = append(c.Ticks, tick{top * share, round(height * (1 - share))})
	}
	return top
}

// drawBars stacks the line's bars on those that are there already.
func (l *Line) drawBars(below []float64, top float64) {
	period := width / float64(len(l.Values))
	y := func(v float64) string { return coordinate(height * (1 - v/top)) }
	var b strings.Builder
	for i, v := range l.Values {
		if v > 0 {
			left, right := coordinate(period*(float64(i)+0.1)), coordinate(period*(float64(i)+0.9))
			b.WriteString("M" + left + " " + y(below[i]) + "V" + y(below[i]+v) + "H" + right + "V" + y(below[i]) + "Z")
		}
		below[i] += v
		l.Shown += v
	}
	l.Bars = b.String()
}

// draw makes the paths of a line, and of the area below it.
func (l *Line) draw(from, to int64, times []int64, top float64) {
	var b strings.Builder
	first, last := 0.0, 0.0
	for i, v := range l.Values {
		x := width * float64(times[i]-from) / float64(to-from)
		if x < 0 {
			continue
		}
		command := " L"
		if b.Len() == 0 {
			command, first = "M", x
		}
		last, l.Shown = x, v
		b.WriteString(command + coordinate(x) + " " + coordinate(height*(1-v/top)))
	}
	if l.Path = b.String(); l.Path != "" {
		l.Area = l.Path + " L" + coordinate(last) + " " + coordinate(height) + " L" + coordinate(first) + " " +
			coordinate(height) + " Z"
	}
}

func round(v float64) float64 { return math.Round(v*10) / 10 }

func coordinate(v float64) string { return strconv.FormatFloat(round(v), 'f', -1, 64) }

// niceTop is the end of a scale that holds v: 1, 2, 4 or 6, followed by zeros. So half of it, the tick in between, is a
// whole number from 2 on, as counts are.
func niceTop(v float64) float64 {
	if v <= 0 {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, m := range []float64{1, 2, 4, 6, 10} {
		if m*power >= v {
			return m * power
		}
	}
	return 10 * power
}
