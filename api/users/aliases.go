package users

import (
	"millrace/api/call"
	"millrace/api/store"
	"millrace/api/value"
	"millrace/shard"
	"millrace/shard/op"
)

// POST /users/alias/new and POST /users/alias/update (service.md 4.9, reference.md 4.1 and 4.4).

// NewAliases serves POST /users/alias/new.
func NewAliases(x *call.Call, body value.Value) {
	l := elements{x: x}
	l.readObjects("user_aliases", body.Member("user_aliases"), l.readNewAlias)
	if l.apply("'user_aliases' is required", op.SourceServer) {
		l.succeed()
	}
}

// newAlias gives a user an alias, or makes an alias-only user.
type newAlias struct {
	label, name string
	of          *namedUser // nil: the alias makes an alias-only user
	number      uint64     // of the user
	nobody      bool       // of names nobody
}

// readNewAlias reads a new user alias object (service.md 2.3). Clients also send the alias in a `user_alias` object,
// which the real service accepts.
func (l *elements) readNewAlias(v value.Value) (change, string) {
	c := &newAlias{}
	alias := v
	var externalID, svcID value.Value
	flat, two := false, false
	for member, m := range v.Members() {
		switch {
		case m.Absent():
		case member == "external_id":
			externalID = m
		case member == "svc_id", member == "braze_id":
			two = svcID != nil
			svcID = m
		case member == "alias_name", member == "alias_label":
			flat = true
		case member == "user_alias" && m.IsObject():
			alias = m
		}
	}
	if flat {
		alias = v
	}
	switch {
	case two || externalID != nil && svcID != nil:
		return nil, phrase(l.x, "You must specify only one of 'external_id' or 'svc_id'")
	case externalID != nil:
		id, text := readExternalID(l.x, externalID, "external_id")
		if text != "" {
			return nil, text
		}
		u := externalIDUser(id)
		c.of = &u
	case svcID != nil:
		id, ok := svcID.Str()
		if !ok {
			return nil, phrase(l.x, "'svc_id' must be a String")
		}
		u := svcIDUser(id)
		c.of = &u
	}
	var text string
	c.label, c.name, text = readAlias(alias)
	return c, text
}

func (c *newAlias) names() []subject { return []subject{aliasSubject(c.label, c.name)} }

func (c *newAlias) asks() []namedUser {
	if c.of == nil {
		return nil
	}
	return []namedUser{*c.of}
}

func (c *newAlias) resolve(x *call.Call) ([]subject, error) {
	if c.of == nil {
		return nil, nil
	}
	users, err := c.of.findOrMerged(x)
	if c.nobody = len(users) == 0; c.nobody {
		return nil, err
	}
	c.number = users[0].number
	return []subject{labelSubject(c.number, c.label)}, nil
}

func (c *newAlias) put(b store.Batch) (ref int, ok bool) {
	if c.nobody {
		return 0, false
	}
	return b.AddAlias(c.number, []byte(c.label), []byte(c.name)), true
}

// refusal: an alias for an external id that nobody has is added to nobody, which is not an error (service.md 4.9).
func (c *newAlias) refusal(o shard.Outcome) string {
	switch o {
	case shard.Taken:
		return "'alias_name' is already in use"
	case shard.LabelTaken:
		return "the user already has an alias with this 'alias_label'"
	}
	return ""
}

func aliasSubject(label, name string) subject {
	return subject{kind: op.Alias, key: string(op.AppendAliasKey(nil, []byte(label), []byte(name)))}
}

// labelSubject is the alias name that a user has under a label.
func labelSubject(number uint64, label string) subject { return subject{number: number, key: label} }

// UpdateAliases serves POST /users/alias/update.
func UpdateAliases(x *call.Call, body value.Value) {
	l := elements{x: x}
	l.readObjects("alias_updates", body.Member("alias_updates"), readAliasUpdate)
	if l.apply("'alias_updates' is required", op.SourceServer) {
		l.succeed()
	}
}

// aliasUpdate gives an alias another name under its label.
type aliasUpdate struct {
	label, current, name string
	number               uint64 // of the user; 0: nobody
}

func readAliasUpdate(v value.Value) (change, string) {
	parts, text := readAliasParts(v, "alias_label", "old_alias_name", "new_alias_name")
	return &aliasUpdate{label: parts[0], current: parts[1], name: parts[2]}, text
}

func (c *aliasUpdate) names() []subject {
	return []subject{aliasSubject(c.label, c.current), aliasSubject(c.label, c.name)}
}

func (c *aliasUpdate) asks() []namedUser { return []namedUser{aliasUser(c.label, c.current)} }

func (c *aliasUpdate) resolve(x *call.Call) ([]subject, error) {
	u := aliasUser(c.label, c.current)
	users, err := u.find(x)
	c.number = 0
	if len(users) == 0 {
		return nil, err
	}
	c.number = users[0].number
	return []subject{labelSubject(c.number, c.label)}, nil
}

func (c *aliasUpdate) put(b store.Batch) (ref int, ok bool) {
	if c.number == 0 {
		return 0, false
	}
	return b.RenameAlias(c.number, []byte(c.label), []byte(c.current), []byte(c.name)), true
}

func (c *aliasUpdate) refusal(o shard.Outcome) string {
	switch o {
	case shard.Done:
		return ""
	case shard.Taken, shard.LabelTaken:
		return "'new_alias_name' is already in use"
	}
	return "nobody has an alias with this 'alias_label' and 'old_alias_name'"
}
