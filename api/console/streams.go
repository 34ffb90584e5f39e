package console

import (
	"net/http"
	"strings"
	"time"

	"millrace/api/admin/answers"
	"millrace/api/console/rights"
	"millrace/api/control/document"
)

const (
	streamsPath   = workspacePath + "/streams"
	oneStreamPath = streamsPath + "/{stream}"
)

// stream is a stream, and how far it has come.
type stream struct {
	document.Stream
	Status *answers.StreamStatus
}

// Where names the destination in short.
func (s stream) Where() string {
	d := s.Destination
	switch d.Type {
	case document.DestinationS3:
		return strings.TrimSuffix(d.Bucket+"/"+d.Prefix, "/")
	case document.DestinationHTTP:
		return d.URL
	case document.DestinationKafka:
		return d.Topic + " at " + d.Brokers
	}
	return d.Path
}

// Lag is how long the oldest event that is still to be sent has waited; empty when none waits.
func (s stream) Lag() string {
	if s.Status.LagEvents == 0 {
		return ""
	}
	return (time.Duration(s.Status.LagSeconds) * time.Second).String()
}

// showStreams serves GET …/streams.
func (c *Console) showStreams(v *visit) error {
	list, err := listOf[stream](v, v.of("streams"))
	if err != nil {
		return err
	}
	for i := range list {
		s := &list[i]
		status := new(answers.StreamStatus)
		switch err := v.call(http.MethodGet, v.of("streams", s.ID, "status"), nil, status); {
		case err == nil:
			s.Status = status
		case isNotFound(err): // it was removed meanwhile
		default:
			return err
		}
		if !v.may(rights.ChangeSettings | rights.SeePersonal) {
			s.conceal()
		}
	}
	return v.render("streams", "Streams", list)
}

// conceal takes out what not everybody who sees the workspace may see: the query of a URL may hold a key to it, and a
// destination that refuses an event may quote it.
func (s *stream) conceal() {
	if before, _, has := strings.Cut(s.Destination.URL, "?"); has {
		s.Destination.URL = before + "?" + mask
	}
	if s.Status != nil && s.Status.Error != "" {
		s.Status.Error = mask
	}
}
