package ingest

import (
	"encoding/binary"
	"math"
	"strconv"
	"strings"

	"millrace/ingest/field"
	"millrace/shard/op"
)

// Reserved attributes that are objects or arrays (reference.md 2).

// eachMember reads the object at i, which is inside level others, and calls member with the name at each value; member
// reads the value. The function is called only within eachMember and must not be kept.
func (d *Decoder) eachMember(i, level int, member func(name []byte, i int) int) int {
	if level >= d.maxDepth {
		return d.skipDeep(i)
	}
	i, more := d.openObject(i)
	p := d.newPath(shapeNested.atLevel(level + 1))
	for more {
		if i = d.member(&p, i); i < 0 {
			return -1
		}
		if i = member(d.nameOf(d.key), i); i < 0 {
			return -1
		}
		i, more = d.nextMember(i)
	}
	return i
}

// eachObject reads the array of objects at i and calls object at each of them. Anything but an object, or an array, is
// refused with why.
func (d *Decoder) eachObject(i int, why reason, object func(i int) int) int {
	if d.in[i] != '[' {
		return d.skipRefused(i, 0, why)
	}
	if i = d.space(i + 1); d.in[i] == ']' {
		return i + 1
	}
	for more := true; more; {
		if d.in[i] == '{' {
			i = object(i)
		} else {
			i = d.skipRefused(i, 1, why)
		}
		if i < 0 {
			return -1
		}
		i, more = d.nextElement(i)
	}
	return i
}

// location reads current_location and writes it as an Object of two Floats.
func (d *Decoder) location(i int) int {
	begin := i
	if d.in[i] != '{' {
		return d.skipRefused(i, 0, reasonNotValid)
	}
	longitude, latitude := math.NaN(), math.NaN()
	i = d.eachMember(i, 0, func(name []byte, i int) int {
		switch string(name) {
		case "longitude":
			i, longitude = d.coordinate(i)
		case "latitude":
			i, latitude = d.coordinate(i)
		default:
			i = d.skip(i, 1)
		}
		return i
	})
	if i < 0 {
		return -1
	}
	if math.IsNaN(longitude + latitude) {
		d.refuseNamed(rankValue, begin, reasonNotValid, d.owner)
		return i
	}
	d.putField(op.AttrCurrentLocation)
	at := d.openBlock(op.Object)
	d.putName("longitude")
	d.putFixed(op.Float, math.Float64bits(longitude))
	d.putName("latitude")
	d.putFixed(op.Float, math.Float64bits(latitude))
	d.closeBlock(at)
	return i
}

// coordinate reads a number, or a string that has one: some clients' types of places are strings. Anything else is NaN.
func (d *Decoder) coordinate(i int) (next int, f float64) {
	switch c := d.in[i]; {
	case c == '-' || c-'0' <= 9:
		return d.float(i)
	case c != '"':
		return d.skip(i, 1), math.NaN()
	}
	i++
	end, next := d.text(i)
	if next < 0 || end-i > maxNumberBytes {
		return next, math.NaN()
	}
	number := d.borrow(i, end)
	f, err := strconv.ParseFloat(number, 64)
	if err != nil || strings.Trim(number, "0123456789.+-eE") != "" {
		return next, math.NaN()
	}
	return next, f
}

// float reads a number, which may be an integer, as a float64.
func (d *Decoder) float(i int) (next int, f float64) {
	next, kind, v := d.number(i)
	switch kind {
	case numberInt:
		return next, float64(int64(v))
	case numberFloat:
		return next, math.Float64frombits(v)
	}
	d.outside(i, kind)
	return next, 0
}

// putName writes the name of an Object's member.
func (d *Decoder) putName(name string) {
	d.need(binary.MaxVarintLen64 + len(name))
	d.putUvarint(uint64(len(name)))
	d.o += copy(d.out[d.o:], name)
}

// putMember writes a String member of an Object.
func (d *Decoder) putMember(name string, s *slot) {
	d.putName(name)
	d.putString(int(s.start), int(s.end))
}

// subscriptionGroups reads subscription_groups and writes each group's id followed by its channel, and the state.
func (d *Decoder) subscriptionGroups(i int) int {
	d.putField(op.AttrSubscriptionGroups)
	at := d.openBlock(op.Array)
	i = d.eachObject(i, reasonGroupArray, d.subscriptionGroup)
	if i >= 0 {
		d.closeBlock(at)
	}
	return i
}

