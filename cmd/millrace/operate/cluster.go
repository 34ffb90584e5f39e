package operate

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"millrace/shard/cluster/placement"
	"millrace/wal/pause"
	"millrace/wal/quorum"
)

// Cluster is `millrace cluster`: the cluster that a running server is a node of, by its admin API.
type Cluster struct {
	caller

	Status clusterStatus `cmd:"" help:"Show nodes and groups: which are up, lead or lag, and what is being moved."`
	Add    clusterAdd    `cmd:"" help:"Add a node, change its address, or cancel its drain."`
	Drain  clusterDrain  `cmd:"" help:"Drain a node: move its groups to other nodes."`
	Remove clusterRemove `cmd:"" help:"Remove a node for good. Its number is never reused."`
}

type clusterStatus struct {
	Check bool `env:"-" help:"Exit with code 1, and say why, when a node or group has a problem or a group lacks a replica."`
}

// Run prints the status.
func (c *clusterStatus) Run(s *session) error {
	status, text, err := s.clusterStatus()
	if err != nil {
		return err
	}
	if wasRemoved(status) { // nobody tells it anything any more
		return fmt.Errorf("node %d answers, but was removed and no longer knows the cluster: ask another node",
			status.Node)
	}
	if s.JSON {
		err = s.printJSON(text)
	} else {
		err = printCluster(s.out, status)
	}
	if problems := clusterProblems(status); err == nil && c.Check && len(problems) > 0 {
		return errors.New(strings.Join(problems, "; "))
	}
	return err
}

// clusterStatus returns the status decoded, and as it was sent.
func (s *session) clusterStatus() (status placement.Status, text members, err error) {
	if text, err = s.do(http.MethodGet, path("cluster"), nil); err != nil {
		return status, nil, err
	}
	return status, text, text.into(&status)
}

// wasRemoved: the node that answers is out of the cluster.
func wasRemoved(status placement.Status) bool {
	return slices.ContainsFunc(status.Nodes, func(n placement.NodeStatus) bool {
		return n.Node == status.Node && n.State == placement.Removed
	})
}

func clusterProblems(status placement.Status) (list []string) {
	removed := map[quorum.Node]bool{}
	for _, n := range status.Nodes {
		if n.Problem != "" {
			list = append(list, fmt.Sprintf("node %d %s", n.Node, n.Problem))
		}
		removed[n.Node] = n.State == placement.Removed
	}
	groups := map[string][]string{} // by their problem, which is often the same for many
	var problems []string
	for _, g := range append([]placement.GroupStatus{status.Control}, status.Groups...) {
		problem := g.Problem
		if problem == "" {
			problem = missingReplicas(g, status.Replicas, removed)
		}
		if problem == "" {
			continue
		}
		if groups[problem] == nil {
			problems = append(problems, problem)
		}
		groups[problem] = append(groups[problem], strconv.FormatUint(uint64(g.Group), 10))
	}
	for _, problem := range problems {
		name := "group "
		if len(groups[problem]) > 1 {
			name = "groups "
		}
		list = append(list, name+strings.Join(groups[problem], ", ")+": "+problem)
	}
	return list
}

// missingReplicas says that a group has fewer replicas that could replace the others than are wanted; "" when it has
// enough. Of the control group each node shall have one, and few of them vote. Replicas of removed nodes don't count.
func missingReplicas(g placement.GroupStatus, wanted int, removed map[quorum.Node]bool) string {
	isControl := g.Group == 0
	replicas := slices.DeleteFunc(slices.Clone(g.Replicas),
		func(r placement.ReplicaStatus) bool { return removed[r.Node] })
	if isControl {
		wanted = len(replicas)
	}
	var why []string
	for _, r := range replicas {
		behind := max(r.CommitLag, r.ApplyLag)
		switch {
		case r.Role == "coming":
			why = append(why, fmt.Sprintf("node %d has none yet", r.Node))
		case !r.Open:
			why = append(why, fmt.Sprintf("node %d does not answer", r.Node))
		case !r.Voter && !isControl:
			why = append(why, fmt.Sprintf("node %d has no vote yet", r.Node))
		case behind > maxLag:
			why = append(why, fmt.Sprintf("node %d is %d entries behind", r.Node, behind))
		}
	}
	have := len(replicas) - len(why)
	if have >= wanted {
		return ""
	}
	if g.Doing != "" {
		why = append(why, g.Doing)
	}
	problem := fmt.Sprintf("%d of %d replicas are in sync: %s", have, wanted, strings.Join(why, ", "))
	return strings.TrimSuffix(problem, ": ")
}

