package bundles

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"regent/engine/policy"
	"regent/server/catalog"
)

// secret is what no error and no log may tell.
const secret = "canary-of-a-credential"

// origin is a web server whose answer a test exchanges.
type origin struct {
	*httptest.Server
	mu     sync.Mutex
	answer http.HandlerFunc
	seen   []*http.Request
}

func newOrigin(t *testing.T, answer http.HandlerFunc) *origin {
	t.Helper()
	o := &origin{answer: answer}
	o.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		o.mu.Lock()
		o.seen = append(o.seen, r)
		answer := o.answer
		o.mu.Unlock()
		answer(w, r)
	}))
	t.Cleanup(o.Close)
	return o
}

func (o *origin) set(answer http.HandlerFunc) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.answer = answer
}

// last is the last request, and how many there were.
func (o *origin) last() (*http.Request, int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.seen[len(o.seen)-1], len(o.seen)
}

// sends answers with a tarball under an ETag, as web servers do with files.
func sends(content []byte, etag string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if etag != "" {
			w.Header().Set("ETag", etag)
		}
		if etag != "" && r.Header.Get("If-None-Match") == etag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		_, _ = w.Write(content)
	}
}

// answers with a status and a body that tells whatever was sent.
func answers(status int) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Echo", r.Header.Get("Authorization"))
		w.WriteHeader(status)
		_, _ = fmt.Fprint(w, r.Header.Get("Authorization"))
	}
}

func TestAddress(t *testing.T) {
	server := newOrigin(t, sends(packed(t, small), `"1"`))
	from := newAddress(server.URL+"/org.tar.gz?signed="+secret, secret, hasty)
	wantTree(t, from, false, small)
	if r, n := server.last(); n != 1 || r.Header.Get("Authorization") != "Bearer "+secret || r.Header.Get("If-None-Match") != "" || r.URL.RawQuery != "signed="+secret {
		t.Errorf("%d requests, the last with %v", n, r.Header)
	}
	wantTree(t, from, false, nil)
	if r, n := server.last(); n != 2 || r.Header.Get("If-None-Match") != `"1"` {
		t.Errorf("%d requests, the last with %v", n, r.Header)
	}
	server.set(sends(packed(t, larger), `"2"`))
	wantTree(t, from, false, larger)

	server.set(sends([]byte("<html>"), `"3"`)) // what is no bundle has to be sent again
	wantError(t, from, false, ErrNotTarball, server.URL+"/org.tar.gz: it is no tar.gz: it is not compressed by gzip: make it by")
	wantError(t, from, false, ErrNotTarball, "it is not compressed by gzip")
	server.set(sends(packed(t, larger), `"2"`))
	wantTree(t, from, false, nil)
	server.set(sends(packed(t, small), ""))
	wantTree(t, from, false, small)
	wantTree(t, from, false, small) // without an ETag it is sent each time
	if r, _ := server.last(); r.Header.Get("If-None-Match") != "" {
		t.Error("an ETag that is no more was sent")
	}
	server.set(answers(http.StatusNotModified))
	wantError(t, from, false, &StatusError{304}, "the answer is 304 Not Modified")
}

// Is lets tests compare.
func (e *StatusError) Is(other error) bool {
	var status *StatusError
	return errors.As(other, &status) && *status == *e
}

// trickles sends a byte now and then and does not end.
func trickles(w http.ResponseWriter, r *http.Request) {
	for r.Context().Err() == nil {
		_, _ = w.Write([]byte{0x1f})
		_ = http.NewResponseController(w).Flush()
		time.Sleep(10 * time.Millisecond)
	}
}

