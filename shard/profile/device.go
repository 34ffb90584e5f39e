package profile

import (
	"bytes"
	"slices"
	"unicode/utf8"

	"github.com/valyala/fastjson"

	"millrace/shard/op"
)

const (
	maxImportedID    = 255  // bytes of an id of a device, an advertiser, a vendor
	maxImportedText  = 255  // characters of a model, a system, a carrier
	maxImportedToken = 4096 // bytes, as for /users/track
	maxDevices       = 100  // the last ones stay
)

// deviceTexts are the members of a device that are strings, and whether they are ids.
var deviceTexts = []struct {
	name string
	isID bool
}{{"model", false}, {"os", false}, {"carrier", false}, {"device_id", true}, {"idfv", true}, {"idfa", true},
	{"google_ad_id", true}, {"roku_ad_id", true}, {"windows_ad_id", true}}

const deviceTracking = "ad_tracking_enabled" // the only other member

var deviceMembers = func() []string {
	names := []string{deviceTracking}
	for _, m := range deviceTexts {
		names = append(names, m.name)
	}
	return names
}()

// appendPushToken appends a push token. The token names its app by app_id, as our exports do, or by app, as exports
// from elsewhere do. When there is no app of that name, the token keeps the name.
func (r *lineReader) appendPushToken(dst []byte, v *fastjson.Value, appID func(name []byte) []byte) []byte {
	const in = "push_tokens"
	o := r.element(v, in, "app_id", "app", "platform", "token", "device_id", "notifications_enabled")
	mark := len(dst)
	if id := o.Get("app_id"); present(id) {
		dst = appendText(dst, "app_id", r.short(id, in+" app_id", maxNameBytes))
	} else {
		name := r.short(o.Get("app"), in+" app", maxNameBytes)
		if r.err == nil && appID != nil {
			if id := appID(name); len(id) > 0 {
				dst = appendText(dst, "app_id", id)
				name = nil
			}
		}
		if len(name) > 0 {
			dst = appendText(dst, "app", name)
			r.leave("%s: there is no app %.40q", in, name)
		}
	}
	if v := o.Get("platform"); present(v) {
		dst = appendText(dst, "platform", r.short(v, in+" platform", maxImportedID))
	}
	dst = appendText(dst, "token", r.short(o.Get("token"), in+" token", maxImportedToken))
	if v := o.Get("device_id"); present(v) {
		dst = appendText(dst, "device_id", r.short(v, in+" device_id", maxImportedID))
	}
	return closeBlock(r.appendFlag(dst, o, in, "notifications_enabled"), mark, op.Object)
}

// appendDevices appends devices as an Array, and nothing when there are none. Of several devices with the same
// device_id the last one stays.
func (r *lineReader) appendDevices(dst []byte, list []*fastjson.Value) []byte {
	var made [][]byte
	place := map[string]int{} // of the last device with a device_id
	for _, v := range list {
		id := string(v.GetStringBytes("device_id"))
		if at, twice := place[id]; twice && id != "" {
			made[at] = nil
		}
		place[id] = len(made)
		made = append(made, r.device(v))
	}
	made = slices.DeleteFunc(made, func(device []byte) bool { return device == nil })
	if len(made) > maxDevices {
		r.leave("'devices' has more than %d: only the last ones are imported", maxDevices)
		made = made[len(made)-maxDevices:]
	}
	if len(made) == 0 {
		return dst
	}
	return closeBlock(append(dst, bytes.Join(made, nil)...), len(dst), op.Array)
}

func (r *lineReader) device(v *fastjson.Value) (b []byte) {
	const in = "devices"
	o := r.element(v, in, deviceMembers...)
	for _, m := range deviceTexts {
		v := o.Get(m.name)
		switch {
		case v == nil:
		case v.Type() == fastjson.TypeNull:
			if m.name == "carrier" { // the only member that is null in the shape
				b = append(appendName(b, []byte(m.name)), byte(op.Null))
			}
		case m.isID:
			b = appendText(b, m.name, r.short(v, in+" "+m.name, maxImportedID))
		default:
			s := r.text(v, in+" "+m.name)
			if utf8.RuneCount(s) > maxImportedText {
				r.fail("%s %s has more than %d characters", in, m.name, maxImportedText)
			}
			b = appendText(b, m.name, s)
		}
	}
	return closeBlock(r.appendFlag(b, o, in, deviceTracking), 0, op.Object)
}

// appendText appends a String member of an Object.
func appendText(dst []byte, name string, s []byte) []byte {
	return op.AppendString(appendName(dst, []byte(name)), s)
}

// appendFlag appends a boolean member, if o has it.
func (r *lineReader) appendFlag(dst []byte, o *fastjson.Object, in, name string) []byte {
	v := o.Get(name)
	if !present(v) {
		return dst
	}
	return op.AppendBool(appendName(dst, []byte(name)), r.flag(v, in+" "+name))
}
