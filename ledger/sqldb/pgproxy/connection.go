package pgproxy

import (
	"bufio"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
)

// connection is a client's connection and the server's that belongs to it.
type connection struct {
	proxy          *Proxy
	client, server net.Conn
	// What both say, closed when they have ended.
	fromClient, fromServer chan message
	ended                  chan struct{}
	end                    sync.Once
	helpers                sync.WaitGroup

	statements statements
	exchange   exchange
	status     byte // of the transaction, by the last ReadyForQuery
	load       bool // the transaction began as READ ONLY
}

// errCut ends a connection by a fault.
var errCut = errors.New("pgproxy: cut")

// answerMax is how much of an answer waits for the rest of it.
const answerMax = 64 << 10

// serve serves a client until it or the server leaves, or a fault cuts the connection.
func (p *Proxy) serve(client net.Conn) {
	c := &connection{
		proxy: p, client: client, ended: make(chan struct{}),
		fromClient: make(chan message, 16), fromServer: make(chan message, 16),
		statements: statements{prepared: map[string]string{}, portals: map[string]string{}},
	}
	defer c.helpers.Wait()
	defer c.cut()
	if !p.enter(c) {
		return
	}
	defer p.leave(c)
	reader := bufio.NewReader(client)
	first, cancel, err := greet(reader, client)
	if err != nil || !c.dial() {
		return
	}
	if _, err := c.server.Write(first); err != nil {
		return
	}
	if cancel {
		_, _ = io.Copy(io.Discard, c.server) // it answers by its end
		return
	}
	p.mu.Lock()
	p.counts.Connections++
	p.mu.Unlock()
	c.helpers.Go(func() { c.read(reader, c.fromClient) })
	c.helpers.Go(func() { c.read(bufio.NewReader(c.server), c.fromServer) })
	c.relay()
}

// enter has a connection known, so that it can be cut.
func (p *Proxy) enter(c *connection) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.open[c] = struct{}{}
	}
	return !p.closed
}

func (p *Proxy) leave(c *connection) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, c)
}

// dial connects to the server.
func (c *connection) dial() bool {
	server, err := net.Dial(c.proxy.network, c.proxy.server)
	if err != nil {
		return false
	}
	c.proxy.mu.Lock()
	defer c.proxy.mu.Unlock()
	c.server = server
	select {
	case <-c.ended: // cut meanwhile
		_ = server.Close()
		return false
	default:
		return true
	}
}

// cut ends both connections. It holds the proxy's lock, or is the connection's last act.
func (c *connection) cut() {
	c.end.Do(func() {
		close(c.ended)
		_ = c.client.Close()
		if c.server != nil {
			_ = c.server.Close()
		}
	})
}

// read hands on what one side says until it ends.
func (c *connection) read(from *bufio.Reader, to chan<- message) {
	defer close(to)
	for {
		m, err := readMessage(from)
		if err != nil {
			return
		}
		select {
		case to <- m:
		case <-c.ended:
			return
		}
	}
}

// relay relays until one side ends.
func (c *connection) relay() {
	for {
		var err error
		select {
		case m, ok := <-c.fromClient:
			if !ok {
				return
			}
			err = c.fromClientCame(m)
		case m, ok := <-c.fromServer: // the startup, answers to a Flush, notices, its end
			if !ok {
				return
			}
			err = c.deliver(m)
		}
		if err != nil {
			return
		}
	}
}

// fromClientCame takes a client's message.
func (c *connection) fromClientCame(m message) error {
	switch m.kind {
	case 'P', 'B', 'D', 'E', 'C', 'S', 'Q':
		complete, err := c.statements.add(&c.exchange, m)
		if err != nil || !complete {
			return err
		}
		x := c.exchange
		c.exchange = exchange{}
		return c.run(&x)
	case 'H':
		messages := append(c.exchange.rest(), m)
		return <-c.send(messages)
	}
	return <-c.send([]message{m}) // passwords, Terminate
}

// rest takes what of an exchange was not sent, since the client flushes it.
func (x *exchange) rest() []message {
	messages := x.all()
	for i := range x.steps {
		x.steps[i].messages = nil
	}
	x.tail, x.flushed = nil, true
	return messages
}

// run has the server answer an exchange, unless a fault does.
func (c *connection) run(x *exchange) error {
	x.place(c.status == 'T', c.load)
	c.load = x.load
	c.proxy.count(x, x.load)
	fault, armed := shot{}, false
	if !x.flushed && c.status != 'E' {
		fault, armed = c.proxy.take(func(f Fault) bool { return f.fits(x) })
	}
	if !armed {
		return c.forward(x.all())
	}
	happened, err := c.fail(fault, x)
	if !happened {
		c.proxy.restore(fault)
	}
	return err
}

// send sends messages to the server. It does not wait for the server to read them, which may wait for its answers to be read.
func (c *connection) send(messages []message) <-chan error {
	var raw []byte
	for _, m := range messages {
		raw = append(raw, m.raw...)
	}
	sent := make(chan error, 1)
	c.helpers.Go(func() {
		_, err := c.server.Write(raw)
		sent <- err
	})
	return sent
}

// forward has the server answer, and the client hear it as it comes.
func (c *connection) forward(messages []message) error {
	sent, paused, size := c.send(messages), false, 0
	var answers []message
	for m := range c.fromServer {
		answers = append(answers, m)
		size += len(m.raw)
		if m.kind != 'Z' && size < answerMax {
			continue
		}
		if !paused {
			c.pause()
			paused = true
		}
		if err := c.deliver(answers...); err != nil {
			return err
		}
		if m.kind == 'Z' {
			return <-sent
		}
		answers, size = nil, 0
	}
	return errors.Join(c.deliver(answers...), io.ErrUnexpectedEOF) // the server's last words
}

