package server

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"regent/server/inference"
)

const chatPath = inference.Base + "/chat/completions"

// dial opens a connection to the gateway. It ends with the test.
func (g *gateway) dial(t *testing.T) net.Conn {
	t.Helper()
	connection, err := net.Dial("tcp", strings.TrimPrefix(g.URL(), "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = connection.Close() })
	if err := connection.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	return connection
}

// head is an authenticated request's header, with more lines.
func head(more ...string) string {
	lines := append([]string{"POST " + chatPath + " HTTP/1.1", "Host: x", "Authorization: Bearer " + token}, more...)
	return strings.Join(lines, "\r\n") + "\r\n\r\n"
}

// posting is a whole request on the wire.
func posting(body string, more ...string) string {
	return head(append(more, fmt.Sprintf("Content-Length: %d", len(body)))...) + body
}

// exchange sends as much of a request as the gateway takes, and reads one response. sent is how much that was; closed, that the
// connection then ended.
func exchange(t *testing.T, connection net.Conn, request io.Reader) (a answered, sent int64, closed bool) {
	t.Helper()
	writing := make(chan int64, 1)
	go func() {
		n, _ := io.Copy(connection, request) // the gateway may have enough of it
		writing <- n
	}()
	reader := bufio.NewReader(connection)
	response, err := http.ReadResponse(reader, nil)
	if err != nil {
		return answered{broken: true}, <-writing, !errors.Is(err, os.ErrDeadlineExceeded)
	}
	body, err := io.ReadAll(response.Body)
	a = answered{response.StatusCode, response.Header, string(body), err != nil}
	_, err = reader.ReadByte()
	return a, <-writing, err != nil && !errors.Is(err, os.ErrDeadlineExceeded)
}

// repeated is a text over and over, size bytes in all.
func repeated(text string, size int64) io.Reader {
	return io.LimitReader(&again{text: strings.Repeat(text, 1+(64<<10)/len(text))}, size)
}

type again struct {
	text string
	at   int
}

func (a *again) Read(p []byte) (int, error) {
	n := copy(p, a.text[a.at:])
	a.at = (a.at + n) % len(a.text)
	return n, nil
}

const gigabyte = 1 << 30

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// A request that is too large in any way is refused as soon as that is known, and not read on.
func TestRequestsThatAreTooLarge(t *testing.T) {
	g := startGateway(t, nil)
	const readAhead = 128 << 20 // what sockets keep between two processes that never wait: far less than 5 GB
	for name, test := range map[string]struct {
		request    io.Reader
		status     int
		code       string
		sent, took int64
	}{
		"a body of 5 GB": {io.MultiReader(strings.NewReader(head("Content-Length: 5368709120")), repeated("x", 5*gigabyte)), 413, "request_too_large", readAhead, 1 << 20},
		"a body of 5 GB that waits to be asked for": {strings.NewReader(head("Content-Length: 5368709120", "Expect: 100-continue")), 413, "request_too_large", readAhead, 1 << 20},
		"chunks of 5 GB":        {io.MultiReader(strings.NewReader(head("Transfer-Encoding: chunked")), repeated("400\r\n"+strings.Repeat("x", 1024)+"\r\n", 5*gigabyte)), 413, "request_too_large", 34<<20 + readAhead, 130 << 20},
		"one chunk of 5 GB":     {io.MultiReader(strings.NewReader(head("Transfer-Encoding: chunked")+"140000000\r\n"), repeated("x", 5*gigabyte)), 413, "request_too_large", 34<<20 + readAhead, 130 << 20},
		"a body of a byte more": {io.MultiReader(strings.NewReader(head("Content-Length: 33554433")), repeated("x", 33554433)), 413, "request_too_large", readAhead, 1 << 20},
		"100,000 headers":       {io.MultiReader(strings.NewReader("POST / HTTP/1.1\r\nHost: x\r\n"), repeated("X-A: b\r\n", 800_000)), 431, "", readAhead, 4 << 20},
		"a header of 10 MB":     {io.MultiReader(strings.NewReader("POST / HTTP/1.1\r\nHost: x\r\nX-A: "), repeated("x", 10<<20)), 431, "", readAhead, 4 << 20},
		"a path of 10 MB":       {io.MultiReader(strings.NewReader("POST /"), repeated("x", 10<<20)), 431, "", readAhead, 4 << 20},
		"a trailer of 10 MB":    {io.MultiReader(strings.NewReader(head("Transfer-Encoding: chunked")+"1\r\nx\r\n0\r\nX-A: "), repeated("x", 10<<20)), 400, "invalid_request", readAhead, 4 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			connection := g.dial(t)
			var a answered
			var sent int64
			var closed bool
			grown := growth(func() { a, sent, closed = exchange(t, connection, test.request) })
			if a.status != test.status || a.code() != test.code || !closed {
				t.Errorf("got %d %s, closed %v", a.status, a.body, closed)
			}
			if sent > test.sent {
				t.Errorf("%d MiB were taken", sent>>20)
			}
			if int64(grown) > test.took+16<<20 { // and what the test itself needs
				t.Errorf("it took %d MiB", grown>>20)
			}
		})
	}
	g.wantNothingHeld(t)
	g.wantAlive(t)
	if seen := g.Fake().Seen("up"); seen.Requests != 1 {
		t.Errorf("the provider saw %d requests", seen.Requests)
	}
}

// What is no request gets an error or nothing, and its connection is closed.
func TestWhatIsNoRequest(t *testing.T) {
	g := startGateway(t, nil)
	for name, test := range map[string]struct {
		request string
		status  int // 0 is no response
	}{
		"a TLS hello":               {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400},
		"HTTP/2":                    {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 405},
		"no host":                   {"GET / HTTP/1.1\r\n\r\n", 400},
		"two hosts":                 {"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400},
		"a NUL in a header":         {head("X-A: \x00", "Content-Length: 0"), 400},
		"a NUL in a name":           {head("X\x00A: b", "Content-Length: 0"), 400},
		"two lengths":               {head("Content-Length: 1", "Content-Length: 2"), 400},
		"a length of -1":            {head("Content-Length: -1"), 400},
		"a length that is text":     {head("Content-Length: many"), 400},
		"a length beyond 2^63":      {head("Content-Length: 99999999999999999999"), 400},
		"a coding that is unknown":  {head("Transfer-Encoding: gzip, chunked"), 501},
		"a chunk that is no number": {head("Transfer-Encoding: chunked", "Connection: close") + "xyz\r\n", 400},
		"a chunk beyond 2^64":       {head("Transfer-Encoding: chunked", "Connection: close") + "fffffffffffffffff\r\n", 400},
		"a length and chunks":       {head("Content-Length: 5", "Transfer-Encoding: chunked", "Connection: close") + "0\r\n\r\n", 400},
		"half a body":               {posting(wholeBody + strings.Repeat(" ", 100))[:300], 0},
	} {
		t.Run(name, func(t *testing.T) {
			connection := g.dial(t)
			go func() {
				_, _ = io.WriteString(connection, test.request)
				_ = connection.(*net.TCPConn).CloseWrite()
			}()
			a, _, closed := exchange(t, connection, strings.NewReader(""))
			if test.status != 0 && a.status != test.status || !closed {
				t.Errorf("got %d %q, closed %v", a.status, a.body, closed)
			}
		})
	}
	g.wantNothingHeld(t)
	g.wantAlive(t)
}

// A body that is no call, or one that no model can take, is refused in words, and holds nothing.
func TestBodiesThatAreNoCall(t *testing.T) {
	g := startGateway(t, nil)
	const member = `{"model":"m","messages":[{"role":"user","content":"Hello"}]`
	for name, test := range map[string]struct {
		body, says string
		status     int
	}{
		"broken UTF-8":             {strings.Replace(wholeBody, "Hello", "\xff\xfe", 1), "not valid UTF-8", 400},
		"a NUL byte":               {strings.Replace(wholeBody, "Hello", "\x00", 1), "not valid JSON", 400},
		"lists 10,000 deep":        {member + `,"x":` + strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000) + "}", "nested more than 200 deep", 400},
		"objects 10,000 deep":      {strings.Repeat(`{"a":`, 10_000) + "1" + strings.Repeat("}", 10_000), "nested more than 200 deep", 400},
		"lists a million deep":     {strings.Repeat("[", 1_000_000), "nested more than 200 deep", 400},
		"a key twice":              {member + `,"n":1,"n":2}`, "is given twice", 400},
		"a million keys":           {member + `,"x":{` + numbered(1_000_000) + "}}", "more than 10000 keys", 400},
		"a line of 10 MB":          {strings.Replace(wholeBody, "Hello", strings.Repeat("Hello ", 10<<20/6), 1), "context_length_exceeded", 400},
		"a line of 10 MB, open":    {`{"model":"` + strings.Repeat("x", 10<<20), "not valid JSON", 400},
		"a model of 10 MB":         {`{"messages":[{}],"model":"` + strings.Repeat("x", 10<<20) + `"}`, "model_not_found", 404},
		"a number of 10 MB":        {member + `,"max_tokens":` + strings.Repeat("9", 10<<20) + "}", "max_tokens must be a whole number", 400},
		"a million messages":       {`{"model":"m","messages":[{}` + strings.Repeat(",{}", 999_999) + "]}", "context_length_exceeded", 400},
		"a hundred thousand tools": {member + `,"tools":[{}` + strings.Repeat(`,{"type":"function","function":{"name":"f"}}`, 99_999) + "]}", "context_length_exceeded", 400},
		"a million parts":          {`{"model":"m","messages":[{"content":[{}` + strings.Repeat(",{}", 999_999) + "]}]}", "MODALITY_NOT_ACCEPTED", 403},
	} {
		t.Run(name, func(t *testing.T) {
			var a answered
			grown := growth(func() { a = g.post(t, test.body) })
			if a.status != test.status || !strings.Contains(a.body, test.says) || a.code() == "" {
				t.Errorf("got %d %.500s, want %q", a.status, a.body, test.says)
			}
			if len(a.body) > 4<<10 {
				t.Errorf("the error is of %d bytes", len(a.body))
			}
			if grown > 200<<20 {
				t.Errorf("it took %d MiB", grown>>20)
			}
		})
	}
	g.wantNothingHeld(t)
	g.wantAlive(t)
}

func numbered(n int) string {
	var members bytes.Buffer
	for i := range n {
		fmt.Fprintf(&members, `,"%d":0`, i)
	}
	return members.String()[1:]
}

// A client that sends slowly has so long for its header and so long for its request; it holds nothing meanwhile.
func TestClientsThatSendSlowly(t *testing.T) {
	g := startGateway(t, func(s *Server) { s.http.ReadHeaderTimeout, s.http.ReadTimeout = 300*time.Millisecond, time.Second })
	trickle := func(connection net.Conn, begin, drop string) {
		_, err := io.WriteString(connection, begin)
		for err == nil {
			time.Sleep(10 * time.Millisecond)
			_, err = io.WriteString(connection, drop)
		}
	}
	t.Run("a header", func(t *testing.T) {
		var clients sync.WaitGroup
		for range 50 {
			connection := g.dial(t)
			go trickle(connection, "POST "+chatPath+" HTTP/1.1\r\nHost: x\r\n", "X-A: b\r\n")
			clients.Go(func() {
				if a, _, closed := exchange(t, connection, strings.NewReader("")); a.status != 0 || !closed {
					t.Errorf("got %d %s, closed %v", a.status, a.body, closed)
				}
			})
		}
		clients.Wait()
	})
	t.Run("a body", func(t *testing.T) {
		for _, more := range []string{"Content-Length: 30000000", "Transfer-Encoding: chunked"} {
			connection := g.dial(t)
			go trickle(connection, head(more), "1\r\n \r\n")
			if a, _, closed := exchange(t, connection, strings.NewReader("")); a.status != http.StatusRequestTimeout || a.code() != "request_timeout" || !closed {
				t.Errorf("%s: got %d %s, closed %v", more, a.status, a.body, closed)
			}
		}
	})
	t.Run("nothing", func(t *testing.T) {
		if a, _, closed := exchange(t, g.dial(t), strings.NewReader("")); a.status != 0 || !closed {
			t.Errorf("got %d %s, closed %v", a.status, a.body, closed)
		}
	})
	g.wantNothingHeld(t)
	g.wantAlive(t)
}

// A client that stops reading is waited for, for a time. Then its call ends and is charged, and it has cost a buffer's memory.
func TestClientsThatStopReading(t *testing.T) {
	g := startGateway(t, stallAfter(300*time.Millisecond))
	event := fmt.Sprintf("data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":%q}}]}\n\n", strings.Repeat("x", 64<<10))
	for name, test := range map[string]struct{ script, body, want string }{
		"a stream":                {wired("", streamHead, event, endless), streamBody, "cancelled abort client_gone 0."},
		"a stream that would end": {wired("", streamHead, event, 200, finish+used+done), streamBody, "cancelled abort client_gone 0."},
		"a whole answer":          {wired("", jsonHead+"\r\n"+`{"usage":{"prompt_tokens":2,"completion_tokens":1},"choices":[{"message":{"content":"`, strings.Repeat("x", 1<<20), 60, `"}}]}`), wholeBody, "cancelled abort client_gone 0.000003"},
	} {
		t.Run(name, func(t *testing.T) {
			g.script(t, test.script)
			connection := g.dial(t)
			if err := connection.(*net.TCPConn).SetReadBuffer(4 << 10); err != nil {
				t.Fatal(err)
			}
			id := ""
			grown := growth(func() {
				if _, err := io.WriteString(connection, posting(test.body)); err != nil {
					t.Fatal(err)
				}
				reader := bufio.NewReaderSize(connection, 512)
				for id == "" {
					line, err := reader.ReadString('\n')
					if err != nil {
						t.Fatal(err)
					}
					if value, ok := strings.CutPrefix(line, "X-Regent-Request-Id: "); ok {
						id = strings.TrimSpace(value)
					}
				}
				if got := g.ended(t, id); !strings.HasPrefix(got, test.want) {
					t.Errorf("the call ended as %q, want %q", got, test.want)
				}
			})
			if grown > 400<<20 { // a whole answer, doubled as it is read, and its copies
				t.Errorf("it took %d MiB", grown>>20)
			}
			wait(t, "the provider's call to end", func() bool { return g.Fake().Seen("up").Open == 0 })
		})
	}
	t.Run("answers to thousands of requests", func(t *testing.T) {
		connection := g.dial(t)
		_, err := io.Copy(connection, repeated("GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n", gigabyte))
		if err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the connection was not closed: %v", err)
		}
	})
	g.wantNothingHeld(t)
	g.wantAlive(t)
}

