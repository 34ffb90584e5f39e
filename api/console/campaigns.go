package console

import (
	"maps"
	"net/http"
	"slices"
)

const (
	campaignsPath = workspacePath + "/campaigns"
	campaignPath  = campaignsPath + "/{campaign}"
	canvasPath    = workspacePath + "/canvases/{canvas}"
)

// named is a campaign or a canvas, or the part of something else that has its id and name.
type named struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

// Title is the name, or the id when there is no name.
func (n named) Title() string {
	if n.Name != "" {
		return n.Name
	}
	return n.ID
}

// message is a message with its texts and their translations.
type message struct {
	named
	Channel      string            `json:"channel"`
	Source       map[string]string `json:"source"`
	Translations []translation     `json:"translations"`
}

type translation struct {
	Locale struct {
		Name     string `json:"name"`
		Country  string `json:"country"`
		Language string `json:"language"`
	} `json:"locale"`
	Map map[string]string `json:"translation_map"`
}

// step is a step of a canvas; a campaign is shown as a step without a name.
type step struct {
	named
	Messages []message `json:"messages"`
}

// textRow is one text, in all languages.
type textRow struct {
	ID     string
	Source string
	Texts  []string // in the order of the message's translations; empty: the text has no such translation
}

// Rows are the texts of a message side by side.
func (m message) Rows() (rows []textRow) {
	ids := map[string]bool{}
	for id := range m.Source {
		ids[id] = true
	}
	for _, t := range m.Translations {
		for id := range t.Map {
			ids[id] = true
		}
	}
	for _, id := range slices.Sorted(maps.Keys(ids)) {
		row := textRow{ID: id, Source: m.Source[id]}
		for _, t := range m.Translations {
			row.Texts = append(row.Texts, t.Map[id])
		}
		rows = append(rows, row)
	}
	return rows
}

// showCampaigns serves GET …/campaigns: campaigns and canvases.
func (c *Console) showCampaigns(v *visit) error {
	var data struct {
		Campaigns []named `json:"campaigns"`
		Canvases  []named `json:"canvases"`
	}
	for _, name := range []string{"campaigns", "canvases"} {
		if err := v.call(http.MethodGet, v.of(name), nil, &data); err != nil {
			return err
		}
	}
	return v.render("campaigns", "Campaigns", data)
}

// showCampaign serves GET …/campaigns/{campaign}: its texts and their translations.
func (c *Console) showCampaign(v *visit) error {
	var campaign step
	if err := v.call(http.MethodGet, v.of("campaigns", v.r.PathValue("campaign")), nil, &campaign); err != nil {
		return err
	}
	return v.render("translations", campaign.Title(), []step{{Messages: campaign.Messages}})
}

// showCanvas serves GET …/canvases/{canvas}.
func (c *Console) showCanvas(v *visit) error {
	var canvas struct {
		named
		Steps []step `json:"steps"`
	}
	if err := v.call(http.MethodGet, v.of("canvases", v.r.PathValue("canvas")), nil, &canvas); err != nil {
		return err
	}
	return v.render("translations", canvas.Title(), canvas.Steps)
}