func TestAddressesThatFail(t *testing.T) {
	away := httptest.NewServer(http.NotFoundHandler())
	away.Close()
	tls := httptest.NewUnstartedServer(http.NotFoundHandler())
	tls.Config.ErrorLog = quiet()
	tls.StartTLS()
	defer tls.Close()
	server := newOrigin(t, nil)
	half := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "1000")
		_, _ = w.Write(packed(t, small))
	}
	raw := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = io.WriteString(conn, strings.ReplaceAll(text, "ECHO", r.Header.Get("Authorization")))
			_ = conn.Close()
		}
	}
	for name, test := range map[string]struct {
		url    string // the server's if it is empty
		answer http.HandlerFunc
		kind   error
		text   string
	}{
		"500":       {"", answers(500), &StatusError{500}, "the answer is 500 Internal Server Error: the other side is at fault"},
		"401":       {"", answers(401), &StatusError{401}, "the answer is 401 Unauthorized: see whether the credential is right"},
		"404":       {"", answers(404), &StatusError{404}, "the answer is 404 Not Found: see whether it is there"},
		"204":       {"", answers(204), &StatusError{204}, "the answer is 204 No Content: see whether the address is right"},
		"206":       {"", answers(206), &StatusError{206}, "the answer is 206"},
		"garbage":   {"", answers(200), ErrNotTarball, "not compressed by gzip"},
		"silence":   {"", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, ErrSlow, "it takes too long: see what keeps the other side"},
		"a trickle": {"", trickles, ErrSlow, "it takes too long"},
		"half":      {"", half, ErrUnreachable, "it broke"},
		"too large": {"", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", fmt.Sprint(policy.MaxBundleBytes+1))
		}, ErrTooLarge, "larger than 33554432 bytes"},
		"too large, unsaid": {"", sends(bytes.Repeat([]byte{1}, policy.MaxBundleBytes+1), ""), ErrTooLarge, "larger than 33554432 bytes"},
		"no HTTP":           {"", raw("ECHO\r\n\r\n"), ErrNotUnderstood, "see whether the address"},
		"a strange status":  {"", raw("HTTP/1.1 ECHO\r\n\r\n"), ErrNotUnderstood, "see whether the address"},
		"a long header":     {"", raw("HTTP/1.1 200 OK\r\nX-Echo: " + strings.Repeat("ECHO", 30_000) + "\r\n\r\n"), ErrNotUnderstood, "see whether the address"},
		"a loop":            {"", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/again?ECHO", http.StatusFound) }, ErrRedirect, "more than 5 times"},
		"another scheme": {"", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "file:///etc/passwd", http.StatusFound)
		}, ErrRedirect, "neither http nor https"},
		"no location": {"", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", "http://%zz/"+r.Header.Get("Authorization"))
			w.WriteHeader(302)
		}, ErrNotUnderstood, ""},
		"metadata": {"", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://169.254.169.254/", http.StatusFound)
		}, ErrUnreachable, "metadata service"},
		"nobody":            {away.URL, nil, ErrUnreachable, "it is refused: see whether the server runs"},
		"no such name":      {"http://canary.invalid", nil, ErrUnreachable, "the server's name is not found"},
		"no TLS":            {strings.Replace(server.URL, "http:", "https:", 1), nil, ErrUnreachable, "the server does not speak TLS"},
		"unknown authority": {tls.URL, nil, ErrUnreachable, "unknown authority: trust the authority"},
	} {
		t.Run(name, func(t *testing.T) {
			server.set(test.answer)
			url := test.url
			if url == "" {
				url = server.URL
			}
			limits := hasty
			if test.kind == ErrTooLarge { // 32 MiB take their time on a busy machine
				limits = patience
			}
			from := newAddress(url+"/org.tar.gz?signed="+secret, secret, limits)
			began := time.Now()
			_, err := from.fetch(t.Context(), false)
			if !errors.Is(err, test.kind) || !strings.Contains(err.Error(), test.text) || !strings.HasPrefix(err.Error(), url+"/org.tar.gz: ") {
				t.Errorf("got %v, want %v: %s", err, test.kind, test.text)
			}
			if took := time.Since(began); took > 5*limits.whole {
				t.Errorf("it took %v", took)
			}
			if err != nil && strings.Contains(err.Error(), secret) {
				t.Errorf("a secret is told: %v", err)
			}
		})
	}
}

// TestRedirects: they are followed, and the credential goes no further than the server that was named.
func TestRedirects(t *testing.T) {
	other := newOrigin(t, sends(packed(t, small), `"1"`))
	server := newOrigin(t, nil)
	server.set(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/org.tar.gz":
			http.Redirect(w, r, "/moved.tar.gz?signed="+secret, http.StatusMovedPermanently)
		case "/moved.tar.gz":
			if r.Header.Get("Authorization") != "Bearer "+secret {
				t.Error("the server itself is not shown the credential")
			}
			http.Redirect(w, r, other.URL+"/blob", http.StatusTemporaryRedirect)
		}
	})
	from := newAddress(server.URL+"/org.tar.gz?signed="+secret, secret, hasty)
	wantTree(t, from, false, small)
	if r, n := other.last(); n != 1 || strings.Contains(fmt.Sprint(r.Header, r.URL), secret) {
		t.Errorf("the other server was sent %d requests, the last with %v", n, r.Header)
	}

	back := newOrigin(t, sends(packed(t, small), ""))
	other.set(func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, back.URL+"/back", http.StatusFound) })
	back.set(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/back" {
			sends(packed(t, larger), "")(w, r)
			return
		}
		http.Redirect(w, r, other.URL, http.StatusFound)
	})
	wantTree(t, newAddress(back.URL, secret, hasty), false, larger)
	if r, _ := back.last(); r.Header.Get("Authorization") != "" {
		t.Error("whoever was sent back by another server is shown the credential")
	}
}