// A client that has gone before the first byte came leaves a call that has ended and costs nothing.
func TestClientsThatAreGoneBeforeTheFirstByte(t *testing.T) {
	g := startGateway(t, nil)
	for _, body := range []string{streamBody, wholeBody} {
		for _, reset := range []bool{false, true} {
			g.script(t, `{"hold": true}`)
			connection := g.dial(t)
			if _, err := io.WriteString(connection, posting(body)); err != nil {
				t.Fatal(err)
			}
			wait(t, "the provider to have the call", func() bool { return g.Fake().Seen("up").Open == 1 })
			if reset {
				_ = connection.(*net.TCPConn).SetLinger(0)
			}
			_ = connection.Close()
			wait(t, "the provider's call to end", func() bool { return g.Fake().Seen("up").Open == 0 })
			g.wantNothingHeld(t)
			a := g.do(t, g.request(t, http.MethodGet, "/requests?limit=1", nil))
			if !strings.Contains(a.body, `"state":"cancelled"`) || !strings.Contains(a.body, `"usd":"0"`) {
				t.Errorf("reset %v: %s", reset, a.body)
			}
		}
	}
	g.wantAlive(t)
}

// parting is a client that goes as soon as it has the last of an answer, before the gateway can do anything more.
type parting struct {
	*httptest.ResponseRecorder
	last string
	gone context.CancelFunc
}

