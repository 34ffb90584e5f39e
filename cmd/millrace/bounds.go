package main

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"
)

// The bounds of a number are declared with its flag, in the flag's own notation: `bounds:"0|1MiB..64GiB"` has values
// and ranges. The commands check settings that only make sense together.

// checkBounds refuses the first flag whose number is out of bounds.
func checkBounds(flags []*kong.Flag) error {
	for _, f := range flags {
		if bounds := f.Tag.Get("bounds"); bounds != "" && !isWithin(f.Target, bounds) {
			want := strings.ReplaceAll(strings.ReplaceAll(bounds, "|", ", or "), "..", " to ")
			return fmt.Errorf("--%s: %v is out of bounds: want %s", f.Name, f.Target.Interface(), want)
		}
	}
	return nil
}

// checkGiven refuses a required flag that is given as nothing, as by a variable of the shell that isn't set: an empty
// --data would be the directory that one is in.
func checkGiven(flags []*kong.Flag) error {
	for _, f := range flags {
		if f.Required && f.Set && f.Target.Kind() == reflect.String && f.Target.String() == "" {
			return fmt.Errorf("--%s is empty", f.Name)
		}
	}
	return nil
}

func isWithin(v reflect.Value, bounds string) bool {
	n := number(v)
	for allowed := range strings.SplitSeq(bounds, "|") {
		least, most, isRange := strings.Cut(allowed, "..")
		if !isRange {
			most = least
		}
		if n >= bound(v.Type(), least) && n <= bound(v.Type(), most) {
			return true
		}
	}
	return false
}

// hasDefault reports whether a flag has the value that it has when it isn't given.
func hasDefault(f *kong.Flag) bool {
	if f.Default == "" {
		return f.Target.IsZero()
	}
	return number(f.Target) == bound(f.Target.Type(), f.Default)
}

// number returns a flag's value. That a float64 has fewer digits than an int64 makes no difference for bounds.
func number(v reflect.Value) float64 {
	switch {
	case v.CanInt():
		return float64(v.Int())
	case v.CanUint():
		return float64(v.Uint())
	}
	return v.Float()
}

// bound reads a bound in the way in which the flag reads its value.
func bound(t reflect.Type, s string) float64 {
	var n float64
	var err error
	switch t {
	case reflect.TypeFor[byteSize]():
		var b byteSize
		err = b.UnmarshalText([]byte(s))
		n = float64(b)
	case reflect.TypeFor[time.Duration]():
		var d time.Duration
		d, err = time.ParseDuration(s)
		n = float64(d)
	default:
		n, err = strconv.ParseFloat(s, 64)
	}
	if err != nil {
		panic("BUG: a bound of a flag: " + err.Error())
	}
	return n
}
