package server

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
)

// openSink opens a sink's file for appending whole lines. What a process that died in the middle of a write has left of a line is
// cut off: the journal remembers that it was not shipped, and it is written again.
func openSink(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	if err := cutTornLine(file); err != nil {
		return nil, errors.Join(fmt.Errorf("the last line of %s: %w", path, err), file.Close())
	}
	return file, nil
}

// tailChunk is read at a time in search of the last line's end: some records.
const tailChunk = 64 << 10

// cutTornLine ends a file after its last line's end. Pipes and devices keep nothing that could be cut.
func cutTornLine(file *os.File) error {
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return err
	}
	reader, err := os.Open(file.Name())
	if err != nil {
		return err
	}
	defer func() { _ = reader.Close() }() // it was only read
	size := info.Size()
	for end := size; end > 0; {
		start := max(0, end-tailChunk)
		chunk := make([]byte, end-start)
		if _, err := reader.ReadAt(chunk, start); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if at := bytes.LastIndexByte(chunk, '\n'); at >= 0 {
			if whole := start + int64(at) + 1; whole < size {
				return file.Truncate(whole)
			}
			return nil
		}
		end = start
	}
	if size == 0 {
		return nil
	}
	return file.Truncate(0)
}
