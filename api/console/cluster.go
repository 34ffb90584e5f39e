package console

import (
	"net/http"
	"strconv"
	"time"
)

// clusterStatus is what the admin API says of a cluster, as far as the pages show it.
type clusterStatus struct {
	Cluster  string    `json:"cluster"`
	Node     uint32    `json:"node"`
	Time     time.Time `json:"time"`
	Replicas int       `json:"replicas"`
	Control  group     `json:"control"`
	Nodes    []node    `json:"nodes"`
	Groups   []group   `json:"groups"`
}

type node struct {
	Node    uint32    `json:"node"`
	State   string    `json:"state"`
	Address string    `json:"address"`
	API     string    `json:"api"`
	Program string    `json:"version"`
	Alive   bool      `json:"alive"`
	Seen    time.Time `json:"seen"`
	Leads   int       `json:"leads"`
	Holds   int       `json:"holds"`
	Problem string    `json:"problem"`
}

type group struct {
	Group    uint32    `json:"group"`
	First    int       `json:"first"`
	Count    int       `json:"count"`
	Leader   uint32    `json:"leader"`
	Term     uint64    `json:"term"`
	Replicas []replica `json:"replicas"`
	Doing    string    `json:"doing"`
	Problem  string    `json:"problem"`
}

type replica struct {
	Node      uint32 `json:"node"`
	Role      string `json:"role"`
	Leaving   bool   `json:"leaving"`
	Open      bool   `json:"open"`
	CommitLag uint64 `json:"commit_lag"`
	ApplyLag  uint64 `json:"apply_lag"`
}

// Last is the last of the group's partitions.
func (g group) Last() int { return g.First + g.Count - 1 }

// All lists the control group and the others.
func (s *clusterStatus) All() []group { return append([]group{s.Control}, s.Groups...) }

// showCluster serves GET /console/cluster.
func (c *Console) showCluster(v *visit) error {
	var data overviewData
	if err := data.readCluster(v); err != nil {
		return err
	}
	if data.Cluster == nil {
		return v.render("cluster", "Cluster", nil)
	}
	return v.render("cluster", "Cluster", data.Cluster)
}

const clusterPath = "/console/cluster"

// addNode serves POST /console/cluster/nodes.
func (c *Console) addNode(v *visit) error {
	number, err := strconv.ParseUint(v.form("node"), 10, 32)
	if err != nil {
		return v.retry(bad("The node's number must be one from 1 on."), c.showCluster)
	}
	body := map[string]any{"node": number, "address": v.form("address")}
	var answer struct {
		What string `json:"what"`
	}
	if err := v.call(http.MethodPost, "/admin/cluster/nodes", body, &answer); err != nil {
		return v.retry(err, c.showCluster)
	}
	if answer.What != "node added" {
		return v.redirect(clusterPath, "node-known")
	}
	return v.redirect(clusterPath, "node-added")
}

// removeNode serves POST /console/cluster/nodes/{node}/remove.
func (c *Console) removeNode(v *visit) error {
	target := path("admin", "cluster", "nodes", v.r.PathValue("node"))
	if v.form("force") != "" {
		target += "?force=true"
	}
	return v.change(http.MethodDelete, target, nil, c.showCluster, clusterPath, "node-removed")
}
