package upstream

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
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

func TestRedirectsAndProxiesAreNotFollowed(t *testing.T) {
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:1")
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
