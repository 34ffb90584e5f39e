package event

import (
	"strconv"
	"time"

	"millrace/shard/jsonvalue"
	"millrace/shard/op"
)

// AppendMember appends a name in the form that begins a member of a JSON object.
func AppendMember(dst, name []byte) []byte {
	return append(jsonvalue.AppendString(dst, name), ':')
}

// AppendValue appends a value as JSON: JSON that was sent, without white space between its tokens.
func AppendValue(dst []byte, v op.Value) []byte {
	switch v.Tag() {
	case op.JSON:
		return appendCompact(dst, v.Bytes())
	case op.Array, op.Object:
		return jsonvalue.AppendNested(dst, v, AppendValue)
	}
	return jsonvalue.AppendSent(dst, v)
}

func appendTime(dst []byte, t time.Time) []byte {
	return append(jsonvalue.AppendInstant(append(dst, '"'), t), '"')
}

// Tens are the powers of ten that decimals are divided by, up to the largest scale in blocks of the event log.
var Tens = [...]float64{1, 10, 100, 1000, 10000}

// exactDecimal bounds what AppendDecimal writes digit by digit. A decimal of up to 15 digits is the shortest form of
// the float that it is read as, and that form is what AppendValue writes.
const exactDecimal = 1e15

// AppendDecimal appends m / Tens[scale] as AppendValue does for a Float of that value.
func AppendDecimal(dst []byte, m int64, scale int) []byte {
	for ; scale > 0 && m%10 == 0; scale-- {
		m /= 10
	}
	if m <= -exactDecimal || m >= exactDecimal {
		return jsonvalue.AppendFloat(dst, float64(m)/Tens[scale])
	}
	if m < 0 {
		dst, m = append(dst, '-'), -m
	}
	ten := int64(Tens[scale])
	dst = strconv.AppendInt(dst, m/ten, 10)
	dst = append(append(dst, '.'), "0000"[:max(scale, 1)]...)
	for at, fraction := len(dst)-1, m%ten; fraction > 0; at-- {
		dst[at] += byte(fraction % 10)
		fraction /= 10
	}
	return dst
}

// appendCompact appends JSON text without the white space between its tokens.
func appendCompact(dst, text []byte) []byte {
	inString := false
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case inString && c == '\\' && i+1 < len(text):
			dst = append(dst, c)
			i++
			c = text[i]
		case c == '"':
			inString = !inString
		case !inString && (c == ' ' || c == '\t' || c == '\n' || c == '\r'):
			continue
		}
		dst = append(dst, c)
	}
	return dst
}