func (d *Decoder) subscriptionGroup(i int) int {
	begin := i
	var id, state slot
	i = d.eachMember(i, 1, func(name []byte, i int) int {
		switch string(name) {
		case "subscription_group_id":
			return d.slotValue(i, &id)
		case "subscription_state":
			return d.slotValue(i, &state)
		}
		return d.skip(i, 2)
	})
	if i < 0 {
		return -1
	}
	if id.at == 0 || state.at == 0 {
		d.refuseNamed(rankValue, begin, reasonGroupArray, d.owner)
		return i
	}
	group, ok := [16]byte{}, id.kind == slotString
	if ok {
		group, ok = field.UUID(d.content(&id))
	}
	channel, exists := d.ws.Groups[group]
	if !ok || !exists {
		d.refuseNamed(rankValue, int(id.at), reasonGroupID, d.owner)
	}
	subscribed := string(d.content(&state)) == "subscribed"
	if state.kind != slotString || !subscribed && string(d.content(&state)) != "unsubscribed" {
		d.refuseNamed(rankValue, int(state.at), reasonGroupState, d.owner)
	}
	d.scratch = append(append(d.scratch[:0], group[:]...), channel)
	d.putBytes(op.String, d.scratch)
	d.putTag(op.False + op.Tag(boolBit(subscribed)))
	return i
}

// pushTokens reads push_tokens and writes an Object for each.
func (d *Decoder) pushTokens(i int) int {
	d.id.hasTokens = d.in[i] == '[' && d.in[d.space(i+1)] != ']'
	undo := d.o
	d.putField(op.AttrPushTokens)
	at := d.openBlock(op.Array)
	i = d.eachObject(i, reasonTokenArray, d.pushToken)
	switch {
	case i >= 0 && d.id.hasTokens:
		d.closeBlock(at)
	case i >= 0: // tokens are added to those that are there
		d.o = undo
	}
	return i
}

func (d *Decoder) pushToken(i int) int {
	begin := i
	var app, token, device slot
	i = d.eachMember(i, 1, func(name []byte, i int) int {
		switch string(name) {
		case "app_id":
			return d.slotValue(i, &app)
		case "token":
			return d.slotValue(i, &token)
		case "device_id":
			return d.slotValue(i, &device)
		}
		return d.skip(i, 2)
	})
	if i < 0 {
		return -1
	}
	if app.at == 0 || token.at == 0 {
		d.refuseNamed(rankValue, begin, reasonTokenArray, d.owner)
		return i
	}
	_, exists := d.ws.Apps[string(d.content(&app))]
	if app.kind != slotString || !exists {
		d.refuseNamed(rankValue, int(app.at), reasonTokenApp, d.owner)
	}
	if n := token.end - token.start; token.kind != slotString || n == 0 || n > maxTokenBytes {
		d.refuseNamed(rankValue, int(token.at), reasonTokenText, d.owner)
	}
	hasDevice := device.at != 0 && device.kind != slotNull
	if hasDevice && (device.kind != slotString || !field.DeviceID(d.content(&device))) {
		d.refuseNamed(rankValue, int(device.at), reasonDeviceID, d.owner)
	}
	if d.id.token.at == 0 {
		d.id.tokenApp, d.id.token = app, token
	}
	at := d.openBlock(op.Object)
	d.putMember("app_id", &app)
	d.putMember("token", &token)
	if hasDevice {
		d.putMember("device_id", &device)
	}
	d.closeBlock(at)
	return i
}

// maxTokenBytes bounds a push token, for which the reference has no limit; today's longest tokens have a few hundred
// bytes.
const maxTokenBytes = 4096

// socialObject reads facebook or twitter. Operators and times are for custom attributes: they are left out.
func (d *Decoder) socialObject(code uint32, i int) int {
	if d.in[i] != '{' {
		return d.skipRefused(i, 0, reasonNotValid)
	}
	undo := d.o
	d.putField(code)
	at := d.o
	if i = d.attributeObject(i, undo); i >= 0 && d.o > at && op.Tag(d.out[at]) != op.Object {
		d.warn(reasonNotValid, d.nameOf(d.owner))
		d.o = undo
	}
	return i
}
