package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"regent/adapters"
)

func TestCheck(t *testing.T) {
	for address, want := range map[string]string{ // "public", "private" (needs leave) or "never"
		"93.184.216.34:443": "public", "[2606:2800:220:1::1]:443": "public",
		"127.0.0.1:80": "private", "127.9.9.9:80": "private", "[::1]:80": "private", "10.0.0.1:80": "private", "172.16.0.1:80": "private",
		"192.168.1.1:80": "private", "100.64.0.1:80": "private", "[fc00::1]:80": "private", "0.0.0.0:80": "private", "[::]:80": "private",
		"[::ffff:127.0.0.1]:80": "private", "[64:ff9b::a00:1]:80": "private", "[2002:7f00:1::]:80": "private", "198.18.0.1:80": "private",
		"169.254.169.254:80": "never", "169.254.0.1:80": "never", "[fe80::1]:80": "never", "[fe80::1%eth0]:80": "never", "[fd00:ec2::254]:80": "never",
		"100.100.100.200:80": "never", "[::ffff:169.254.169.254]:80": "never", "[64:ff9b::a9fe:a9fe]:80": "never", "[2002:a9fe:a9fe::]:80": "never",
		"8.8.8.8:443": "public", "[2a00:1450:4001::1]:443": "public", "[64:ff9b::808:808]:443": "public", "[2002:808:808::1]:443": "public",
		"[::ffff:8.8.8.8]:443": "public", "172.15.255.255:80": "public", "172.32.0.1:80": "public", "100.63.255.255:80": "public",
		"100.128.0.1:80": "public", "169.253.255.255:80": "public", "169.255.0.1:80": "public",
		"[::ffff:10.0.0.1]:80": "private", "[::ffff:100.64.0.1]:80": "private", "[::127.0.0.1]:80": "private", "[::8.8.8.8]:80": "private",
		"[64:ff9b::7f00:1]:80": "private", "[64:ff9b:1::808:808]:80": "private", "[2002:a00:1::1]:80": "private", "[fd12:3456::1]:80": "private",
		"[fec0::1]:80": "private", "[100::1]:80": "private", "[2001::1]:80": "private", "[2001:db8::1]:80": "private", "[4000::1]:80": "private",
		"192.0.2.1:80": "private", "198.51.100.1:80": "private", "203.0.113.1:80": "private", "240.0.0.1:80": "private",
		"255.255.255.255:80": "private", "100.127.255.255:80": "private", "172.31.255.255:80": "private", "0.1.2.3:80": "private",
		"169.254.170.2:80": "never", "192.0.0.192:80": "never", "[fd20:ce::254]:80": "never", "[fd00:42::42]:80": "never",
		"[febf::1]:80": "never", "[::169.254.169.254]:80": "never", "[64:ff9b:1::a9fe:a9fe]:80": "never", "[64:ff9b::6464:64c8]:80": "never",
		"[ff0e::1]:80": "never", "[::ffff:224.0.0.1]:80": "never", "239.255.255.255:80": "never", "[64:ff9b::e000:1]:80": "never",
		"10.0.0.1": "never", "": "never", "[::1%lo]:80": "private", "93.184.216.34:http": "never",
		"224.0.0.1:80": "never", "[ff02::1]:80": "never", "168.63.129.16:80": "never", "localhost:80": "never",
	} {
		for _, allowPrivate := range []bool{false, true} {
			err := check(address, allowPrivate)
			allowed := want == "public" || want == "private" && allowPrivate
			if (err == nil) != allowed || err != nil && !errors.Is(err, ErrAddress) {
				t.Errorf("%s, private allowed %v: %v", address, allowPrivate, err)
			}
		}
	}
}

func TestANameThatLeadsInsideIsRefusedWhenDialling(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	target := strings.Replace(server.URL, "127.0.0.1", "localhost", 1)
	_, err := New(Config{}).Get(target)
	if !errors.Is(err, ErrAddress) {
		t.Errorf("got %v, want a refused address", err)
	}
	if failure := Failure(err, false); failure.Reason != adapters.Connection || strings.Contains(failure.Error(), "localhost") {
		t.Errorf("got %v", failure)
	}
	response, err := New(Config{AllowPrivate: true}).Get(target)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	var paths []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		paths = append(paths, r.URL.Path)
		http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
	}))
	defer server.Close()
	response, err := New(Config{AllowPrivate: true}).Post(server.URL+"/here", "text/plain", strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusTemporaryRedirect || len(paths) != 1 {
		t.Errorf("status %d, asked for %v", response.StatusCode, paths)
	}
}

