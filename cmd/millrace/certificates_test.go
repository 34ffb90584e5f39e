package main

import (
	"crypto/x509"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/loadtest/testlog"
)

const day = 24 * time.Hour

// A certificate expires with the first of its chain. Of several proofs by the authority the longest one counts.
func TestExpiryOfACertificate(t *testing.T) {
	dir := t.TempDir()
	ca, between := newAuthority(t, dir, "ca"), newAuthority(t, dir, "between")
	c := serveCommand{TLSCert: filepath.Join(dir, "cert.pem"), TLSKey: filepath.Join(dir, "key.pem"), RaftCA: filepath.Join(dir, "all.pem")}
	c.RaftCert, c.RaftKey = c.TLSCert, c.TLSKey
	read := func(file string) []byte {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		return text
	}
	var trusted []byte
	trust := func(days int) {
		ca.renew(time.Now().Add(time.Duration(days) * day))
		trusted = append(trusted, read(ca.file)...)
		require.NoError(t, os.WriteFile(c.RaftCA, trusted, 0o600))
	}
	check := func(ofAPI, ofNodes int) {
		t.Helper()
		certificate, err := c.tls(slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		link, config, err := c.linkTLS()
		require.NoError(t, err)
		for want, used := range map[int]usedCertificate{ofAPI: {"api", certificate, nil}, ofNodes: {"nodes", link, config.RootCAs}} {
			require.WithinDuration(t, time.Now().Add(time.Duration(want)*day), used.expiry(), day/2, used.use)
		}
	}
	trust(20)
	ca.issue(10, c.TLSCert, c.TLSKey, expiringAfter(10*day))
	check(10, 10)
	ca.issue(11, c.TLSCert, c.TLSKey, expiringAfter(30*day))
	check(30, 20) // what clients know of the authority is their own affair
	trust(90)
	check(30, 30)
	between.renew(time.Now().Add(5 * day))
	require.NoError(t, os.WriteFile(c.TLSCert, slices.Concat(read(c.TLSCert), read(between.file)), 0o600))
	check(5, 30) // nodes don't need that one
}

// The log warns of a certificate once a day from two weeks before it expires, and when nothing proves it any more.
func TestWarningsOfExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		ca := newAuthority(t, dir, "ca")
		ca.renew(time.Now().Add(16*day + time.Hour))
		c := serveCommand{RaftCert: filepath.Join(dir, "cert.pem"), RaftKey: filepath.Join(dir, "key.pem"), RaftCA: ca.file}
		ca.issue(2, c.RaftCert, c.RaftKey, expiringAfter(30*day))
		link, config, err := c.linkTLS()
		require.NoError(t, err)
		log, stop := new(testlog.Buffer), make(chan struct{})
		go certificates{{"nodes", link, config.RootCAs}}.watchExpiry(stop, slog.New(slog.NewTextHandler(log, nil)))
		for passed := 1; passed <= 18; passed++ {
			time.Sleep(day)
			synctest.Wait()
			require.Equal(t, max(0, passed-2), strings.Count(log.String(), "use=nodes"), "day %d:\n%s", passed, log)
		}
		require.Contains(t, log.String(), "days_left=13")
		close(stop)
	})
}

func expiringAfter(d time.Duration) func(*x509.Certificate) {
	return func(c *x509.Certificate) { c.NotAfter = time.Now().Add(d) }
}
