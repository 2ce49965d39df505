package inference

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
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