// TestNoRedirectLeavesTLS: what was asked for by TLS is not taken without it.
func TestNoRedirectLeavesTLS(t *testing.T) {
	plain := newOrigin(t, sends(packed(t, small), ""))
	secure := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, plain.URL, http.StatusFound) }))
	defer secure.Close()
	from := newAddress(secure.URL, "", hasty)
	from.client.Transport.(*http.Transport).TLSClientConfig = secure.Client().Transport.(*http.Transport).TLSClientConfig
	wantError(t, from, false, ErrRedirect, "from https to http")
	if len(plain.seen) != 0 {
		t.Error("the other server was asked")
	}
}

// TestAServerThatFailsAndRecovers, by a set that runs: the last good bundle stays, and each change is logged once.
func TestAServerThatFailsAndRecovers(t *testing.T) {
	server := newOrigin(t, answers(500))
	s, told, log := newSet(t)
	s.limits = hasty
	s.Follow([]catalog.Bundle{{BundleSource: catalog.BundleSource{Name: "org", URL: server.URL + "/org.tar.gz", Credential: secret, Poll: 20 * time.Millisecond}}})
	start(t, s)
	state := func() State { return s.States()[0] }
	wait(t, "some failures", func() bool { return state().Errors > 3 })
	if _, err := s.Snapshot(); !errors.Is(err, &StatusError{500}) {
		t.Errorf("without a bundle: %v", err)
	}
	server.set(sends(packed(t, small), `"1"`))
	wait(t, "the bundle", func() bool { return holds(t, s, "org", small) && state().Err == nil })
	fetched := state().Fetched
	wait(t, "a look that finds nothing new", func() bool { return state().Fetched.After(fetched) })
	failures := state().Errors
	server.set(answers(503))
	wait(t, "failures", func() bool { return state().Errors > failures+2 })
	if !holds(t, s, "org", small) || !state().There || !errors.Is(state().Err, &StatusError{503}) {
		t.Errorf("while it fails: %+v", state())
	}
	fetched = state().Fetched
	server.set(sends(packed(t, small), `"1"`))
	wait(t, "the server to be back", func() bool { return state().Err == nil && state().Fetched.After(fetched) })
	if told.n.Load() != 1 {
		t.Errorf("told %d times", told.n.Load())
	}
	server.set(sends(packed(t, larger), `"2"`))
	wait(t, "the next bundle", func() bool { return holds(t, s, "org", larger) })
	if text := log.String(); strings.Count(text, "cannot be fetched") != 2 || strings.Count(text, "can be fetched again") != 2 || strings.Contains(text, secret) {
		t.Errorf("it was logged:\n%s", text)
	}
}

// TestOneSlowSourceHoldsNothingUp: neither another source, nor a new catalogue, nor the end.
func TestOneSlowSourceHoldsNothingUp(t *testing.T) {
	slow, quick := newOrigin(t, trickles), newOrigin(t, sends(packed(t, small), ""))
	s, _, _ := newSet(t)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- s.Run(ctx) }()
	at := func(name, url string) catalog.Bundle {
		return catalog.Bundle{BundleSource: catalog.BundleSource{Name: name, URL: url, Poll: time.Minute}}
	}
	began := time.Now()
	s.Follow([]catalog.Bundle{at("a", slow.URL), at("b", quick.URL)})
	wait(t, "the quick one", func() bool { return s.States()[1].There })
	s.Follow([]catalog.Bundle{at("b", quick.URL)})
	if _, asked := quick.last(); !holds(t, s, "b", small) || asked != 1 {
		t.Errorf("the quick one was asked %d times", asked)
	}
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
}

// TestAPeerThatTakesNoConnection is given up in time.
func TestAPeerThatTakesNoConnection(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	wantError(t, newAddress("http://"+listener.Addr().String(), "", hasty), false, ErrSlow, "it takes too long")
}
