package inference

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/klauspost/compress/zstd"
)

// posted is a request with a body whose size the client announces, or -1.
func posted(body io.Reader, announced int64) *http.Request {
	return &http.Request{Body: io.NopCloser(body), ContentLength: announced}
}

func codeOf(err error) string {
	var refusal answerError
	if errors.As(err, &refusal) {
		return refusal.code
	}
	return ""
}

func TestBodiesAreReadWhole(t *testing.T) {
	var b bodies
	for _, size := range []int{0, 1, bodyStart - 1, bodyStart, bodyStart + 1, 3*bodyStart + 7, bodySmall + 1, bodyMax} {
		want := bytes.Repeat([]byte("x"), size)
		for _, announced := range []int64{int64(size), -1} {
			for _, r := range []io.Reader{bytes.NewReader(want), iotest.DataErrReader(bytes.NewReader(want)), iotest.HalfReader(bytes.NewReader(want))} {
				body, err := b.read("alice", posted(r, announced))
				if err != nil || !bytes.Equal(body.bytes, want) {
					t.Fatalf("%d bytes, announced %d: got %v, %v", size, announced, body, err)
				}
				if most := max(2*int64(size), bodyStart); b.held < int64(size) || b.held > most {
					t.Errorf("%d bytes, announced %d, take %d", size, announced, b.held)
				}
				body.close()
			}
		}
	}
	if b.held != 0 {
		t.Errorf("%d bytes are still held", b.held)
	}
}