func (p *parting) Write(data []byte) (int, error) {
	n, err := p.ResponseRecorder.Write(data)
	if strings.Contains(p.Body.String(), p.last) {
		p.gone()
	}
	return n, err
}

func (p *parting) SetReadDeadline(time.Time) error  { return nil }
func (p *parting) SetWriteDeadline(time.Time) error { return nil }

// A client that has its whole answer and goes at that very moment leaves a completed call, whatever was relayed and however little
// the call had set aside.
func TestClientsThatGoWithTheLastByte(t *testing.T) {
	g := startGateway(t, nil)
	for name, body := range map[string]string{
		"a stream":                   streamBody,
		"a whole answer":             wholeBody,
		"a stream beyond its bound":  strings.Replace(streamBody, "{", `{"max_tokens": 1,`, 1),
		"an answer beyond its bound": strings.Replace(wholeBody, "{", `{"max_tokens": 1,`, 1),
	} {
		t.Run(name, func(t *testing.T) {
			g.script(t, `{"text": ["Good day to you", ", and good night"]}`)
			ctx, gone := context.WithCancel(t.Context())
			defer gone()
			last := "[DONE]\n\n"
			if strings.Contains(name, "answer") {
				last = "}"
			}
			client := &parting{httptest.NewRecorder(), last, gone}
			r := g.request(t, http.MethodPost, "/chat/completions", strings.NewReader(body)).WithContext(ctx)
			g.http.Handler.ServeHTTP(client, r)
			if ctx.Err() == nil {
				t.Fatalf("the client stayed: %s", client.Body)
			}
			call := ""
			wait(t, "the call to end", func() bool {
				call = g.do(t, g.request(t, http.MethodGet, "/requests/"+client.Header().Get("X-Regent-Request-Id"), nil)).body
				return !strings.Contains(call, `"state":"held"`)
			})
			if !strings.Contains(call, `"state":"completed"`) || !strings.Contains(call, `"outcome":"success"`) {
				t.Errorf("got %s", call)
			}
		})
	}
}