// ask has the server answer and keeps the answers from the client.
func (c *connection) ask(messages ...message) (answers []message, err error) {
	sent := c.send(messages)
	for m := range c.fromServer {
		answers = append(answers, m)
		if m.kind == 'Z' {
			return answers, <-sent
		}
	}
	return nil, io.ErrUnexpectedEOF
}

// deliver has the client hear answers.
func (c *connection) deliver(answers ...message) error {
	var raw []byte
	for _, m := range answers {
		raw = append(raw, m.raw...)
		if m.kind == 'Z' {
			c.status = m.body()[0]
		}
	}
	_, err := c.client.Write(raw)
	return err
}

// pause waits as long as answers are delayed.
func (c *connection) pause() {
	c.proxy.mu.Lock()
	delay := c.proxy.delay
	c.proxy.mu.Unlock()
	if delay <= 0 {
		return
	}
	select {
	case <-c.ended:
	case <-time.After(delay):
	}
}

// fail has a fault happen in an exchange that it fits, unless the exchange fails by itself.
func (c *connection) fail(fault shot, x *exchange) (happened bool, err error) {
	switch fault.fault {
	case CutAtBegin:
		c.proxy.report(fault)
		return true, errCut
	case CutAtReads, CutAtLoad:
		return c.cutAfter(fault, x)
	case SerializationAtReads, SerializationAtLoad:
		return c.abort(fault, x, x.first)
	case SerializationAtStatement:
		return c.abort(fault, x, x.last)
	case AmbiguousCommitted, CutAfterCommit, CutInAnswer:
		return c.committed(fault, x)
	default:
		return c.rolledBack(fault, x)
	}
}

// cutAfter has the server answer an exchange, and the client lose its connection.
func (c *connection) cutAfter(fault shot, x *exchange) (happened bool, err error) {
	answers, err := c.ask(x.all()...)
	if err != nil {
		return false, err
	}
	if failed(answers) {
		return false, c.hear(answers)
	}
	c.proxy.report(fault)
	return true, errCut
}

// injected is called where a statement shall fail. It does not exist.
const injected = "pgproxy_injected_fault"

// abort has the server's transaction fail at a step, and the client hear 40001 for it.
func (c *connection) abort(fault shot, x *exchange, at int) (happened bool, err error) {
	messages := append(x.messages(0, at), encode(&pgproto3.Parse{Name: injected, Query: "SELECT " + injected + "()"}))
	if x.simple {
		messages = append(messages, encode(&pgproto3.Sync{}))
	} else {
		messages = append(append(messages, x.messages(at, len(x.steps))...), x.tail...) // which the server skips
	}
	answers, err := c.ask(messages...)
	if err != nil {
		return false, err
	}
	for i, m := range answers {
		if m.kind == 'E' && strings.Contains(string(m.raw), injected) {
			answers[i] = failure("ERROR", "40001", "could not serialize access due to concurrent update")
			c.proxy.report(fault)
			return true, c.hear(answers)
		}
	}
	return false, c.hear(answers)
}

// rolledBack has the server run what is before COMMIT and roll it back, and the client hear what the fault says of COMMIT.
func (c *connection) rolledBack(fault shot, x *exchange) (happened bool, err error) {
	var answers []message
	if before := x.beforeCommit(); len(before) > 0 {
		if answers, err = c.ask(append(before, encode(&pgproto3.Sync{}))...); err != nil {
			return false, err
		}
		if failed(answers) {
			return false, c.hear(answers)
		}
		answers = answers[:len(answers)-1] // the Sync was ours
	}
	if _, err := c.ask(encode(&pgproto3.Query{String: "ROLLBACK"})); err != nil {
		return false, err
	}
	c.proxy.report(fault)
	switch fault.fault {
	case SerializationAtCommit:
		return true, c.hear(answers, failure("ERROR", "40001", "restart transaction: TransactionRetryWithProtoRefreshError: RETRY_SERIALIZABLE"), ready('I'))
	case AmbiguousNotCommitted:
		return true, c.hear(answers, failure("ERROR", "40003", "result is ambiguous"), ready('I'))
	case ShutdownAtCommit:
		return true, errors.Join(c.hear(answers, failure("FATAL", "57P01", "terminating connection due to administrator command")), errCut)
	}
	return true, errCut
}

// committed has the server commit, and the client hear of it only what the fault says.
func (c *connection) committed(fault shot, x *exchange) (happened bool, err error) {
	answers, err := c.ask(x.all()...)
	if err != nil {
		return false, err
	}
	end := completion(answers, x.commit)
	if end < 0 || !strings.HasPrefix(string(answers[end].body()), "COMMIT") {
		return false, c.hear(answers)
	}
	c.proxy.report(fault)
	switch fault.fault {
	case AmbiguousCommitted:
		return true, c.hear(answers[:end], failure("ERROR", "40003", "result is ambiguous"), ready('I'))
	case CutInAnswer:
		return true, errors.Join(c.hear(answers[:end]), errCut)
	}
	return true, errCut
}

// hear has the client hear answers that were kept from it, and what the proxy adds to them.
func (c *connection) hear(answers []message, more ...message) error {
	c.pause()
	return c.deliver(append(answers[:len(answers):len(answers)], more...)...)
}

func failed(answers []message) bool {
	for _, m := range answers {
		if m.kind == 'E' {
			return true
		}
	}
	return false
}

// completion is where in answers the end of a step is, or -1.
func completion(answers []message, step int) int {
	for i, m := range answers {
		switch m.kind {
		case 'C', 'I', 's':
			if step == 0 {
				return i
			}
			step--
		}
	}
	return -1
}
