package pgproxy

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/jackc/pgx/v5/pgproto3"
)

// message is one message as it is on the wire.
type message struct {
	kind byte
	raw  []byte
}

// body is a message without its kind and its length.
func (m message) body() []byte { return m.raw[5:] }

// sizeMax is more than any test sends.
const sizeMax = 1 << 30

func readMessage(from *bufio.Reader) (message, error) {
	header := make([]byte, 5)
	if _, err := io.ReadFull(from, header); err != nil {
		return message{}, err
	}
	size := binary.BigEndian.Uint32(header[1:])
	if size < 4 || size > sizeMax {
		return message{}, fmt.Errorf("a message of %d bytes", size)
	}
	raw := append(header, make([]byte, size-4)...)
	_, err := io.ReadFull(from, raw[5:])
	return message{header[0], raw}, err
}

// encode makes a message that the proxy sends by itself.
func encode(m interface{ Encode([]byte) ([]byte, error) }) message {
	raw, err := m.Encode(nil)
	if err != nil {
		panic(err) // none of ours is too long
	}
	return message{raw[0], raw}
}

// failure is a server's error.
func failure(severity, code, text string) message {
	return encode(&pgproto3.ErrorResponse{Severity: severity, SeverityUnlocalized: severity, Code: code, Message: text})
}

// ready says in what state a transaction is at the end of an exchange.
func ready(status byte) message { return encode(&pgproto3.ReadyForQuery{TxStatus: status}) }

// The kinds of first messages, which have no kind on the wire; anything else is a startup.
const (
	cancelRequest = 80877102
	tlsRequest    = 80877103
	gssRequest    = 80877104
)

// greet reads a client's first message, after it has refused whatever encryption is asked for.
func greet(from *bufio.Reader, to io.Writer) (raw []byte, cancel bool, err error) {
	for {
		header := make([]byte, 8)
		if _, err := io.ReadFull(from, header); err != nil {
			return nil, false, err
		}
		size, code := binary.BigEndian.Uint32(header), binary.BigEndian.Uint32(header[4:])
		if size < 8 || size > 1<<16 {
			return nil, false, errors.New("no PostgreSQL client")
		}
		if code == tlsRequest || code == gssRequest {
			if _, err := to.Write([]byte("N")); err != nil {
				return nil, false, err
			}
			continue
		}
		raw := append(header, make([]byte, size-8)...)
		_, err := io.ReadFull(from, raw[8:])
		return raw, code == cancelRequest, err
	}
}