// Requests that are sent before the answer to the one before has come are served one after the other, each a call of its own.
func TestRequestsOneBehindTheOther(t *testing.T) {
	g := startGateway(t, nil)
	g.script(t, `[{"text": ["first"], "hold": true}, {"text": ["second"]}, {"text": ["third"]}]`)
	connection := g.dial(t)
	if _, err := io.WriteString(connection, posting(wholeBody)+posting(streamBody)+posting(wholeBody)); err != nil {
		t.Fatal(err)
	}
	wait(t, "the provider to have the first call", func() bool { return g.Fake().Seen("up").Open == 1 })
	time.Sleep(50 * time.Millisecond) // in which another would have arrived
	if n := g.Fake().Seen("up").Requests; n != 1 {
		t.Errorf("%d calls run at once", n)
	}
	g.Fake().Release()
	reader := bufio.NewReader(connection)
	seen := map[string]bool{}
	for _, want := range []string{"first", "second", "third"} {
		response, err := http.ReadResponse(reader, nil)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		if err != nil || response.StatusCode != http.StatusOK || !strings.Contains(string(body), `"`+want+`"`) {
			t.Errorf("got %d %s, %v", response.StatusCode, body, err)
		}
		id := response.Header.Get("X-Regent-Request-Id")
		seen[id] = true
		if got := g.ended(t, id); got != "completed success 0.000003" {
			t.Errorf("%s: %s", want, got)
		}
	}
	if len(seen) != 3 {
		t.Errorf("the calls are %v", seen)
	}
	g.wantAlive(t)
}

