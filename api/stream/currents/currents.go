package currents

import (
	"strconv"

	"millrace/shard/eventlog/event"
	"millrace/shard/jsonvalue"
	"millrace/shard/op"
)

// Append appends an event in the form in which the HTTP connector of Braze's Currents sends it. What is missing is left
// out.
//
//	{"event_type":"users.behaviors.CustomEvent","id":"<uuid>","time":1700000000,
//	 "user":{"user_id":"<svc_id>","external_user_id":"u1","timezone":"Europe/Berlin"},
//	 "properties":{"app_group_id":"<workspace>","app_id":"…","name":"viewed","custom_properties":{"k":1}}}
//
// A change of a state has subscription_status, state_change_source and channel; it has the address if it names one of
// that channel, and subscription_group_id if it is that of a group. A deletion (users.UserDeleteRequest) has only
// user_id and app_group_id; a merge (users.UserOrphan) also has orphaned_by_id. A purchase has product_id, price,
// currency and purchase_properties, and no time zone.
func Append(dst []byte, e *event.Event, r *Reader, workspace string) []byte {
	dst = append(append(dst, `{"event_type":"`...), TypeOf(e.Kind)...)
	dst = append(r.AppendUUID(append(dst, `","id":"`...), e), `","time":`...)
	dst = strconv.AppendInt(dst, e.Time.Unix(), 10)
	dst = append(append(append(dst, `,"user":{"user_id":"`...), r.svcID...), '"')
	if len(r.externalID) > 0 {
		dst = jsonvalue.AppendString(append(dst, `,"external_user_id":`...), r.externalID)
	}
	if len(r.timeZone) > 0 && (e.Kind == op.Event || isState(e.Kind)) {
		dst = jsonvalue.AppendString(append(dst, `,"timezone":`...), r.timeZone)
	}
	dst = jsonvalue.AppendString(append(dst, `},"properties":{"app_group_id":`...), workspace)
	switch e.Kind {
	case op.Delete:
		return append(dst, "}}"...)
	case event.Merged:
		dst = append(dst, `,"orphaned_by_id":"`...)
		return append(r.appendID(dst, e.Workspace, e.Number), `"}}`...)
	}
	if isState(e.Kind) {
		return append(appendChange(dst, e), "}}"...)
	}
	if len(e.App) > 0 {
		dst = jsonvalue.AppendString(append(dst, `,"app_id":`...), e.App)
	}
	if e.Kind == op.Event {
		dst = jsonvalue.AppendString(append(dst, `,"name":`...), e.Name)
		return append(appendProperties(append(dst, `,"custom_properties":`...), e), "}}"...)
	}
	dst = jsonvalue.AppendString(append(dst, `,"product_id":`...), e.Name)
	dst = jsonvalue.AppendString(append(dst, `,"currency":`...), e.Currency[:])
	dst = strconv.AppendFloat(append(dst, `,"price":`...), e.Price, 'f', -1, 64)
	return append(appendProperties(append(dst, `,"purchase_properties":`...), e), "}}"...)
}

// appendProperties appends the properties of an event in the form of Currents. Purchases there have no quantity: one
// greater than 1 becomes a property, with a name that properties of purchases can't have.
func appendProperties(dst []byte, e *event.Event) []byte {
	properties := e.Properties
	if properties == nil {
		properties = []byte("{}")
	}
	if !hasQuantity(e) {
		return append(dst, properties...)
	}
	dst = append(dst, properties[:len(properties)-1]...)
	if len(properties) > len("{}") {
		dst = append(dst, ',')
	}
	return append(strconv.AppendUint(append(dst, `"quantity":`...), uint64(e.Quantity), 10), '}')
}

// hasQuantity reports whether an event has a quantity among its properties.
func hasQuantity(e *event.Event) bool { return e.Kind == op.Purchase && e.Quantity > 1 }

func isState(k op.Kind) bool { return k == event.EmailState || k == event.GroupState }

// change is a change of a state in the words of Currents.
type change struct {
	status, source, channel string
	email, phone, address   []byte // empty: there is none
}

func changeOf(e *event.Event) (c change) {
	c.status, c.source, c.channel = "Subscribed", "REST API", "email" // a removed state is one that nobody has set
	switch string(e.Status) {
	case "unsubscribed":
		c.status = "Unsubscribed"
	case "opted_in":
		c.status = "Opted In"
	}
	switch e.Source {
	case op.SourcePreferenceCenter:
		c.source = "Preference Center"
	case op.SourceOneClick:
		c.source = "List-Unsubscribe"
	case op.SourceAdmin:
		c.source = "Dashboard"
	}
	if e.Kind == event.GroupState {
		c.channel = event.ChannelName(e.Channel)
	}
	switch isEmail := c.channel == event.ChannelName(op.ChannelEmail); { // a user may be named by the other address
	case e.ID == op.Email && isEmail:
		c.email, c.address = e.Key, e.Key
	case e.ID == op.Phone && !isEmail:
		c.phone, c.address = e.Key, e.Key
	}
	return c
}

func appendChange(dst []byte, e *event.Event) []byte {
	c := changeOf(e)
	dst = jsonvalue.AppendString(append(dst, `,"subscription_status":`...), []byte(c.status))
	dst = jsonvalue.AppendString(append(dst, `,"state_change_source":`...), []byte(c.source))
	if e.Kind == event.GroupState {
		dst = jsonvalue.AppendString(append(dst, `,"subscription_group_id":`...), e.Name)
	}
	for _, f := range [...]struct {
		name  string
		value []byte
	}{{"channel", []byte(c.channel)}, {"email_address", c.email}, {"phone_number", c.phone},
		{"channel_identifier", c.address}} {
		if len(f.value) > 0 {
			dst = append(append(append(dst, `,"`...), f.name...), `":`...)
			dst = jsonvalue.AppendString(dst, f.value)
		}
	}
	return dst
}

// TypeOf returns Braze's name for a kind of event.
func TypeOf(k op.Kind) string {
	switch k {
	case op.Purchase:
		return "users.behaviors.Purchase"
	case op.Delete:
		return "users.UserDeleteRequest"
	case event.EmailState:
		return "users.behaviors.subscription.GlobalStateChange"
	case event.GroupState:
		return "users.behaviors.subscriptiongroup.StateChange"
	case event.Merged:
		return "users.UserOrphan"
	}
	return "users.behaviors.CustomEvent"
}
