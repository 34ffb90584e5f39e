package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"millrace/api"
	"millrace/wal/pause"
)

// When the server's certificates expire: a metric, and warnings in the log.

// certificates are those in use.
type certificates []usedCertificate

// usedCertificate is one that this process shows to others, by whom and by what it is judged.
type usedCertificate struct {
	use string // what it is for, as metric and log say it
	*api.TLS
	authority *x509.CertPool // nil: those that clients know, which the server doesn't
}

// gauges shows among the metrics when each certificate expires.
func (cs certificates) gauges() {
	metrics.RegisterMetricsWriter(func(w io.Writer) {
		for _, c := range cs {
			name := fmt.Sprintf(`millrace_certificate_expiry_time_seconds{use=%q}`, c.use)
			metrics.WriteGaugeUint64(w, name, uint64(max(0, c.expiry().Unix())))
		}
	})
}

// expiryNotice is how long ahead the log warns of a certificate that expires. What renews certificates by itself mostly
// does so a month ahead, so a warning means that something has failed.
const expiryNotice = 14 * 24 * time.Hour

// watchExpiry warns once a day, until stop is closed.
func (cs certificates) watchExpiry(stop <-chan struct{}, logger *slog.Logger) {
	for range pause.Every(24*time.Hour, stop) {
		cs.warnOfExpiry(logger)
	}
}

// warnOfExpiry logs which certificates have expired or soon will have.
func (cs certificates) warnOfExpiry(logger *slog.Logger) {
	for _, c := range cs {
		expiry := c.expiry()
		if left := time.Until(expiry); left < expiryNotice {
			logger.Warn("a certificate in use expires, or one of its chain: renew it and send SIGHUP", "use", c.use,
				"expires", expiry.UTC(), "days_left", int(left/(24*time.Hour)))
		}
	}
}

// expiry returns when others begin to refuse the certificate: when the first of its chain expires. An authority that is
// known belongs to the chain, and may have several certificates that prove this one.
func (c usedCertificate) expiry() time.Time {
	own := c.Certificate()
	sent := chain(own)
	if c.authority == nil {
		return firstExpiry(sent)
	}
	proofs, err := prove(own, c.authority, x509.ExtKeyUsageAny)
	if err != nil { // what proved it has expired meanwhile
		return slices.MinFunc([]time.Time{firstExpiry(sent), time.Now()}, time.Time.Compare)
	}
	var last time.Time
	for _, proof := range proofs {
		last = slices.MaxFunc([]time.Time{last, firstExpiry(proof)}, time.Time.Compare)
	}
	return last
}

func firstExpiry(chain []*x509.Certificate) time.Time {
	return slices.MinFunc(chain, func(a, b *x509.Certificate) int { return a.NotAfter.Compare(b.NotAfter) }).NotAfter
}

// chain returns the certificates that are sent to others, the own one first.
func chain(own *tls.Certificate) []*x509.Certificate {
	sent := []*x509.Certificate{own.Leaf}
	for _, der := range own.Certificate[1:] {
		if c, err := x509.ParseCertificate(der); err == nil {
			sent = append(sent, c)
		}
	}
	return sent
}

// prove returns the chains by which an authority proves a certificate for a usage.
func prove(own *tls.Certificate, authority *x509.CertPool, usage x509.ExtKeyUsage) ([][]*x509.Certificate, error) {
	intermediates := x509.NewCertPool()
	for _, c := range chain(own)[1:] {
		intermediates.AddCert(c)
	}
	return own.Leaf.Verify(x509.VerifyOptions{Roots: authority, Intermediates: intermediates,
		KeyUsages: []x509.ExtKeyUsage{usage}})
}
