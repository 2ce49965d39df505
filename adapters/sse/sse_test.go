package sse

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

// seen is an event copied out of the reader's buffer.
type seen struct {
	Raw, Data, Name string
	HasData         bool
	Partial         bool
}

// counted counts how often it is read.
type counted struct {
	io.Reader
	reads int
}

func (c *counted) Read(buffer []byte) (int, error) {
	c.reads++
	return c.Reader.Read(buffer)
}

// errReady is returned if a reader was ready and read on, or brought no data.
var errReady = errors.New("the reader was not ready")

func readAll(source io.Reader) (events []seen, err error) {
	input := &counted{Reader: source}
	reader := NewReader(input)
	for {
		ready, reads := reader.Ready(), input.reads
		event, err := reader.Next()
		if ready && (err != nil || input.reads > reads || len(bytes.TrimSpace(event.Data)) == 0) {
			return events, errReady
		}
		if err != nil {
			return events, err
		}
		events = append(events, seen{string(event.Raw), string(event.Data), string(event.Name), event.Data != nil, event.Partial})
	}
}

// pieces delivers a text in reads of the given sizes, over and over.
type pieces struct {
	text  string
	sizes []int
	turn  int
}

func (p *pieces) Read(buffer []byte) (int, error) {
	if p.text == "" {
		return 0, io.EOF
	}
	n := min(max(1, p.sizes[p.turn%len(p.sizes)]), len(p.text), len(buffer))
	p.turn++
	copy(buffer, p.text[:n])
	p.text = p.text[n:]
	return n, nil
}

// shape is an input and the events in it.
type shape struct {
	name, input string
	want        []seen
}

func shapes() []shape {
	return []shape{
		{"nothing", "", nil},
		{"LF", "data: a\n\ndata: b\n\n", []seen{{Raw: "data: a\n\n", Data: "a", HasData: true}, {Raw: "data: b\n\n", Data: "b", HasData: true}}},
		{"CR LF", "data: a\r\n\r\ndata: b\r\n\r\n", []seen{{Raw: "data: a\r\n\r\n", Data: "a", HasData: true}, {Raw: "data: b\r\n\r\n", Data: "b", HasData: true}}},
		{"CR", "data: a\r\rdata: b\r\r", []seen{{Raw: "data: a\r\r", Data: "a", HasData: true}, {Raw: "data: b\r\r", Data: "b", HasData: true}}},
		{"CR then CR LF", "data: a\r\r\ndata: b\r\r", []seen{{Raw: "data: a\r\r", Data: "a", HasData: true}, {Raw: "\ndata: b\r\r", Data: "b", HasData: true}}},
		{"LF then CR", "data: a\n\rdata: b\n\n", []seen{{Raw: "data: a\n\r", Data: "a", HasData: true}, {Raw: "data: b\n\n", Data: "b", HasData: true}}},
		{"no space", "data:a\n\n", []seen{{Raw: "data:a\n\n", Data: "a", HasData: true}}},
		{"two spaces", "data:  a\n\n", []seen{{Raw: "data:  a\n\n", Data: " a", HasData: true}}},
		{"name", "event: ping\ndata: {}\n\n", []seen{{Raw: "event: ping\ndata: {}\n\n", Data: "{}", Name: "ping", HasData: true}}},
		{"two lines", "data: a\nid: 7\ndata: b\n\n", []seen{{Raw: "data: a\nid: 7\ndata: b\n\n", Data: "a\nb", HasData: true}}},
		{"three lines", "data:\ndata\ndata: c\n\n", []seen{{Raw: "data:\ndata\ndata: c\n\n", Data: "\n\nc", HasData: true}}},
		{"empty data", "data:\n\n", []seen{{Raw: "data:\n\n", HasData: true}}},
		{"comment", ": PROCESSING\n\ndata: a\n\n", []seen{{Raw: ": PROCESSING\n\n"}, {Raw: "data: a\n\n", Data: "a", HasData: true}}},
		{"mark", "\xef\xbb\xbfdata: a\n\n", []seen{{Raw: "\xef\xbb\xbfdata: a\n\n", Data: "a", HasData: true}}},
		{"mark in the middle is none", "data: a\n\n\xef\xbb\xbfdata: b\n\n", []seen{{Raw: "data: a\n\n", Data: "a", HasData: true}, {Raw: "\xef\xbb\xbfdata: b\n\n"}}},
		{"surplus blank lines", "\n\ndata: a\n\n\n", []seen{{Raw: "\n"}, {Raw: "\n"}, {Raw: "data: a\n\n", Data: "a", HasData: true}, {Raw: "\n"}}},
		{"cut in a line", "data: a\n\ndata: b", []seen{{Raw: "data: a\n\n", Data: "a", HasData: true}, {Raw: "data: b", Data: "b", HasData: true, Partial: true}}},
		{"cut after a line", "data: b\r\n", []seen{{Raw: "data: b\r\n", Data: "b", HasData: true, Partial: true}}},
		{"cut in a line end", "data: b\r", []seen{{Raw: "data: b\r", Data: "b", HasData: true, Partial: true}}},
		{"cut in the blank line's end", "data: b\r\n\r", []seen{{Raw: "data: b\r\n\r", Data: "b", HasData: true}}},
	}
}

