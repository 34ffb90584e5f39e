package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"gopkg.in/yaml.v3"

	"millrace/api/bounded"
	"millrace/api/stream"
	"millrace/cmd/millrace/operate"
	"millrace/loadtest"
)

// cli is the command line (decisions.md D8). A flag may also come from --config FILE (YAML, with the names of flags as
// keys) or from an environment variable: --data is MILLRACE_DATA.
type cli struct {
	Config configFlag `help:"Read flags from this YAML file." placeholder:"FILE"`

	Serve    serveCommand     `cmd:"" help:"Run the server."`
	Loadtest loadtest.Command `cmd:"" help:"Send load to a server and verify what it acknowledged."`
	Export   operate.Export   `cmd:"" help:"Export events and purchases from a running server."`
	Streams  operate.Streams  `cmd:"" help:"Show and change the streams of a running server: which events are sent where."`
	Live     operate.Live     `cmd:"" help:"Watch changes as a running server applies them."`
	Refused  operate.Refused  `cmd:"" help:"Show the objects that a running server refused, and send them again."`
	Import   importCommand    `cmd:"" help:"Import profiles, or files of attributes, events, purchases and deletions, into a running server."`
	Backup   backupCommand    `cmd:"" help:"Back up a running server."`
	Restore  restoreCommand   `cmd:"" help:"Make a data directory from a backup."`
	Cluster  clusterCommand   `cmd:"" help:"Show and change the cluster that a running server belongs to."`
	Admin    operate.Admin    `cmd:"" help:"Show and change workspaces, keys and other settings of a running server."`
	Version  versionCommand   `cmd:"" help:"Print the version."`
}

// configFlag is --config: kong's own, whose errors name the flag.
type configFlag kong.ConfigFlag

// BeforeResolve has flags come from the file, too.
func (configFlag) BeforeResolve(ctx *kong.Context, trace *kong.Path) error {
	path := string(ctx.FlagValue(trace.Flag).(configFlag))
	if path == "" {
		return nil
	}
	text, err := bounded.ReadFile(kong.ExpandPath(path), bounded.SmallFile)
	if err != nil {
		return fmt.Errorf("--config: %w", err)
	}
	resolver, err := yamlConfig(text)
	if err != nil {
		return fmt.Errorf("--config: %w", err)
	}
	ctx.AddResolver(resolver)
	return nil
}

// flagReaders has kong read paths and integers as flags of ours are meant.
var flagReaders = kong.OptionFunc(func(k *kong.Kong) error {
	for kind := reflect.Int; kind <= reflect.Uint64; kind++ {
		if err := kong.KindMapper(kind, kong.MapperFunc(readInteger)).Apply(k); err != nil {
			return err
		}
	}
	return kong.NamedMapper("path", kong.MapperFunc(readPath)).Apply(k)
})

// readInteger reads an integer. Zeros in front of it mean nothing; to kong they would make it octal.
func readInteger(ctx *kong.DecodeContext, target reflect.Value) error {
	token := ctx.Scan.Peek()
	if text, ok := token.Value.(string); ok {
		digits := strings.TrimLeft(text, "+-")
		sign := text[:len(text)-len(digits)]
		for len(digits) > 1 && digits[0] == '0' && digits[1] >= '0' && digits[1] <= '9' {
			digits = digits[1:]
		}
		ctx.Scan.Pop()
		ctx.Scan.PushTyped(sign+digits, token.Type)
	}
	return integers.ForType(target.Type()).Decode(ctx, target)
}

var integers = kong.NewRegistry().RegisterDefaults()

// readPath reads a flag that is a path. One that is given as nothing, as by a variable of the shell that isn't set, is
// as good as not given; kong would make it the directory that one is in.
func readPath(ctx *kong.DecodeContext, target reflect.Value) error {
	var path string
	if err := ctx.Scan.PopValueInto("file", &path); err != nil {
		return err
	}
	if path != "" && path != "-" {
		path = kong.ExpandPath(path)
	}
	target.SetString(path)
	return nil
}

// configFile resolves flags from a YAML file: `data: /var/lib/millrace`, or under the name of the command.
type configFile struct {
	document yaml.Node
	values   map[string]any
}

func yamlConfig(text []byte) (kong.Resolver, error) {
	c := &configFile{}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	err := decoder.Decode(&c.document)
	if err == io.EOF {
		return c, nil
	}
	if top := c.document.Content; err == nil && len(top) > 0 && top[0].Kind != yaml.MappingNode {
		err = fmt.Errorf("line %d: want flags and their values: flag: value", top[0].Line)
	}
	if err == nil {
		asWritten(&c.document)
		err = c.document.Decode(&c.values)
	}
	if err == nil && decoder.Decode(&yaml.Node{}) != io.EOF {
		err = errors.New("more than one document")
	}
	if err != nil {
		return nil, fmt.Errorf("configuration file: %w", err)
	}
	return c, nil
}

// asWritten makes texts of all numbers and times below n: it is flags that read them, as on the command line.
func asWritten(n *yaml.Node) {
	switch n.ShortTag() {
	case "!!int", "!!float", "!!timestamp":
		n.Tag = "!!str"
	}
	for _, child := range n.Content {
		asWritten(child)
	}
}

