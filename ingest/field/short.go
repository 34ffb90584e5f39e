package field

import "strings"

// ShortName is as much of a name as a message shows.
func ShortName[T []byte | string](name T) T { return Short(64, name) }

// Short is as much of a value as fits into so many bytes, and an ellipsis if that isn't all.
func Short[T []byte | string](bytes int, value T) T {
	if len(value) <= bytes {
		return value
	}
	return T(strings.ToValidUTF8(string(value[:bytes]), "") + "…")
}
