package upstream

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/iotest"
)

func TestAnswersAreReadWhole(t *testing.T) {
	var m Memory
	for _, size := range []int{0, 1, answerStart - 1, answerStart, answerStart + 1, 5*answerStart + 3, BodyMax} {
		want := bytes.Repeat([]byte("x"), size)
		for _, announced := range []int64{int64(size), -1} {
			for _, r := range []io.Reader{bytes.NewReader(want), iotest.DataErrReader(bytes.NewReader(want))} {
				whole, err := m.Read(r, announced)
				if err != nil || !bytes.Equal(whole.Bytes, want) {
					t.Fatalf("%d bytes, announced %d: got %d, %v", size, announced, len(whole.Bytes), err)
				}
				if m.held < int64(size) || m.held > max(2*int64(size), answerStart) {
					t.Errorf("%d bytes take %d", size, m.held)
				}
				whole.Close()
				whole.Close()
			}
		}
	}
	if m.held != 0 {
		t.Errorf("%d bytes are still held", m.held)
	}
}

func TestAnswersThatAreNotRead(t *testing.T) {
	broken := errors.New("broken")
	for name, test := range map[string]struct {
		r         io.Reader
		announced int64
		want      error
	}{
		"announced as too large": {iotest.ErrReader(errors.New("it was read")), BodyMax + 1, ErrSize},
		"too large":              {io.LimitReader(endless{}, BodyMax+1), -1, ErrSize},
		"endless":                {endless{}, 10, ErrSize},
		"broken":                 {io.MultiReader(bytes.NewReader([]byte("{")), iotest.ErrReader(broken)), -1, broken},
	} {
		var m Memory
		whole, err := m.Read(test.r, test.announced)
		if whole.Close(); !errors.Is(err, test.want) || m.held != 0 {
			t.Errorf("%s: got %v, held %d", name, err, m.held)
		}
	}
}

// Answers are bounded together: what has no room beside the others is not read, and there is room again when one is closed.
func TestAnswersTogether(t *testing.T) {
	var m Memory
	var held []*Whole
	for {
		whole, err := m.Read(io.LimitReader(endless{}, BodyMax/2), -1)
		if err != nil {
			whole.Close()
			if !errors.Is(err, ErrMemory) {
				t.Fatal(err)
			}
			break
		}
		held = append(held, whole)
	}
	if len(held) < answersMax/BodyMax || m.held > answersMax {
		t.Errorf("%d answers take %d", len(held), m.held)
	}
	held[0].Close()
	whole, err := m.Read(io.LimitReader(endless{}, BodyMax/2), -1)
	if err != nil {
		t.Errorf("there is no room again: %v", err)
	}
	for _, w := range append(held[1:], whole) {
		w.Close()
	}
	if m.held != 0 {
		t.Errorf("%d bytes are still held", m.held)
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}
