package main

import (
	"context"
	"errors"
	"math"
	"slices"
)

// inTurns runs all sides once a round, so that whatever else goes on in the machine affects all of them alike. Each
// round begins with another side, so that none always has the better place. sides[i](round) measures side i; its figure
// is rounds[i][round].
func inTurns(ctx context.Context, rounds int, sides ...func(round int) (float64, error)) ([][]float64, error) {
	figures := make([][]float64, len(sides))
	for i := range figures {
		figures[i] = make([]float64, rounds)
	}
	for round := range rounds {
		for turn := range sides {
			i := (round + turn) % len(sides)
			f, err := sides[i](round)
			if err = errors.Join(err, ctx.Err()); err != nil {
				return nil, err
			}
			figures[i][round] = f
		}
	}
	return figures, nil
}

// ratios divides a by b, round by round.
func ratios(a, b []float64) []float64 {
	r := make([]float64, len(a))
	for i := range a {
		r[i] = a[i] / b[i]
	}
	return r
}

// median is the median of the values: the mean of the two in the middle when their number is even, NaN when there are
// none.
func median(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	s := slices.Sorted(slices.Values(values))
	if n := len(s); n%2 == 0 {
		return (s[n/2-1] + s[n/2]) / 2
	}
	return s[len(s)/2]
}

// spread is the distance from the least to the greatest value ÷ the median. It says how far to trust the median. It is
// 0 when there are fewer than two values, or when the median is 0.
func spread(values []float64) float64 {
	if len(values) < 2 || median(values) == 0 {
		return 0
	}
	return (slices.Max(values) - slices.Min(values)) / median(values)
}