// maxLag is how many entries a replica may lag and still replace the others within moments: some entries are always
// under way.
const maxLag = 1000

type clusterAdd struct {
	Node    uint32 `arg:"" help:"Number of the node, 1 or higher, that no node has had before."`
	Address string `arg:"" optional:"" help:"HOST:PORT between nodes (--raft of the new node). Optional for a known node."`
}

// Run adds the node. Of one that is known it says what has become of it.
func (c *clusterAdd) Run(s *session) error {
	body := map[string]any{"node": c.Node, "address": c.Address}
	return s.sayOf(http.MethodPost, path("cluster", "nodes"), body, func(answer members) string {
		switch answer.text("what") {
		case placement.NodeAdded:
			return fmt.Sprintf("node %d is added; start it with --node %d, and the other nodes in --members", c.Node,
				c.Node)
		case placement.AddressChanged:
			return fmt.Sprintf("node %d was already known: its address is changed; restart it with --raft %s", c.Node,
				printable(c.Address))
		case placement.DrainTakenBack:
			return fmt.Sprintf("node %d was already known: its drain is cancelled", c.Node)
		}
		return fmt.Sprintf("node %d was already known; nothing has changed", c.Node)
	})
}

type clusterDrain struct {
	Node uint32 `arg:"" help:"Its number."`
	Wait bool   `env:"-" help:"Wait until the node has no groups left."`
}

// drainInterval is the time between two checks of a node that drains.
const drainInterval = 2 * time.Second

// Run drains the node.
func (c *clusterDrain) Run(s *session) error {
	if err := s.say(http.MethodPost, path("cluster", "nodes", strconv.FormatUint(uint64(c.Node), 10), "drain"), nil,
		"node %d is draining", c.Node); err != nil || !c.Wait {
		return err
	}
	var told []string // what is in the way; many groups say the same
	for said := -1; ; {
		status, _, err := s.clusterStatus()
		if err != nil {
			return err
		}
		for _, n := range status.Nodes {
			switch {
			case n.Node != quorum.Node(c.Node):
			case n.State == placement.Drained:
				_, err = fmt.Fprintf(s.out, "node %d is drained\n", c.Node)
				return err
			case n.State != placement.Draining:
				return fmt.Errorf("node %d is %s", c.Node, n.State)
			case n.Holds != said:
				said = n.Holds
				fmt.Fprintf(s.out, "node %d: %d groups left to move\n", c.Node, said)
			}
		}
		for _, g := range status.Groups {
			if g.Problem != "" && !slices.Contains(told, g.Problem) && holds(g, quorum.Node(c.Node)) {
				told = append(told, g.Problem)
				fmt.Fprintf(s.out, "group %d waits: %s\n", g.Group, printable(g.Problem))
			}
		}
		if err := pause.For(s.ctx, drainInterval); err != nil {
			return err
		}
	}
}

func holds(g placement.GroupStatus, node quorum.Node) bool {
	return slices.ContainsFunc(g.Replicas, func(r placement.ReplicaStatus) bool { return r.Node == node })
}

type clusterRemove struct {
	Node  uint32 `arg:"" help:"Its number."`
	Force bool   `env:"-" help:"Remove a lost node that isn't drained. Refused when the node answers, or when a group would be left without a majority."`
}

