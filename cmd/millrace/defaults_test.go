package main

import (
	"log/slog"
	"reflect"
	"slices"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/stretchr/testify/require"

	"millrace/api"
	"millrace/api/census"
	"millrace/api/console/signin"
	"millrace/api/live"
	refusals "millrace/api/refused"
	"millrace/api/stream"
	"millrace/ingest"
	"millrace/shard"
	"millrace/shard/cluster"
	"millrace/shard/cluster/placement"
	"millrace/shard/eventlog"
	"millrace/wal"
	"millrace/wal/quorum"
)

// A room that is told nothing has the defaults of the flags, so what tests run is what operators get. Only what follows
// from --memory is different.
func TestDefaultsOfRooms(t *testing.T) {
	var c cli
	parser, err := kong.New(&c, flagReaders)
	require.NoError(t, err)
	_, err = parser.Parse([]string{"serve", "--data", t.TempDir()})
	require.NoError(t, err)
	o, err := c.Serve.nodeOptions(slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	o.cluster = c.Serve.clusterOptions(nil, o.engine.Logger)
	ofMemory := []string{"MaxBodiesBytes", "MaxAnswersBytes", "MemoryBytes", "StoreMemTableBytes", "StoreCacheBytes", "MaxInflightBytes", "BlockBytes", "MaxDeletedBytes"}
	seen := 0
	for _, room := range []struct{ told, own interface{ EnsureDefaults() } }{
		{&o.door, new(api.Options)}, {&o.decoder, new(ingest.Options)}, {&o.engine, new(shard.Options)}, {&o.engine.Log, new(wal.Options)},
		{&o.events, new(eventlog.Options)}, {&o.streams, new(stream.Options)}, {o.refused, new(refusals.Options)}, {&o.live, new(live.Options)}, {o.census, new(census.Options)},
		{&o.console.Options, new(signin.Options)}, {o.cluster, new(cluster.Options)}, {&o.cluster.Quorum, new(quorum.Options)}, {&o.cluster.Pace, new(placement.Pace)},
	} {
		room.own.EnsureDefaults()
		told, own := reflect.ValueOf(room.told).Elem(), reflect.ValueOf(room.own).Elem()
		for i := range told.NumField() {
			f := told.Type().Field(i)
			if v := told.Field(i); f.IsExported() && (v.CanInt() || v.CanFloat()) && !v.IsZero() && !slices.Contains(ofMemory, f.Name) {
				require.Equal(t, own.Field(i).Interface(), v.Interface(), "%T: %s", room.told, f.Name)
				seen++
			}
		}
	}
	require.Greater(t, seen, 45)
}
