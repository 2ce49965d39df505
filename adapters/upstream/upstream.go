// Package upstream makes the guarded HTTP clients by which adapters reach providers: which addresses may be connected to is
// decided at the moment of connecting, after names were resolved, so that no name can lead elsewhere.
//
// It retries nothing and follows no redirect: one call of a client is at most one request at a provider. That is why it speaks
// HTTP/1.1 alone: over HTTP/2 net/http sends a request again, on its own and without an end, when the other side resets it.
package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"syscall"
	"time"

	"regent/adapters"
)

const (
	dialTimeout      = 10 * time.Second // a provider that cannot be reached in this time is down for its caller
	handshakeTimeout = 10 * time.Second // likewise
	writeTimeout     = time.Minute      // for one write: a provider that takes nothing for so long will not answer either
	headerTimeout    = 5 * time.Minute  // a whole answer of a slow reasoning model arrives with its header
	idleTimeout      = 90 * time.Second // below the idle time-outs that providers use, so that they do not close first
	bodyIdle         = 5 * time.Minute  // the longest silence in a stream that is not a fault: a model that thinks
	connectionsIdle  = 256              // kept for the next calls: as many as a busy replica has streams to one provider
	headerBytesMax   = 256 << 10        // several times what any provider sends
	bufferSize       = 2 << 10          // for reading and for writing, of each connection: several events; a larger body goes past it
)

// BodyMax bounds an answer that is read as a whole: an image or two fit.
const BodyMax = 64 << 20

// Config configures a client.
type Config struct {
	// AllowPrivate accepts loopback, private and other non-public addresses. Link-local addresses and those where clouds keep
	// their metadata are never reached.
	AllowPrivate bool
}

