package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/loadtest/body"
	"millrace/loadtest/testseed"
	"millrace/loadtest/testsize"
)

// TestMain lets the test binary be the child processes as well, since they run the same binary.
func TestMain(m *testing.M) {
	if isChild(os.Args) {
		main()
		return
	}
	os.Exit(m.Run())
}

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   float64
	}{{[]float64{3}, 3}, {[]float64{9, 1, 2}, 2}, {[]float64{4, 1, 3, 100}, 3.5}} {
		before := append([]float64{}, c.values...)
		require.Equal(t, c.want, median(c.values))
		require.Equal(t, before, c.values, "the rounds keep their order")
	}
	require.True(t, math.IsNaN(median(nil)))
}

func TestSpread(t *testing.T) {
	require.Equal(t, 0.5, spread([]float64{4, 3, 5}))
	require.Equal(t, 0.0, spread([]float64{4}))
	require.Equal(t, 0.0, spread([]float64{0, 0, 1}))
}

// A ratio is taken within each round, so a machine that slows down between rounds does not change it.
func TestRatiosAreTakenRoundByRound(t *testing.T) {
	a, b := []float64{50, 5, 10}, []float64{100, 10, 20}
	require.Equal(t, []float64{0.5, 0.5, 0.5}, ratios(a, b))
	require.Equal(t, 0.5, newFigure("", "", ratios(a, b)).Value)
}

func TestTargets(t *testing.T) {
	reached := func(value float64, bound string, target float64) bool {
		return *newFigure("", "", []float64{value}).want(bound, target).Reached
	}
	require.True(t, reached(0.25, atLeast, 0.25))
	require.False(t, reached(0.249, atLeast, 0.25))
	require.True(t, reached(300, atMost, 300))
	require.False(t, reached(301, atMost, 300))
	require.False(t, reached(math.NaN(), atLeast, 1), "what was not measured is not reached")
	require.False(t, reached(math.NaN(), atMost, 1))
}

func TestInTurns(t *testing.T) {
	var order string
	side := func(name string, value float64) func(int) (float64, error) {
		return func(round int) (float64, error) {
			order += name
			return value + float64(round), nil
		}
	}
	got, err := inTurns(context.Background(), 3, side("a", 10), side("b", 20))
	require.NoError(t, err)
	require.Equal(t, [][]float64{{10, 11, 12}, {20, 21, 22}}, got)
	require.Equal(t, "abbaab", order)

	broken := errors.New("broken")
	_, err = inTurns(context.Background(), 3, side("a", 10), func(int) (float64, error) { return 0, broken })
	require.ErrorIs(t, err, broken)
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = inTurns(cancelled, 3, side("a", 10))
	require.ErrorIs(t, err, context.Canceled)
}

func TestNumber(t *testing.T) {
	for want, v := range map[string]float64{"0": 0, "0.25": 0.25, "0.0719": 0.0719, "1.23": 1.234, "12.3": 12.34, "123": 123.4, "98765": 98765, "1.23 M": 1234567, "10": 10} {
		require.Equal(t, want, number(v))
	}
}

func TestSettingsAreChecked(t *testing.T) {
	for _, args := range [][]string{{"-part", "nothing"}, {"-rounds", "0"}, {"-duration", "1ms"}, {"-profiles", "-1"}, {"-cold-profiles", "1"}, {"-replay-bytes", "5"}} {
		require.Error(t, run(t.Context(), append(args, "-dir", t.TempDir()), new(bytes.Buffer)), "%v", args)
	}
}

func TestNoopAnswersWhatTheClientExpects(t *testing.T) {
	s := &settings{Rounds: 1, Duration: 50 * time.Millisecond, dir: t.TempDir()}
	for _, mix := range []body.Mix{mix225, mixEvent} {
		p, err := startNoop(t.Context(), s, mix)
		require.NoError(t, err)
		right := &httpSide{s: s, processes: []*process{p}, connections: 2, bodies: s.bodies(mix)}
		rate, err := right.measure(t.Context())
		require.NoError(t, err)
		require.Positive(t, rate)
		wrong := &httpSide{s: s, processes: []*process{p}, connections: 2, bodies: s.bodies(mixEvents)}
		_, err = wrong.measure(t.Context())
		require.ErrorContains(t, err, "some answers were wrong")
		require.NoError(t, p.stop())
	}
}

func TestProcessThatDoesNotServe(t *testing.T) {
	_, err := start(t.Context(), &settings{}, "/bin/sh", "-c", "echo no such data >&2; exit 3")
	require.ErrorContains(t, err, "no such data")
}

// Parts run to their end with the real server: some, chosen at random, and in the stress run all of them. They run too
// briefly for any figure to mean anything.
func TestSmoke(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and starts servers")
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "results.json")
	var table bytes.Buffer
	parts := partNames()
	if !testsize.Stress() {
		parts = slices.DeleteFunc(parts, func(p string) bool { return p == "cluster" }) // nodes that join, are killed and catch up: two minutes
		testseed.Rand(t).Shuffle(len(parts), func(i, j int) { parts[i], parts[j] = parts[j], parts[i] })
		parts = parts[:3]
	}
	server, err := build(t.Context(), dir)
	require.NoError(t, err)
	profile := filepath.Join(dir, "profile")
	require.NoError(t, run(t.Context(), []string{"-profile", profile, "-duration", "300ms", "-server", server, "-dir", dir}, &table))
	text, err := os.ReadFile(profile)
	require.NoError(t, err)
	require.Equal(t, "\x1f\x8b", string(text[:2]), "a profile is gzip")
	require.Empty(t, table.String())

	require.NoError(t, run(t.Context(), []string{"-server", server, "-part", strings.Join(parts, ","), "-duration", "50ms", "-rounds", "1", "-profiles", "20000", "-cold-profiles", "2000", "-replay-bytes", "2000000",
		"-json", path, "-dir", dir}, &table))
	left, err := filepath.Glob(filepath.Join(dir, "millrace-bench-*"))
	require.NoError(t, err)
	require.Empty(t, left, "nothing stays behind")

	text, err = os.ReadFile(path)
	require.NoError(t, err)
	var r Results
	require.NoError(t, json.Unmarshal(text, &r))
	require.Equal(t, resultsFormat, r.Format)
	require.NotContains(t, string(text), dir, "results name no path of the machine")
	targets := map[string]int{}
	for _, f := range r.Figures {
		require.Contains(t, table.String(), f.Name)
		require.False(t, math.IsNaN(f.Value) || math.IsInf(f.Value, 0), "%v", f)
		require.True(t, f.Value > 0 || slices.Contains([]string{"allocs", "memory", "lone"}, f.Part), "%v", f)
		if f.Target != nil {
			targets[f.Part]++
		}
	}
	want := map[string]int{"endtoend": 4, "sustained": 2, "lone": 1, "filesin": 4, "shared": 3, "decoder": 2, "logbytes": 1, "allocs": 4, "memory": 2, "hot": 1, "cold": 4, "merge": 1, "streams": 8, "status": 2, "console": 3, "cluster": 6, "replay": 1}
	maps.DeleteFunc(want, func(part string, _ int) bool { return !slices.Contains(parts, part) })
	require.Equal(t, want, targets)
}
