package bundles

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"regent/adapters/upstream"
	"regent/engine/policy"
	"regent/engine/tarball"
)

// limits are how long another side may take.
type limits struct {
	connect time.Duration // and for the handshake of TLS
	header  time.Duration
	whole   time.Duration // for everything, redirects and credentials included
}

var patience = limits{
	connect: 10 * time.Second, // a server that cannot be reached in this time is down
	header:  15 * time.Second, // a bundle is a file: nothing has to be computed
	whole:   45 * time.Second, // 32 MiB over a line of 6 Mbit/s; who reloads waits for so long at most
}

const (
	redirectsMax   = 5         // two are usual: to TLS, and to where files are kept
	headerBytesMax = 256 << 10 // several times what any server sends
	userAgent      = "regent"  // for the other side's log
)

// newClient makes a client that reaches private addresses, where most organisations keep their policy, but never a metadata service.
func newClient(limits limits) *http.Client {
	dialer := &net.Dialer{Timeout: limits.connect, Control: upstream.Guard(true)}
	return &http.Client{
		Transport: &http.Transport{
			Proxy:                  nil, // a proxy of the environment would be connected to in place of the server
			DialContext:            dialer.DialContext,
			TLSHandshakeTimeout:    limits.connect,
			ResponseHeaderTimeout:  limits.header,
			MaxResponseHeaderBytes: headerBytesMax,
			DisableCompression:     true, // what is sent is compressed by itself
			DisableKeepAlives:      true, // a poll a minute gains nothing by a connection that is kept
		},
		CheckRedirect: follow,
	}
}

// follow decides on a redirect. A credential is for the server that was named, on its port, and not for one that it sends to; nor
// does that one learn the address that was asked for, whose query may be secret.
func follow(next *http.Request, before []*http.Request) error {
	next.Header.Del("Referer")
	for _, hop := range append(before[1:len(before):len(before)], next) {
		if hop.URL.Scheme != before[0].URL.Scheme || hop.URL.Host != before[0].URL.Host {
			next.Header.Del("Authorization")
		}
	}
	switch last := before[len(before)-1]; {
	case len(before) > redirectsMax:
		return wrong(ErrRedirect, "name the address where the bundle is", "more than %d times", redirectsMax)
	case next.URL.Scheme != "https" && next.URL.Scheme != "http":
		return wrong(ErrRedirect, "name the address where the bundle is", "to what is neither http nor https")
	case last.URL.Scheme == "https" && next.URL.Scheme == "http":
		return wrong(ErrRedirect, "name the address where the bundle is", "from https to http")
	}
	return nil
}

// address is a tarball on a web server.
type address struct {
	url, credential string
	limits          limits
	client          *http.Client
	etag            string // of what was fetched last; empty if it had none
}

func newAddress(url, credential string, limits limits) *address {
	return &address{url: url, credential: credential, limits: limits, client: newClient(limits)}
}

func (a *address) fetch(ctx context.Context, _ bool) (*tarball.Tree, error) {
	ctx, cancel := context.WithTimeout(ctx, a.limits.whole)
	defer cancel()
	found, err := a.get(ctx)
	if err != nil {
		return nil, at(withoutSecrets(a.url), err)
	}
	return found, nil
}

// withoutSecrets is an address as it may be shown.
func withoutSecrets(text string) string {
	shown, err := url.Parse(text)
	if err != nil {
		return "an address that is none"
	}
	return (&url.URL{Scheme: shown.Scheme, Host: shown.Host, Path: shown.Path}).String()
}

func (a *address) get(ctx context.Context) (*tarball.Tree, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, a.url, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("User-Agent", userAgent)
	if a.credential != "" {
		request.Header.Set("Authorization", "Bearer "+a.credential)
	}
	if a.etag != "" {
		request.Header.Set("If-None-Match", a.etag)
	}
	response, err := a.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }() // it was only read
	switch {
	case response.StatusCode == http.StatusNotModified && a.etag != "":
		return nil, nil
	case response.StatusCode != http.StatusOK:
		return nil, refused(response.StatusCode)
	}
	body, err := readBody(response)
	if err != nil {
		return nil, err
	}
	found, err := tarball.Read(strings.NewReader(body), most)
	if err != nil {
		return nil, err
	}
	a.etag = response.Header.Get("ETag") // only of a bundle: whatever is none has to be sent again
	return found, nil
}

// readBody reads a tarball as it is sent.
func readBody(response *http.Response) (string, error) {
	tooLarge := wrong(ErrTooLarge, "move data out of it", "it is larger than %d bytes", policy.MaxBundleBytes)
	if response.ContentLength > policy.MaxBundleBytes {
		return "", tooLarge
	}
	var body strings.Builder
	n, err := io.Copy(&body, io.LimitReader(response.Body, policy.MaxBundleBytes+1))
	if n > policy.MaxBundleBytes {
		return "", tooLarge
	}
	return body.String(), err
}

// refused is an answer that is none.
func refused(code int) *Error {
	status := &StatusError{Code: code}
	return &Error{Err: status, Remedy: status.remedy()}
}

// at places an error of a client. Of what is not ours only the kind is told: its text may hold whatever the other side has said, such
// as the credential that it was shown.
func at(where string, err error) error {
	found := cmp.Or(own(err), kindOf(err))
	return &Error{Where: where, Err: found.Err, Remedy: found.Remedy}
}

func kindOf(err error) *Error {
	var name *net.DNSError
	var slow net.Error
	var authority x509.UnknownAuthorityError
	var host x509.HostnameError
	var certificate *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	switch {
	case errors.Is(err, upstream.ErrAddress):
		return wrong(ErrUnreachable, "name a server that may be reached", "its address is link-local or that of a metadata service")
	case errors.As(err, &name) && !name.IsTimeout:
		return wrong(ErrUnreachable, "see whether the name is right", "the server's name is not found")
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &slow) && slow.Timeout():
		return &Error{Err: ErrSlow, Remedy: "see what keeps the other side; it is asked again"}
	case errors.As(err, &authority):
		return wrong(ErrUnreachable, "trust the authority on this machine", "the server's certificate is signed by an unknown authority")
	case errors.As(err, &host):
		return wrong(ErrUnreachable, "name the server as its certificate does", "the server's certificate is that of another name")
	case errors.As(err, &certificate):
		return wrong(ErrUnreachable, "see whether it has expired", "the server's certificate is not accepted")
	case errors.As(err, &record), errors.Is(err, http.ErrSchemeMismatch):
		return wrong(ErrUnreachable, "see whether the address is right", "the server does not speak TLS")
	case errors.Is(err, syscall.ECONNREFUSED):
		return wrong(ErrUnreachable, "see whether the server runs", "it is refused")
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return wrong(ErrUnreachable, "the other side is at fault; it is asked again", "it broke")
	}
	return &Error{Err: ErrNotUnderstood, Remedy: "see whether the address and the credential are right"}
}
