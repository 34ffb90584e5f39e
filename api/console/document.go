package console

// showAPI serves GET /console/api: the page about the public API.
func (c *Console) showAPI(v *visit) error {
	c.options.Document.ServeHTTP(v.w, v.r)
	return nil
}
