package console

import (
	"cmp"
	"net/http"

	"millrace/api/admin/answers"
	"millrace/api/control/document"
)

const (
	campaignsPath = workspacePath + "/campaigns"
	campaignPath  = campaignsPath + "/{campaign}"
	canvasPath    = workspacePath + "/canvases/{canvas}"
)

// showCampaigns serves GET …/campaigns: campaigns and canvases.
func (c *Console) showCampaigns(v *visit) error {
	var data struct {
		Campaigns                   []answers.CampaignSummary
		Canvases                    []answers.CanvasSummary
		MoreCampaigns, MoreCanvases string // where the next page begins
	}
	query := v.r.URL.Query()
	var err error
	if data.Campaigns, data.MoreCampaigns, err = pageOf[answers.CampaignSummary](v, v.of("campaigns"), shownPage,
		query.Get("campaigns")); err != nil {
		return err
	}
	if data.Canvases, data.MoreCanvases, err = pageOf[answers.CanvasSummary](v, v.of("canvases"), shownPage,
		query.Get("canvases")); err != nil {
		return err
	}
	return v.render("campaigns", "Campaigns", data)
}

// showCampaign serves GET …/campaigns/{campaign}: its texts and their translations.
func (c *Console) showCampaign(v *visit) error {
	var campaign document.Campaign
	if err := v.call(http.MethodGet, v.of("campaigns", v.r.PathValue("campaign")), nil, &campaign); err != nil {
		return err
	}
	return v.render("translations", cmp.Or(campaign.Name, campaign.ID),
		[]document.Step{{Messages: campaign.Messages}})
}

// showCanvas serves GET …/canvases/{canvas}.
func (c *Console) showCanvas(v *visit) error {
	var canvas document.Canvas
	if err := v.call(http.MethodGet, v.of("canvases", v.r.PathValue("canvas")), nil, &canvas); err != nil {
		return err
	}
	return v.render("translations", cmp.Or(canvas.Name, canvas.ID), canvas.Steps)
}