func TestEvents(t *testing.T) {
	for _, test := range shapes() {
		t.Run(test.name, func(t *testing.T) {
			checkSplits(t, test.input, test.want)
		})
	}
}

// checkSplits reads the input whole, byte by byte, and cut in two at every place.
func checkSplits(t *testing.T, input string, want []seen) {
	t.Helper()
	check := func(how string, source io.Reader) {
		t.Helper()
		got, err := readAll(source)
		if err != io.EOF {
			t.Fatalf("%s: error %v, want EOF", how, err)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%s:\n got %+v\nwant %+v", how, got, want)
		}
	}
	check("whole", strings.NewReader(input))
	check("with the error at once", iotest.DataErrReader(strings.NewReader(input)))
	check("by bytes", iotest.OneByteReader(strings.NewReader(input)))
	for i := 1; i < len(input); i++ {
		check(fmt.Sprintf("cut at %d", i), io.MultiReader(strings.NewReader(input[:i]), strings.NewReader(input[i:])))
	}
}

func TestManyEventsInRandomPieces(t *testing.T) {
	random := rand.New(rand.NewSource(1))
	ends := []string{"\n", "\r\n", "\r"}
	for range 30 {
		var input strings.Builder
		end := ends[random.Intn(len(ends))]
		for range 200 {
			fmt.Fprintf(&input, "data: %s%s%s", strings.Repeat("é", random.Intn(3000)), end, end)
		}
		sizes := []int{1 + random.Intn(9000), 1 + random.Intn(300), 1 + random.Intn(5000)}
		got, err := readAll(&pieces{text: input.String(), sizes: sizes})
		if err != io.EOF || len(got) != 200 {
			t.Fatalf("%d events, %v", len(got), err)
		}
		if joinRaw(got) != input.String() {
			t.Fatal("the raw bytes are not the input")
		}
	}
}

func joinRaw(events []seen) string {
	var all strings.Builder
	for _, event := range events {
		all.WriteString(event.Raw)
	}
	return all.String()
}

// An event must be returned as soon as it is complete, not when more arrives.
func TestEventsAreNotHeldBack(t *testing.T) {
	for _, input := range []string{"data: a\n\n", "data: a\r\n\r\n", "data: a\r\r"} {
		source, sink := io.Pipe()
		go sink.Write([]byte(input))
		event, err := NewReader(source).Next()
		if err != nil || string(event.Raw) != input {
			t.Errorf("%q: got %q, %v", input, event.Raw, err)
		}
		source.Close()
	}
}

func TestReady(t *testing.T) {
	for input, want := range map[string]bool{
		"data: b\n\n": true, "event: b\ndata:b\n\ndata": true, "data: a\ndata: b\n\n: c\n\n": true, "\xef\xbb\xbfdata: b\n\n": false,
		"": false, "data: b": false, "data: b\n": false, ": b\n\ndata: b\n\n": false, "data:\n\n": false, "data: \t\n\n": false, "data\n\n": false,
		"\ndata: b\n\n": false, "\n\ndata: b\n\n": false, "database: b\n\n": false, "data: \r: c\n\n": false, "\r\ndata: b\n\n": false,
	} {
		reader := NewReader(strings.NewReader("data: a\n\n" + input))
		if _, err := reader.Next(); err != nil || reader.Ready() != want {
			t.Errorf("%q: got %v, %v", input, reader.Ready(), err)
		}
	}
	if reader := NewReader(strings.NewReader("data: a\n\n")); reader.Ready() {
		t.Error("ready before anything was read")
	}
}

