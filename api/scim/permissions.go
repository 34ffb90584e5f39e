package scim

import (
	"slices"
	"strings"
)

// Names that the protocol knows: reference.md 8. There may be others, which are kept.
var (
	companyPermissions = []string{"admin", "manage_company_settings", "add_remove_app_groups"}

	appGroupPermissions = expand(
		"admin basic_access approve_deny_campaigns approve_deny_canvases send_campaigns_canvases publish_cards "+
			"edit_segments export_user_data view_pii view_user_profile",
		"manage_dashboard_users manage_media_library view_usage_data import_update_user_data view_billing_details "+
			"dev_console launch_content_blocks",
		"manage_external_integrations manage_apps manage_teams manage_events_attributes_purchases manage_tags "+
			"manage_email_settings manage_subscription_groups",
		"manage_approval_settings manage_catalogs_dashboard_permission",
		"view,edit,archive:campaigns,canvases,content_blocks,feature_flags,segments,iam_templates,"+
			"email_templates,webhook_templates,locations,placements,teams",
		"view,edit:frequency_caps,message_prioritization,global_control_group,link_templates,preference_centers,"+
			"api_keys,api_usage_alerts,sdk_debugger",
		"view,edit:app_settings,push_settings,email_settings",
		"view,edit,export:promotion_codes view,edit,export,delete:catalogs view,edit,delete:internal_user_groups,tags",
		"view,edit,blocklist,delete,export:custom_attributes,custom_events view,edit,blocklist:products "+
			"view,edit,delete:media_library_assets",
		"view:decisioning_studio_agents,decisioning_studio_audience,decisioning_studio_conversion_event,"+
			"decisioning_studio_guardrails",
		"edit_reports view_banner_templates view_multi_language_settings use_operator launch_campaigns "+
			"launch_canvases edit_dashboard_users view_import_users",
		"import_users edit_user_data view_user_merge_records merge_duplicate_users view_message_activity_log "+
			"view_event_user_log view_api_identifiers",
		"view_api_usage_dashboard view_api_limits edit_cloud_data_ingestion edit_custom_event_property_segmentation "+
			"edit_purchase_property_segmentation",
		"view_whatsapp_settings edit_technology_partners",
	)

	teamPermissions = expand(
		"admin basic_access approve_deny_campaigns approve_deny_canvases send_campaigns_canvases publish_cards "+
			"edit_segments export_user_data view_user_profile",
		"manage_dashboard_users manage_media_library",
		"view,edit,archive:campaigns,canvases,feature_flags,iam_templates,email_templates,webhook_templates,locations",
		"view,edit:frequency_caps,message_prioritization,link_templates,preference_centers,segments "+
			"view,edit,export:promotion_codes",
		"view_content_blocks edit_global_control_group view_media_library_assets view_reports create_reports "+
			"edit_reports view_banner_templates",
		"view_multi_language_settings use_operator view_decisioning_studio_agents launch_campaigns launch_canvases "+
			"edit_dashboard_users",
	)
)

// expand reads lists of names; "view,edit:tags,teams" stands for view_tags, edit_tags, view_teams and edit_teams.
func expand(lists ...string) (names []string) {
	for word := range strings.FieldsSeq(strings.Join(lists, " ")) {
		verbs, nouns, several := strings.Cut(word, ":")
		if !several {
			names = append(names, word)
			continue
		}
		for noun := range strings.SplitSeq(nouns, ",") {
			for verb := range strings.SplitSeq(verbs, ",") {
				names = append(names, verb+"_"+noun)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func isCompanyPermission(name string) bool { return slices.Contains(companyPermissions, name) }

func isAppGroupPermission(name string) bool {
	_, found := slices.BinarySearch(appGroupPermissions, name)
	return found
}

func isTeamPermission(name string) bool {
	_, found := slices.BinarySearch(teamPermissions, name)
	return found
}