// Resolve returns a flag's value, nil when the file has none.
func (c *configFile) Resolve(_ *kong.Context, parent *kong.Path, flag *kong.Flag) (any, error) {
	for _, name := range flag.Envs { // the environment takes precedence over the file
		if _, set := os.LookupEnv(name); set {
			return nil, nil
		}
	}
	v := c.values[flag.Name]
	if parent.Command != nil {
		if own, ok := c.values[parent.Command.Name].(map[string]any); ok && own[flag.Name] != nil {
			v = own[flag.Name]
		}
	}
	if v == nil {
		return nil, nil
	}
	return text(v), nil
}

// Validate refuses keys for which there is no flag, and keys without a value, which would have no effect.
func (c *configFile) Validate(app *kong.Application) error {
	flags, commands := map[string]bool{}, map[string]map[string]bool{}
	noteFlags(app.Node, flags, commands)
	for key, value := range c.values {
		own, isCommand := commands[key]
		section, isSection := value.(map[string]any)
		switch {
		case isCommand && (isSection || value == nil && !flags[key]):
			for k, v := range section {
				if err := c.checkKey(own, k, v, key+" has no such flag"); err != nil {
					return err
				}
			}
		default:
			if err := c.checkKey(flags, key, value, "there is no such flag"); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *configFile) checkKey(flags map[string]bool, key string, value any, unknown string) error {
	problem := ""
	switch {
	case !flags[key]:
		problem = unknown
	case value == nil:
		problem = "it has no value"
	default:
		return nil
	}
	return fmt.Errorf("configuration file: line %d: %q: %s", lineOf(&c.document, key), key, problem)
}

// noteFlags collects the names of flags that a file may set: those of all commands, and of each.
func noteFlags(n *kong.Node, flags map[string]bool, commands map[string]map[string]bool) {
	own := commands[n.Name]
	if own == nil {
		own = map[string]bool{}
	}
	for _, f := range n.Flags {
		if f.Name != "config" && f.Name != "help" {
			flags[f.Name], own[f.Name] = true, true
		}
	}
	if n.Type == kong.CommandNode && len(own) > 0 {
		commands[n.Name] = own
	}
	for _, child := range n.Children {
		noteFlags(child, flags, commands)
	}
}

// lineOf returns the line where a key first occurs; 0 when it doesn't.
func lineOf(n *yaml.Node, key string) int {
	for i, child := range n.Content {
		if n.Kind == yaml.MappingNode && i%2 == 0 && child.Value == key {
			return child.Line
		}
		if line := lineOf(child, key); line > 0 {
			return line
		}
	}
	return 0
}

// strangeVariables returns the names of environment variables that have the prefix of flags but belong to no flag of
// any command. It leaves out streams' credentials and what Kubernetes sets for a service (NAME_SERVICE_HOST, NAME_PORT,
// …).
func strangeVariables(environment []string, root *kong.Node) (names []string) {
	known := map[string]bool{}
	noteVariables(root, known)
	var services []string
	for _, variable := range environment {
		name, _, _ := strings.Cut(variable, "=")
		names = append(names, name)
		if service, ok := strings.CutSuffix(name, "_SERVICE_HOST"); ok {
			services = append(services, service)
		}
	}
	names = slices.DeleteFunc(names, func(name string) bool {
		return !strings.HasPrefix(name, "MILLRACE_") || known[name] ||
			strings.HasPrefix(name, stream.CredentialsVariable) ||
			slices.ContainsFunc(services, func(service string) bool {
				return name == service+"_PORT" || strings.HasPrefix(name, service+"_PORT_") ||
					strings.HasPrefix(name, service+"_SERVICE_")
			})
	})
	slices.Sort(names)
	return names
}

// noteVariables collects the environment variables of the flags of all commands.
func noteVariables(n *kong.Node, known map[string]bool) {
	for _, f := range n.Flags {
		for _, name := range f.Envs {
			known[name] = true
		}
	}
	for _, child := range n.Children {
		noteVariables(child, known)
	}
}

// text returns a YAML value in the form of the command line.
func text(v any) any {
	switch v := v.(type) {
	case bool:
		return v
	case []any:
		parts := make([]string, len(v))
		for i := range v {
			parts[i] = fmt.Sprint(v[i])
		}
		return strings.Join(parts, ",")
	case map[string]any:
		return pairs(v)
	case map[any]any:
		return pairs(v)
	}
	return fmt.Sprint(v)
}

// pairs returns a map as key=value,key=value.
func pairs[K comparable](m map[K]any) string {
	var parts []string
	for k, v := range m {
		parts = append(parts, fmt.Sprintf("%v=%v", k, v))
	}
	slices.Sort(parts)
	return strings.Join(parts, ",")
}

// byteSize is a number of bytes: 4GiB, 512MiB, 64KB, or plain.
type byteSize int64

// UnmarshalText reads a byteSize.
func (b *byteSize) UnmarshalText(s []byte) error {
	number := strings.TrimRight(string(s), "BKMGTIbkmgti ")
	n, err := strconv.ParseFloat(number, 64)
	factor, ok := map[string]float64{"": 1, "b": 1, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12,
		"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30,
		"tib": 1 << 40}[strings.ToLower(strings.TrimSpace(string(s[len(number):])))]
	size := n * factor
	if err != nil || !ok || !(size == 0 || size >= 1 && size < 1<<63) { // less than a byte would count as 0: no bound
		return fmt.Errorf("%q is not a number of bytes, such as 4GiB", s)
	}
	*b = byteSize(size)
	return nil
}

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
