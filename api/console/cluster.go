package console

import (
	"net/http"
	"strconv"

	"millrace/api/admin/answers"
	"millrace/shard/cluster/placement"
)

// clusterStatus is what the admin API says of a cluster.
type clusterStatus struct{ placement.Status }

// All lists the control group and the others.
func (s *clusterStatus) All() []placement.GroupStatus {
	return append([]placement.GroupStatus{s.Control}, s.Groups...)
}

// readCluster asks for it; nil: the server is alone.
func (v *visit) readCluster() (*clusterStatus, error) {
	status := new(clusterStatus)
	err := v.call(http.MethodGet, "/admin/cluster", nil, status)
	switch {
	case isNotFound(err):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return status, nil
}

// showCluster serves GET /console/cluster.
func (c *Console) showCluster(v *visit) error {
	status, err := v.readCluster()
	switch {
	case err != nil:
		return err
	case status == nil:
		return v.render("cluster", "Cluster", nil)
	}
	return v.render("cluster", "Cluster", status)
}

const clusterPath = "/console/cluster"

// addNode serves POST /console/cluster/nodes.
func (c *Console) addNode(v *visit) error {
	number, err := strconv.ParseUint(v.form("node"), 10, 32)
	if err != nil {
		return v.retry(bad("The node's number must be 1 or higher."), c.showCluster)
	}
	body := map[string]any{"node": number, "address": v.form("address")}
	var answer answers.ClusterChange
	if err := v.call(http.MethodPost, "/admin/cluster/nodes", body, &answer); err != nil {
		return v.retry(err, c.showCluster)
	}
	if answer.What != placement.NodeAdded {
		return v.redirect(clusterPath, "node-known")
	}
	return v.redirect(clusterPath, "node-added")
}

// removeNode serves POST /console/cluster/nodes/{node}/remove.
func (c *Console) removeNode(v *visit) error {
	target := answers.Path("admin", "cluster", "nodes", v.r.PathValue("node"))
	if v.form("force") != "" {
		target += "?force=true"
	}
	return v.change(http.MethodDelete, target, nil, c.showCluster, clusterPath, "node-removed")
}