// New makes a client.
func New(config Config) *http.Client {
	dialer := &net.Dialer{Timeout: dialTimeout, Control: Guard(config.AllowPrivate)}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return &http.Client{
		Transport: &http.Transport{
			Proxy: nil, // a proxy of the environment would be connected to in place of the provider
			DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				connection, err := dialer.DialContext(ctx, network, address)
				if err != nil {
					return nil, err
				}
				return &patience{connection, writeTimeout}, nil
			},
			Protocols:              protocols,
			TLSHandshakeTimeout:    handshakeTimeout,
			ResponseHeaderTimeout:  headerTimeout,
			IdleConnTimeout:        idleTimeout,
			WriteBufferSize:        bufferSize,
			ReadBufferSize:         bufferSize,
			MaxIdleConns:           connectionsIdle,
			MaxIdleConnsPerHost:    connectionsIdle,
			MaxResponseHeaderBytes: headerBytesMax,
			DisableCompression:     true, // bytes are relayed as they come
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// patience is a connection whose every write has to be taken in time: the transport's own limits begin when all is written.
type patience struct {
	net.Conn
	limit time.Duration
}

func (p *patience) Write(b []byte) (int, error) {
	if err := p.SetWriteDeadline(time.Now().Add(p.limit)); err != nil {
		return 0, err
	}
	return p.Conn.Write(b)
}

// ErrAddress is returned for a connection to an address that is not allowed.
var ErrAddress = errors.New("the upstream's address is not allowed")

// never are reached under no setting: link-local ranges, and where clouds keep their metadata and credentials.
var never = prefixes("169.254.0.0/16", "fe80::/10", "fd00:ec2::/32", "fd20:ce::/32", "fd00:42::42/128", "100.100.100.200/32",
	"168.63.129.16/32", "192.0.0.192/32")

// private need an administrator's leave, besides what netip knows as loopback and private.
var private = prefixes("0.0.0.0/8", "100.64.0.0/10", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "198.18.0.0/15",
	"198.51.100.0/24", "203.0.113.0/24", "240.0.0.0/4", "2001::/23", "2001:db8::/32", "3fff::/20")

// global holds all of IPv6 that is public, but for what is translated to IPv4 and judged by that.
var global = netip.MustParsePrefix("2000::/3")

func prefixes(texts ...string) []netip.Prefix {
	parsed := make([]netip.Prefix, 0, len(texts))
	for _, text := range texts {
		parsed = append(parsed, netip.MustParsePrefix(text))
	}
	return parsed
}

// Guard is the control of a [net.Dialer] that decides on each address it is about to connect to; see [Config].
func Guard(allowPrivate bool) func(network, address string, _ syscall.RawConn) error {
	return func(_, address string, _ syscall.RawConn) error { return check(address, allowPrivate) }
}

// check decides on an address that is about to be connected to.
func check(address string, allowPrivate bool) error {
	target, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("%w: %q is not an IP address and a port", ErrAddress, address)
	}
	for _, ip := range embedded(target.Addr()) {
		switch {
		case contains(never, ip), ip.IsLinkLocalUnicast(), ip.IsMulticast():
			return fmt.Errorf("%w: %s is link-local, multicast or a metadata service", ErrAddress, ip)
		case allowPrivate:
		case ip.IsLoopback(), ip.IsPrivate(), contains(private, ip), ip.Is6() && !global.Contains(ip) && !nat64.Contains(ip):
			return fmt.Errorf("%w: %s is not a public address (allow_private on the connection accepts it)", ErrAddress, ip)
		}
	}
	return nil
}

func contains(ranges []netip.Prefix, ip netip.Addr) bool {
	for _, prefix := range ranges {
		if prefix.Contains(ip) {
			return true
		}
	}
	return false
}

var (
	compatible = netip.MustParsePrefix("::/96")
	nat64      = netip.MustParsePrefix("64:ff9b::/96")
	nat64Local = netip.MustParsePrefix("64:ff9b:1::/48")
	sixToFour  = netip.MustParsePrefix("2002::/16")
)

// embedded lists an address and the IPv4 address that it carries, if it carries one.
func embedded(ip netip.Addr) []netip.Addr {
	ip = ip.Unmap().WithZone("")
	bytes := ip.As16()
	switch {
	case ip.Is4(), ip.IsLoopback(), ip.IsUnspecified():
	case compatible.Contains(ip), nat64.Contains(ip):
		return []netip.Addr{ip, netip.AddrFrom4([4]byte(bytes[12:16]))}
	case nat64Local.Contains(ip): // where the IPv4 address stands depends on the length of the gateway's prefix: 48, 56, 64 or 96
		return []netip.Addr{
			ip, netip.AddrFrom4([4]byte{bytes[6], bytes[7], bytes[9], bytes[10]}), netip.AddrFrom4([4]byte{bytes[7], bytes[9], bytes[10], bytes[11]}),
			netip.AddrFrom4([4]byte(bytes[9:13])), netip.AddrFrom4([4]byte(bytes[12:16])),
		}
	case sixToFour.Contains(ip):
		return []netip.Addr{ip, netip.AddrFrom4([4]byte(bytes[2:6]))}
	}
	return []netip.Addr{ip}
}

// Failure turns an error of a client's Do, or of reading a body, into one of the vocabulary. Its cause never holds more than
// the kind of a network error: a URL may name what nobody else should see.
func Failure(err error, accepted bool) *adapters.Failure {
	failure := &adapters.Failure{Reason: adapters.Connection, Accepted: accepted}
	if accepted {
		failure.Reason = adapters.StreamBroken
	}
	var timeout net.Error
	switch {
	case errors.Is(err, ErrAddress):
		failure.Cause = ErrAddress
	case errors.Is(err, context.Canceled):
		failure.Cause = context.Canceled
	case errors.Is(err, errIdle), errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		failure.Reason, failure.Cause = adapters.Timeout, context.DeadlineExceeded
	case errors.Is(err, syscall.ECONNREFUSED):
		failure.Cause = syscall.ECONNREFUSED
	case errors.Is(err, syscall.ECONNRESET):
		failure.Cause = syscall.ECONNRESET
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		failure.Cause = io.ErrUnexpectedEOF
	}
	return failure
}

var errIdle = errors.New("nothing arrived in time")

// Body reads a response's body and ends it when nothing has arrived for too long.
type Body struct {
	body  io.ReadCloser
	timer *time.Timer
}

// NewBody wraps a body. end is called, from another goroutine, when a read has been waiting for too long: it must make reads of
// the body fail, as cancelling the request's context does.
func NewBody(body io.ReadCloser, end func(error)) *Body {
	timer := time.AfterFunc(bodyIdle, func() { end(errIdle) })
	timer.Stop()
	return &Body{body: body, timer: timer}
}

// Read reads on. Only its own waiting counts: a client that takes its time is not the provider's silence, and a body that is
// not read any more keeps no timer.
func (b *Body) Read(p []byte) (int, error) {
	b.timer.Reset(bodyIdle)
	defer b.timer.Stop()
	return b.body.Read(p)
}

// Close ends the body.
func (b *Body) Close() error { return b.body.Close() }