func TestFrameBound(t *testing.T) {
	fits := "data: " + strings.Repeat("x", FrameMax-len("data: \n\n")) + "\n\n"
	tests := []struct {
		name, input string
		events      int
		err         error
	}{
		{"largest", "data: a\n\n" + fits + "data: b\n\n", 3, io.EOF},
		{"one more", "data: a\n\n" + "x" + fits, 1, ErrFrame},
		{"largest cut off", fits[:len(fits)-1], 1, io.EOF},
		{"cut off beyond", "data: " + strings.Repeat("x", FrameMax), 0, ErrFrame},
		{"many lines", strings.Repeat("data: x\r", FrameMax/8+1), 0, ErrFrame},
	}
	for _, test := range tests {
		for _, size := range []int{1 << 10, 1 << 23} {
			got, err := readAll(&pieces{text: test.input, sizes: []int{size}})
			if len(got) != test.events || !errors.Is(err, test.err) {
				t.Errorf("%s in reads of %d: %d events and %v, want %d and %v", test.name, size, len(got), err, test.events, test.err)
			}
		}
	}
}

func TestErrorsStay(t *testing.T) {
	broken := errors.New("broken")
	reader := NewReader(io.MultiReader(strings.NewReader("data: a\n\ndata: b"), iotest.ErrReader(broken)))
	if _, err := reader.Next(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if event, err := reader.Next(); err != broken {
			t.Fatalf("got %q, %v; want the source's error, and not half an event", event.Raw, err)
		}
	}
	if _, err := NewReader(&idle{}).Next(); err != io.ErrNoProgress {
		t.Fatalf("a reader that delivers nothing: %v", err)
	}
}

type idle struct{}

func (*idle) Read([]byte) (int, error) { return 0, nil }

func TestAppendWithData(t *testing.T) {
	tests := []struct{ name, input, data, want string }{
		{"one line", "event: x\ndata:{a}\r\n\r\n", "{b}", "event: x\ndata:{b}\r\n\r\n"},
		{"two lines", ": c\ndata: {\nid: 1\ndata: }\n\n", "{b}", ": c\ndata: {b}\nid: 1\n\n"},
		{"to two lines", "data: {}\n\n", "{\n}", "data: {\ndata: }\n\n"},
		{"lines to lines", "data: {\r\ndata: }\r\n\r\n", "[\n]", "data: [\r\ndata: ]\r\n\r\n"},
		{"mark", "\xef\xbb\xbfdata: {\ndata: }\n\n", "[]", "\xef\xbb\xbfdata: []\n\n"},
		{"no data", ": c\n\n", "x", ": c\n\n"},
		{"cut off", "data: {\ndata: }", "[]", "data: []\n"},
	}
	for _, test := range tests {
		event, err := NewReader(strings.NewReader(test.input)).Next()
		if err != nil {
			t.Fatal(err)
		}
		if got := string(event.AppendWithData(nil, []byte(test.data))); got != test.want {
			t.Errorf("%s: got %q, want %q", test.name, got, test.want)
		}
	}
}

// Whatever line ends an event mixes, and wherever its data lines stand, it stays one event, with the other data.
func TestAppendWithDataStaysOneEvent(t *testing.T) {
	lines, ends := []string{"data: a", "event: x", ": c", "data"}, []string{"\n", "\r", "\r\n"}
	inputs := []string{""}
	for range 3 {
		var longer []string
		for _, input := range inputs {
			for _, line := range lines {
				for _, end := range ends {
					longer = append(longer, input+line+end)
				}
			}
		}
		inputs = append(longer, "data: b\r")
	}
	for _, input := range inputs {
		for _, end := range ends {
			checkAppendWithData(t, input+end+"data: next\n\n")
		}
	}
}

