package signin

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestProviderSettings(t *testing.T) {
	good := Provider{Issuer: "https://idp.example", ClientID: "c", URL: "https://console.example.com"}
	require.NoError(t, good.validate())
	for _, edit := range []func(*Provider){
		func(p *Provider) { p.Issuer = "http://idp.example" }, func(p *Provider) { p.Issuer = "idp.example" }, func(p *Provider) { p.URL = "" },
		func(p *Provider) { p.URL = "http://console.example.com" }, func(p *Provider) { p.URL = "https://console.example.com?x" }, func(p *Provider) { p.ClientID = "" },
	} {
		p := good
		edit(&p)
		require.Error(t, p.validate(), "%+v", p)
	}
}