// TestAProxyOfTheEnvironmentIsIgnored asks for an address beyond this machine, as Go itself exempts those of this one.
func TestAProxyOfTheEnvironmentIsIgnored(t *testing.T) {
	proxied := 0
	proxy := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { proxied++ }))
	defer proxy.Close()
	t.Setenv("HTTP_PROXY", proxy.URL)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://192.0.2.1/", nil)
	if err != nil {
		t.Fatal(err)
	}
	if used, err := http.ProxyFromEnvironment(request); err != nil || used == nil {
		t.Fatalf("the environment's proxy would not have been used: %v, %v", used, err)
	}
	client := New(Config{AllowPrivate: true})
	defer client.CloseIdleConnections()
	if response, err := client.Do(request); err == nil {
		_ = response.Body.Close()
	}
	if proxied != 0 {
		t.Error("the proxy was asked")
	}
}

func TestBytesAreNotInflated(t *testing.T) {
	const packed = "\x1f\x8b as it came"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if accepted := r.Header.Get("Accept-Encoding"); accepted != "" {
			t.Errorf("asked for %q", accepted)
		}
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = io.WriteString(w, packed)
	}))
	defer server.Close()
	response, err := New(Config{AllowPrivate: true}).Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	if got, err := io.ReadAll(response.Body); err != nil || string(got) != packed {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestMetadataIsNeverReached(t *testing.T) {
	for _, address := range []string{"169.254.169.254", "[::ffff:a9fe:a9fe]", "[fe80::1]", "100.100.100.200"} {
		if _, err := New(Config{AllowPrivate: true}).Get("http://" + address + "/"); !errors.Is(err, ErrAddress) {
			t.Errorf("%s: got %v", address, err)
		}
	}
}

func TestFailure(t *testing.T) {
	secret := func(err error) error {
		return &url.Error{Op: "Post", URL: "https://user:canary@canary.example/", Err: err}
	}
	for name, test := range map[string]struct {
		err      error
		accepted bool
		reason   adapters.Reason
		cause    error
	}{
		"an address":            {secret(fmt.Errorf("%w: canary", ErrAddress)), false, adapters.Connection, ErrAddress},
		"cancelled":             {secret(context.Canceled), false, adapters.Connection, context.Canceled},
		"cancelled while read":  {secret(context.Canceled), true, adapters.StreamBroken, context.Canceled},
		"a deadline":            {secret(context.DeadlineExceeded), false, adapters.Timeout, context.DeadlineExceeded},
		"a network's time-out":  {secret(&net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}), false, adapters.Timeout, context.DeadlineExceeded},
		"silence":               {errIdle, true, adapters.Timeout, context.DeadlineExceeded},
		"refused":               {secret(&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}), false, adapters.Connection, syscall.ECONNREFUSED},
		"reset":                 {syscall.ECONNRESET, true, adapters.StreamBroken, syscall.ECONNRESET},
		"cut off":               {io.ErrUnexpectedEOF, true, adapters.StreamBroken, io.ErrUnexpectedEOF},
		"no header":             {secret(io.EOF), false, adapters.Connection, io.ErrUnexpectedEOF},
		"a name that is not":    {secret(&net.DNSError{Name: "canary.example"}), false, adapters.Connection, nil},
		"something of a server": {errors.New(`malformed HTTP response "canary"`), false, adapters.Connection, nil},
	} {
		failure := Failure(test.err, test.accepted)
		if failure.Reason != test.reason || failure.Cause != test.cause || failure.Accepted != test.accepted {
			t.Errorf("%s: got %+v", name, failure)
		}
		if strings.Contains(failure.Error(), "canary") || errors.Is(failure, io.EOF) {
			t.Errorf("%s: %v", name, failure)
		}
	}
}

// TestAClientsPauseIsNotTheProvidersSilence: nobody reads for long, and what then comes is in time.
func TestAClientsPauseIsNotTheProvidersSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := 0
		body := NewBody(io.NopCloser(strings.NewReader("abc")), func(error) { ended++ })
		for range 4 {
			_, _ = body.Read(make([]byte, 1))
			time.Sleep(3 * bodyIdle)
		}
		if err := body.Close(); err != nil {
			t.Error(err)
		}
		time.Sleep(3 * bodyIdle)
		if ended != 0 {
			t.Errorf("the body was ended %d times", ended)
		}
	})
}

func TestASilentBodyIsEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reader, writer := io.Pipe()
		body := NewBody(reader, func(err error) { _ = writer.CloseWithError(err) })
		defer func() { _ = body.Close() }()
		go func() {
			time.Sleep(bodyIdle - time.Second)
			_, _ = writer.Write([]byte("x"))
		}()
		started := time.Now()
		if _, err := body.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		_, err := body.Read(make([]byte, 1))
		if failure := Failure(err, true); failure.Reason != adapters.Timeout {
			t.Errorf("got %v", failure)
		}
		if took := time.Since(started); took != 2*bodyIdle-time.Second {
			t.Errorf("it took %v", took)
		}
	})
}
