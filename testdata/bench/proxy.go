package main

import (
	"net/http"
	"net/http/httputil"
	"net/url"
	"time"
)

// proxy is what a gateway is compared with: the standard library's reverse proxy, which does nothing but pass calls on. Its
// transport keeps a connection for every client, as the gateway's does; without that it would be a poor yardstick.
func proxy(upstream *url.URL) http.Handler {
	return &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(upstream) },
		Transport: &http.Transport{
			MaxIdleConns: 8192, MaxIdleConnsPerHost: 4096, // more than there are clients
			IdleConnTimeout: time.Minute, DisableCompression: true,
		},
	}
}