// Many clients that send large bodies at once do not take the memory: some are asked to come back, and small calls are served.
func TestLargeBodiesTogether(t *testing.T) {
	g := startGateway(t, nil)
	const clients, size = 40, 31 << 20
	large := []byte(strings.Replace(wholeBody, "Hello", strings.Repeat("Hello ", size/6), 1))
	var halfway, more sync.WaitGroup
	halfway.Add(clients)
	more.Add(1)
	var served, refused, other atomic.Int64
	grown := growth(func() {
		var all sync.WaitGroup
		for range clients {
			connection := g.dial(t)
			arrived := sync.OnceFunc(halfway.Done)
			rest := readerFunc(func([]byte) (int, error) { arrived(); more.Wait(); return 0, io.EOF })
			request := io.MultiReader(strings.NewReader(head(fmt.Sprintf("Content-Length: %d", len(large)), "Connection: close")),
				bytes.NewReader(large[:size/2]), rest, bytes.NewReader(large[size/2:]))
			all.Go(func() {
				defer arrived()
				switch a, _, _ := exchange(t, connection, request); {
				case a.status == http.StatusServiceUnavailable && a.code() == "overloaded" && a.header.Get("Retry-After") == "1":
					refused.Add(1)
				case a.code() == "context_length_exceeded":
					served.Add(1)
				default:
					other.Add(1)
					t.Errorf("got %d %.300s", a.status, a.body)
				}
			})
		}
		halfway.Wait()
		g.wantAlive(t) // a small call, while nothing is left for large ones
		more.Done()
		all.Wait()
	})
	t.Logf("%d served, %d asked to come back, %d MiB", served.Load(), refused.Load(), grown>>20)
	if served.Load() == 0 || refused.Load() == 0 {
		t.Errorf("%d served, %d asked to come back", served.Load(), refused.Load())
	}
	if grown > gigabyte {
		t.Errorf("it took %d MiB", grown>>20)
	}
	if a := g.post(t, string(large)); a.code() != "context_length_exceeded" {
		t.Errorf("afterwards: %d %s", a.status, a.body)
	}
	g.wantNothingHeld(t)
	g.wantAlive(t)
}
