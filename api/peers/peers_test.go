package peers

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

type question struct{ N int }

// three are nodes that answer with a number; node 3 can't be reached.
type three struct{}

func (three) Self() uint32    { return 1 }
func (three) Nodes() []uint32 { return []uint32{1, 2, 3} }

func (three) Call(_ context.Context, node uint32, message []byte) ([]byte, error) {
	if node == 3 {
		return nil, errors.New("no connection")
	}
	return Serve(message, func(q question) (int, error) {
		if q.N < 0 {
			return 0, errors.New("it is negative")
		}
		return q.N + 1, nil
	})
}

func TestAskAll(t *testing.T) {
	own := func() (int, error) { return 7, nil }
	answers := AskAll(t.Context(), three{}, question{4}, own)
	require.EqualError(t, answers[2].Err, "no connection")
	answers[2].Err = nil
	require.Equal(t, []Answer[int]{{Node: 1, Reply: 7}, {Node: 2, Reply: 5}, {Node: 3}}, answers)
	answers = AskAll(t.Context(), three{}, question{-1}, own)
	require.NoError(t, answers[0].Err)
	require.EqualError(t, answers[1].Err, "it is negative")
}

func TestServe(t *testing.T) {
	for _, message := range []string{"", "?", `{"N":"x"}`} {
		_, err := Serve([]byte(message), func(question) (int, error) { panic("not served") })
		require.ErrorContains(t, err, "a message of another node")
	}
}
