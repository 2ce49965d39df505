package fake

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"time"
)

const (
	blockSize = 64 << 10    // of what is sent many times: one write for many short texts
	wireStall = time.Minute // a write that nobody takes for so long ends the call
)

// wire takes the connection from the HTTP server and sends what the script says. The other side may have enough at any time.
func (c *call) wire() error {
	connection, _, err := http.NewResponseController(c.w).Hijack()
	if err != nil {
		return err
	}
	defer func() { _ = connection.Close() }() // what the script wanted to send was sent
	left := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, connection) // it returns when the other side has gone, or this one has closed
		close(left)
	}()
	for _, piece := range c.step.Wire {
		if c.sendPiece(connection, left, piece) != nil {
			return nil
		}
	}
	switch c.step.WireEnd {
	case WireHold:
		select {
		case <-c.released:
		case <-left:
		}
	case WireReset:
		if tcp, ok := connection.(*net.TCPConn); ok {
			return tcp.SetLinger(0)
		}
	}
	return nil
}

// sendPiece sends a piece as often as it says, many times in one write unless there are pauses or the writes are to be small.
func (c *call) sendPiece(connection net.Conn, left <-chan struct{}, piece Piece) error {
	text, times := []byte(piece.Text), max(piece.Times, 1)
	for times > 0 {
		many := 1
		if piece.PauseMillis == 0 {
			many = min(times, max(1, blockSize/len(text)))
		}
		select {
		case <-time.After(millis(piece.PauseMillis)):
		case <-left:
			return net.ErrClosed
		}
		if err := c.sendRaw(connection, bytes.Repeat(text, many)); err != nil {
			return err
		}
		times -= many
	}
	return nil
}

func (c *call) sendRaw(connection net.Conn, text []byte) error {
	size := len(text)
	if c.step.Split > 0 {
		size = c.step.Split
	}
	for len(text) > 0 {
		n := min(size, len(text))
		if err := connection.SetWriteDeadline(time.Now().Add(wireStall)); err != nil {
			return err
		}
		if _, err := connection.Write(text[:n]); err != nil {
			return err
		}
		text = text[n:]
	}
	return nil
}
