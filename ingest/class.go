package ingest

import (
	"millrace/ingest/field"
	"millrace/shard/op"
)

// class is the meaning of a member's name. Below op.ReservedCodes it is the code of a reserved attribute; email and
// phone are classEmail and classPhone in every kind of object.
type class uint8

const (
	classOther      class = 0 // a custom attribute, a property, or a member without a meaning
	classEmail            = class(op.AttrEmail)
	classPhone            = class(op.AttrPhone)
	classExternalID class = op.ReservedCodes + iota
	classUserAlias
	classSvcID
	classUpdateOnly
	classMergeObjects
	classPushTokenImport
	classIgnored   // reserved, not stored
	classForbidden // may not be sent
	classAppID
	className
	classTime
	classProperties
	classProductID
	classCurrency
	classPrice
	classQuantity
	classOperator // a name with a dollar sign that has a meaning in the value of a custom attribute
)

// classify returns the meaning of name in an object of the shape, and what is wrong with it.
func classify(s shape, name []byte) (class, reason) {
	switch {
	case s == shapeAttributes:
		return classifyAttribute(name)
	case s == shapeEvent || s == shapePurchase:
		return classifyMember(s, name), 0
	case s == shapeEventProperties || s == shapePurchaseProperties:
		return classOther, classifyProperty(s, name)
	case s >= shapeObject && s < shapeNested:
		switch string(name) {
		case "$add", "$update", "$remove", "$time", "$identifier_key", "$identifier_value", "$new_object":
			return classOperator, 0
		}
		if !field.NestedKey(name) {
			return classOther, reasonNotValid
		}
	}
	return classOther, 0
}

func classifyIdentifier(name []byte) class {
	switch string(name) {
	case "external_id":
		return classExternalID
	case "user_alias":
		return classUserAlias
	case "svc_id", "braze_id":
		return classSvcID
	case "email":
		return classEmail
	case "phone":
		return classPhone
	case "_update_existing_only":
		return classUpdateOnly
	}
	return classOther
}

func classifyAttribute(name []byte) (class, reason) {
	if c := classifyIdentifier(name); c != classOther {
		return c, 0
	}
	if code := op.AttrCode(name); code != 0 {
		return class(code), 0
	}
	switch string(name) {
	case "_merge_objects":
		return classMergeObjects, 0
	case "push_token_import":
		return classPushTokenImport, 0
	case "bio", "alias_name", "alias_label":
		return classIgnored, 0
	case "email_subscription_info":
		return classForbidden, 0
	}
	trimmed, ok := field.AttributeName(name)
	if !ok {
		return classOther, reasonAttributeName
	}
	if len(trimmed) < len(name) {
		// Names are compared exactly (decisions.md D1), so this isn't the reserved name; but stored, it would look like
		// it.
		if c, _ := classifyAttribute(trimmed); c != classOther {
			return classOther, reasonAttributeBlanks
		}
	}
	return classOther, 0
}

func classifyMember(s shape, name []byte) class {
	if c := classifyIdentifier(name); c != classOther {
		return c
	}
	switch string(name) {
	case "app_id":
		return classAppID
	case "time":
		return classTime
	case "properties":
		return classProperties
	}
	if s == shapeEvent {
		if string(name) == "name" {
			return className
		}
		return classOther
	}
	switch string(name) {
	case "product_id":
		return classProductID
	case "currency":
		return classCurrency
	case "price":
		return classPrice
	case "quantity":
		return classQuantity
	}
	return classOther
}

func classifyProperty(s shape, name []byte) reason {
	switch string(name) {
	case "time", "event_name":
		return reasonProperties
	case "product_id", "quantity", "price", "currency":
		if s == shapePurchaseProperties {
			return reasonProperties
		}
	}
	switch {
	case len(name) == 0:
		return reasonPropertyNameEmpty
	case name[0] == '$':
		return reasonPropertyNameDollar
	case !field.Runes255(name):
		return reasonPropertyNameLong
	}
	return 0
}
