package adaptertest

import (
	"io"
	"net/http"
)

// Canned is a client without a network: what it sends is answered with a success of this media type and body, once.
func Canned(media string, body io.Reader) *http.Client {
	return &http.Client{Transport: &canned{media, body}}
}

type canned struct {
	media string
	body  io.Reader
}

// RoundTrip answers. It reads the request as a transport does.
func (c *canned) RoundTrip(request *http.Request) (*http.Response, error) {
	if _, err := io.Copy(io.Discard, request.Body); err != nil {
		return nil, err
	}
	return &http.Response{
		Status: "200 OK", StatusCode: http.StatusOK, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Content-Type": {c.media}}, Body: io.NopCloser(c.body), ContentLength: -1, Request: request,
	}, nil
}