// Run removes the node. Of one that had groups it says that they need another node.
func (c *clusterRemove) Run(s *session) error {
	p := path("cluster", "nodes", strconv.FormatUint(uint64(c.Node), 10))
	if c.Force {
		p += "?force=true"
	}
	if err := s.say(http.MethodDelete, p, nil, "node %d is removed", c.Node); err != nil || !c.Force || s.JSON {
		return err
	}
	status, _, err := s.clusterStatus()
	if err != nil { // the node is removed all the same
		return nil
	}
	short := slices.DeleteFunc(status.Groups,
		func(g placement.GroupStatus) bool { return !holds(g, quorum.Node(c.Node)) })
	if len(short) > 0 {
		_, err = fmt.Fprintf(s.out, "groups that lack a replica until another node takes over: %d. Add a node if "+
			"there is none to spare; millrace cluster status shows the progress\n", len(short))
	}
	return err
}

// printCluster prints the status for people: a table of nodes, and one of groups.
func printCluster(out io.Writer, status placement.Status) error {
	fmt.Fprintf(out, "cluster %s, %d replicas per group; as seen by node %d\n\n", printable(status.Cluster),
		status.Replicas, status.Node)
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	line := func(cells ...string) {
		for i, c := range cells {
			if cells[i] = printable(c); c == "" {
				cells[i] = "-"
			}
		}
		fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	line("NODE", "STATE", "ALIVE", "SEEN", "LEADS", "HOLDS", "ADDRESS", "API", "VERSION", "PROBLEM")
	for _, n := range status.Nodes {
		line(fmt.Sprint(n.Node), string(n.State), yesNo(n.Alive), since(n.Seen, status.Time), fmt.Sprint(n.Leads),
			fmt.Sprint(n.Holds), n.Address, n.API, n.Program, n.Problem)
	}
	fmt.Fprintln(w)
	line("GROUP", "PARTITIONS", "LEADER", "TERM", "REPLICAS", "STATE")
	for _, g := range append([]placement.GroupStatus{status.Control}, status.Groups...) {
		name, of, leader, state := "control", "", "", g.Doing
		if g.Group != 0 {
			name, of = fmt.Sprint(g.Group), fmt.Sprintf("%d-%d", g.First, g.First+g.Count-1)
		}
		if g.Leader != 0 {
			leader = fmt.Sprint(g.Leader)
		}
		if g.Problem != "" {
			state = g.Problem
		}
		line(name, of, leader, fmt.Sprint(g.Term), replicaCells(g.Replicas), state)
	}
	return w.Flush()
}

// replicaCells describes the replicas of a group: "1* 2 3?(lag 4,70) 4~ 5+ 6-".
func replicaCells(list []placement.ReplicaStatus) string {
	cells := make([]string, len(list))
	for i, r := range list {
		mark := map[string]string{"leader": "*", "learner": "~", "coming": "+"}[r.Role]
		if r.Leaving {
			mark += "-"
		}
		if !r.Open {
			mark += "?"
		} else if r.CommitLag > 0 || r.ApplyLag > 0 {
			mark += fmt.Sprintf("(lag %d,%d)", r.CommitLag, r.ApplyLag)
		}
		cells[i] = fmt.Sprintf("%d%s", r.Node, mark)
	}
	return strings.Join(cells, " ")
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// since returns how long ago something was, roughly; "" for never.
func since(t, now time.Time) string {
	switch ago := max(now.Sub(t), 0); {
	case t.IsZero():
		return ""
	case ago < time.Minute:
		return ago.Truncate(time.Second).String()
	case ago < time.Hour:
		return fmt.Sprintf("%dm", ago/time.Minute)
	case ago < 48*time.Hour:
		return fmt.Sprintf("%dh", ago/time.Hour)
	default:
		return fmt.Sprintf("%dd", ago/(24*time.Hour))
	}
}