func checkAppendWithData(t *testing.T, input string) {
	t.Helper()
	events := NewReader(strings.NewReader(input))
	before, count := "", 0
	for {
		event, err := events.Next()
		if err == io.EOF {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, data := range []string{"{}", "{\n}"} {
			if event.Data == nil {
				data = ""
			}
			edited := string(event.AppendWithData(nil, []byte(data)))
			got, err := readAll(strings.NewReader(before + edited + "data: end\n\n"))
			if err != io.EOF || len(got) != count+2 || got[count].Partial || got[count].Data != data || got[count].Name != string(event.Name) {
				t.Fatalf("%q with %q is %q: %+v, %v", event.Raw, data, edited, got, err)
			}
		}
		before, count = before+string(event.Raw), count+1
	}
}

func TestReadingDoesNotAllocate(t *testing.T) {
	source := strings.NewReader(strings.Repeat("data: {\"a\":1}\n\n", 5000))
	reader := NewReader(source)
	if _, err := reader.Next(); err != nil {
		t.Fatal(err)
	}
	if allocations := testing.AllocsPerRun(1000, func() {
		if _, err := reader.Next(); err != nil {
			t.Fatal(err)
		}
	}); allocations > 0 {
		t.Fatalf("%v allocations an event", allocations)
	}
}

// However the input is cut, the events are the same and their bytes are the input.
func FuzzSplits(f *testing.F) {
	f.Add("data: a\r\n\r\ndata:b\n\n: c\r\rdata: d", uint8(1), uint8(3))
	f.Add("\xef\xbb\xbfevent: x\ndata: {\ndata: }\n\r\n\r\r\n", uint8(2), uint8(7))
	for i, shape := range shapes() {
		f.Add(shape.input, uint8(i), uint8(1))
	}
	for i, hostile := range []string{
		"<html>\n<body>\n", "\x1f\x8b\x08\x00\x00", "data: \x00\n\n", "data: \xff\xfe\n\n", strings.Repeat("\r", 300), strings.Repeat("\n", 300),
		strings.Repeat("data\r", 100), "data: " + strings.Repeat("é", 3000), ":\n:\r:\r\n\n", "data: [DONE]\n\ndata: more\n\n",
		"event: error\ndata: {\"error\":{}}\n\n", "id: 1\nretry: 9\ndata: {}\n\n", "data: {\"choices\":[{\"delta\":{\"content\":\"a\\n\"}}]}\r\n\r\n",
		"\xef\xbb\xbf\xef\xbb\xbfdata: a\n\n", "\xef\xbb", "\xef\xbb\xbf", "data\n\n", "data:\r\r\ndata:\n\r",
	} {
		f.Add(hostile, uint8(1), uint8(i))
	}
	f.Fuzz(func(t *testing.T, input string, first, second uint8) {
		whole, err := readAll(strings.NewReader(input))
		if err != io.EOF {
			t.Fatal(err)
		}
		if joinRaw(whole) != input {
			t.Fatalf("the raw bytes of %+v are not the input %q", whole, input)
		}
		cut, err := readAll(&pieces{text: input, sizes: []int{int(first), int(second)}})
		if err != io.EOF {
			t.Fatal(err)
		}
		if !slices.Equal(cut, whole) {
			t.Fatalf("cut into %d and %d:\n got %+v\nwant %+v", first, second, cut, whole)
		}
		for i, event := range whole[:max(0, len(whole)-1)] {
			if event.Partial {
				t.Fatalf("event %d is partial and not the last", i)
			}
		}
	})
}

func BenchmarkNext(b *testing.B) {
	chunk := []byte(`data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"hello"},"logprobs":null,"finish_reason":null}]}` + "\n\n")
	b.SetBytes(int64(len(chunk)))
	b.ReportAllocs()
	reader := NewReader(bytes.NewReader(bytes.Repeat(chunk, b.N)))
	for b.Loop() {
		if _, err := reader.Next(); err != nil {
			reader = NewReader(bytes.NewReader(bytes.Repeat(chunk, 10000)))
		}
	}
}

// TestCompleted: whatever an event was cut off after, completed it is one whole event of the same data.
func TestCompleted(t *testing.T) {
	for _, stream := range []string{"data: a", "data: a\n", "data: a\r", "data: a\r\n", "event: e\ndata: a", "data: a\n: comment", "data: a\n\n", "\xef\xbb\xbfdata: a"} {
		event, err := NewReader(strings.NewReader(stream)).Next()
		if err != nil {
			t.Fatal(err)
		}
		event = event.Completed()
		for _, data := range []string{"a", "longer"} {
			again, err := NewReader(bytes.NewReader(event.AppendWithData(nil, []byte(data)))).Next()
			if err != nil || again.Partial || string(again.Data) != data || event.Partial || !strings.HasPrefix(string(event.Raw), stream) {
				t.Errorf("%q: got %q of %q, %v", stream, again.Data, event.Raw, err)
			}
		}
	}
}