func TestBodiesThatAreRefused(t *testing.T) {
	for name, test := range map[string]struct {
		body      io.Reader
		announced int64
		want      string
	}{
		"announced as too large": {iotest.ErrReader(errors.New("it was read")), bodyMax + 1, "request_too_large"},
		"too large":              {io.LimitReader(endless{}, bodyMax+1), -1, "request_too_large"},
		"endless":                {endless{}, -1, "request_too_large"},
		"broken off":             {io.MultiReader(strings.NewReader("{"), iotest.ErrReader(io.ErrUnexpectedEOF)), 100, "invalid_request"},
	} {
		var b bodies
		if _, err := b.read("alice", posted(test.body, test.announced)); codeOf(err) != test.want || b.held != 0 {
			t.Errorf("%s: got %v, held %d", name, err, b.held)
		}
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

// Large bodies are turned away when they would take too much together, also one whose size nobody announced; small ones then still
// find room, and when a call ends there is room for a large one again.
func TestBodiesTogether(t *testing.T) {
	var b bodies
	users := 0
	user := func() string { users++; return strconv.Itoa(users) }
	var large []*requestBody
	for {
		body, err := b.read(user(), posted(io.LimitReader(endless{}, bodyMax), bodyMax))
		if err != nil {
			if codeOf(err) != "overloaded" {
				t.Fatal(err)
			}
			break
		}
		large = append(large, body)
	}
	if held := int64(len(large)) * bodyMax; held > bodiesMax-bodiesMax/keptPart || held < bodiesMax/2 {
		t.Errorf("%d large bodies are held together", len(large))
	}
	if _, err := b.read(user(), posted(iotest.ErrReader(errors.New("it was read")), bodyMax)); codeOf(err) != "overloaded" {
		t.Errorf("announced: got %v", err)
	}
	before := b.held
	if _, err := b.read(user(), posted(io.LimitReader(endless{}, bodyMax), -1)); codeOf(err) != "overloaded" || b.held != before {
		t.Errorf("not announced: got %v, and %d bytes were left", err, b.held-before)
	}
	var small []*requestBody
	for range bodiesMax/keptPart/(bodySmall+1) - 1 {
		body, err := b.read(user(), posted(io.LimitReader(endless{}, bodySmall), bodySmall))
		if err != nil {
			t.Fatalf("after %d small ones: %v", len(small), err)
		}
		small = append(small, body)
	}
	for _, body := range append(large[1:], small...) {
		body.close()
	}
	if body, err := b.read(user(), posted(io.LimitReader(endless{}, bodyMax), bodyMax)); err != nil {
		t.Errorf("there is room again: %v", err)
	} else {
		body.close()
	}
	if large[0].close(); b.held != 0 {
		t.Errorf("%d bytes are still held", b.held)
	}
}

// One user's bodies leave room for everybody else's.
func TestBodiesOfOneUser(t *testing.T) {
	var b bodies
	var held []*requestBody
	for {
		body, err := b.read("alice", posted(io.LimitReader(endless{}, bodyMax/2), -1))
		if err != nil {
			break
		}
		held = append(held, body)
	}
	if taken := b.held; taken > bodiesShare || taken < bodiesShare/2 {
		t.Errorf("%d bytes are one user's", taken)
	}
	small, err := b.read("alice", posted(io.LimitReader(endless{}, bodySmall), bodySmall))
	if err != nil {
		t.Fatalf("a small one beside large ones: %v", err)
	}
	body, err := b.read("bob", posted(io.LimitReader(endless{}, bodyMax), bodyMax))
	if err != nil {
		t.Fatalf("another user's: %v", err)
	}
	for _, body := range append(held, small, body) {
		body.close()
	}
	if b.held != 0 || len(b.shares) != 0 {
		t.Errorf("%d bytes of %d users are still held", b.held, len(b.shares))
	}
}

// squeezed is a body in an encoding.
func squeezed(t *testing.T, encoding string, body []byte, options ...zstd.EOption) []byte {
	t.Helper()
	var text bytes.Buffer
	var w io.WriteCloser = gzip.NewWriter(&text)
	if encoding == "zstd" {
		var err error
		if w, err = zstd.NewWriter(&text, options...); err != nil {
			t.Fatal(err)
		}
	}
	_, err := w.Write(body)
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return text.Bytes()
}

// encoded is a request whose body is in an encoding.
func encoded(encoding string, body io.Reader, announced int64) *http.Request {
	r := posted(body, announced)
	r.Header = http.Header{"Content-Encoding": {encoding}}
	return r
}

func TestEncodedBodiesAreReadWhole(t *testing.T) {
	var b bodies
	for _, encoding := range []string{"gzip", "zstd", "GZIP", "Zstd"} {
		for _, size := range []int{1, bodyStart, bodySmall + 1, bodyMax} {
			want := bytes.Repeat([]byte("0123456789abcdef"), size/16+1)[:size]
			sent := squeezed(t, strings.ToLower(encoding), want)
			for _, announced := range []int64{int64(len(sent)), -1} {
				body, err := b.read("alice", encoded(encoding, iotest.HalfReader(bytes.NewReader(sent)), announced))
				if err != nil || !bytes.Equal(body.bytes, want) {
					t.Fatalf("%s of %d bytes, announced %d: got %v", encoding, size, announced, err)
				}
				if most := max(2*int64(size), bodyStart); b.held < int64(size) || b.held > most {
					t.Errorf("%s of %d bytes takes %d when it has been read", encoding, size, b.held)
				}
				body.close()
			}
		}
	}
	if b.held != 0 {
		t.Errorf("%d bytes are still held", b.held)
	}
}

func TestEncodedBodiesThatAreRefused(t *testing.T) {
	const text = `{"model":"m","messages":[{"role":"user","content":"Hello"}]}`
	type refused struct {
		encoding string
		body     []byte
		want     string
	}
	nothing := map[string][]byte{
		"gzip": squeezed(t, "gzip", nil),
		"zstd": append([]byte{0x50, 0x2a, 0x4d, 0x18, 0, 0, 1, 0}, make([]byte, 64<<10)...), // a frame to skip
	}
	cases := map[string]refused{
		"an unknown encoding":           {"br", []byte(text), "unsupported_encoding"},
		"a list of encodings":           {"gzip, zstd", []byte(text), "unsupported_encoding"},
		"a window that is too large":    {"zstd", squeezed(t, "zstd", bytes.Repeat([]byte("x"), 20<<20), zstd.WithWindowSize(2*windowMax)), "invalid_request"},
		"a later window that is larger": {"zstd", append(squeezed(t, "zstd", []byte(text)), squeezed(t, "zstd", bytes.Repeat([]byte("x"), 4<<20))...), "invalid_request"},
	}
	for _, encoding := range []string{"gzip", "zstd"} {
		good := squeezed(t, encoding, []byte(text))
		flipped := bytes.Clone(good)
		flipped[len(good)-6] ^= 1 // of what is checked
		for name, test := range map[string]refused{
			"nothing":             {encoding, nil, "invalid_request"},
			"another content":     {encoding, []byte(text), "invalid_request"},
			"the beginning alone": {encoding, good[:3], "invalid_request"},
			"half":                {encoding, good[:len(good)/2], "invalid_request"},
			"all but the end":     {encoding, good[:len(good)-1], "invalid_request"},
			"a wrong bit":         {encoding, flipped, "invalid_request"},
			"garbage behind it":   {encoding, append(bytes.Clone(good), "garbage"...), "invalid_request"},
			"a bomb":              {encoding, squeezed(t, encoding, make([]byte, 128<<20)), "request_too_large"},
			"one byte too many":   {encoding, squeezed(t, encoding, make([]byte, bodyMax+1)), "request_too_large"},
			"much of nothing":     {encoding, bytes.Repeat(nothing[encoding], bodyMax/len(nothing[encoding])+1), "request_too_large"},
		} {
			cases[encoding+": "+name] = test
		}
	}
	for name, test := range cases {
		var b bodies
		_, err := b.read("alice", encoded(test.encoding, bytes.NewReader(test.body), -1))
		if codeOf(err) != test.want || b.held != 0 || len(b.shares) != 0 {
			t.Errorf("%s: got %v, held %d", name, err, b.held)
		}
	}
	var b bodies
	for _, encoding := range []string{"gzip", "zstd"} {
		for _, body := range []string{"", string(squeezed(t, encoding, []byte(text))[:20])} {
			late := io.MultiReader(strings.NewReader(body), iotest.ErrReader(os.ErrDeadlineExceeded))
			if _, err := b.read("alice", encoded(encoding, late, -1)); codeOf(err) != "request_timeout" || b.held != 0 {
				t.Errorf("%s that does not arrive: got %v, held %d", encoding, err, b.held)
			}
		}
	}
}

// What decoding takes counts while it lasts: a user's slow bodies of large windows leave room for everybody else's.
func TestDecodingTakesMemory(t *testing.T) {
	var b bodies
	sent := squeezed(t, "zstd", bytes.Repeat([]byte("0123456789abcdef"), 1<<16), zstd.WithWindowSize(windowMax), zstd.WithSingleSegment(false))
	rest := make(chan struct{})
	var all sync.WaitGroup
	var overloaded atomic.Int64
	const senders = 20
	for range senders {
		waiting := readerFunc(func([]byte) (int, error) { <-rest; return 0, io.EOF })
		all.Go(func() {
			body, err := b.read("alice", encoded("zstd", io.MultiReader(bytes.NewReader(sent[:len(sent)-1]), waiting, bytes.NewReader(sent[len(sent)-1:])), -1))
			switch {
			case err == nil:
				body.close()
			case codeOf(err) == "overloaded":
				overloaded.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	for overloaded.Load() < senders-bodiesShare/windowMax {
		time.Sleep(time.Millisecond)
	}
	if body, err := b.read("bob", encoded("zstd", bytes.NewReader(sent), -1)); err != nil {
		t.Errorf("another user's: %v", err)
	} else {
		body.close()
	}
	close(rest)
	all.Wait()
	if b.held != 0 || len(b.shares) != 0 || overloaded.Load() == senders {
		t.Errorf("%d bytes are still held, %d of %d had no room", b.held, overloaded.Load(), senders)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }
