// Package fake is a server that speaks enough of MongoDB's wire protocol to imitate situations that are hard to cause with a real server:
// specific errors, an election, silence. It stores nothing.
//
// https://www.mongodb.com/docs/manual/reference/mongodb-wire-protocol/
package fake

import (
	"encoding/binary"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/mongowire"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// Server is a fake server. Safe for concurrent use.
type Server struct {
	answer   func(command string, document bson.Raw) bson.D
	listener net.Listener
	conns    sync.WaitGroup

	mu       sync.Mutex
	commands []string
	open     map[net.Conn]bool
	silent   chan struct{} // nil: it answers; closed when it answers again
}

// Start starts a server that ends with the test. Commands for which answer returns nil get the answer of an empty primary.
func Start(t testing.TB, answer func(command string) bson.D) *Server {
	t.Helper()
	return StartWith(t, func(command string, _ bson.Raw) bson.D { return answer(command) })
}

// StartWith is Start for an answer that depends on the whole command.
func StartWith(t testing.TB, answer func(command string, document bson.Raw) bson.D) *Server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{answer: answer, listener: l, open: map[net.Conn]bool{}}
	s.conns.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.open[c] = true
			s.mu.Unlock()
			s.conns.Go(func() { s.serve(c) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		s.Silent(false)
		s.mu.Lock()
		for c := range s.open {
			c.Close()
		}
		s.mu.Unlock()
		s.conns.Wait()
	})
	return s
}

// Addr is host:port of the server.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// Commands returns the names of the commands that answer handled.
func (s *Server) Commands() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.commands)
}

// Silent makes the server accept every request and answer none, like a stopped (SIGSTOP) server, until it is called with false.
func (s *Server) Silent(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case on && s.silent == nil:
		s.silent = make(chan struct{})
	case !on && s.silent != nil:
		close(s.silent)
		s.silent = nil
	}
}

func (s *Server) serve(c net.Conn) {
	defer func() {
		c.Close()
		s.mu.Lock()
		delete(s.open, c)
		s.mu.Unlock()
	}()
	for {
		var head [16]byte
		if _, err := io.ReadFull(c, head[:]); err != nil {
			return
		}
		opcode := binary.LittleEndian.Uint32(head[12:])
		if opcode != mongowire.OpQuery && opcode != mongowire.OpMsg {
			return // TLS, for example: it hangs up, as servers do
		}
		body := make([]byte, binary.LittleEndian.Uint32(head[:])-16)
		if _, err := io.ReadFull(c, body); err != nil {
			return
		}
		s.mu.Lock()
		silent := s.silent
		s.mu.Unlock()
		if silent != nil {
			<-silent
		}
		request := head[4:8]
		var document bson.Raw
		switch opcode {
		case mongowire.OpQuery: // flags, collection, skip, limit, document
			end := 4 + slices.Index(body[4:], 0) + 1
			document = bson.Raw(body[end+8:])
		case mongowire.OpMsg: // flags, section of kind 0
			document = bson.Raw(body[5:])
		}
		elements, err := document[:binary.LittleEndian.Uint32(document)].Elements()
		if err != nil || len(elements) == 0 {
			return
		}
		reply, err := bson.Marshal(s.reply(elements[0].Key(), document))
		if err != nil {
			panic(err)
		}
		prefix := []byte{0, 0, 0, 0, 0} // OP_MSG: flags, kind
		answerCode := uint32(mongowire.OpMsg)
		if opcode == mongowire.OpQuery {
			answerCode = mongowire.OpReply
			prefix = append(make([]byte, 16), 1, 0, 0, 0)[:20] // flags, cursor, starting from, number
		}
		out := binary.LittleEndian.AppendUint32(nil, uint32(16+len(prefix)+len(reply)))
		out = append(out, 0, 0, 0, 0)
		out = append(out, request...)
		out = binary.LittleEndian.AppendUint32(out, answerCode)
		out = append(append(out, prefix...), reply...)
		if _, err := c.Write(out); err != nil {
			return
		}
	}
}

func (s *Server) reply(command string, document bson.Raw) bson.D {
	s.mu.Lock()
	defer s.mu.Unlock()
	if reply := s.answer(command, document); reply != nil {
		s.commands = append(s.commands, command)
		return reply
	}
	switch {
	case IsHello(command):
		return Hello(bson.E{Key: "isWritablePrimary", Value: true}, bson.E{Key: "ismaster", Value: true}, bson.E{Key: "localTime", Value: time.UnixMilli(1_700_000_000_000)})
	case command == "find" || command == "aggregate" || command == "listIndexes":
		return Found("db.none")
	}
	return bson.D{{Key: "ok", Value: 1}}
}

// IsHello reports whether a command is the greeting, in its old or new form.
func IsHello(command string) bool {
	return strings.EqualFold(command, "hello") || strings.EqualFold(command, "isMaster")
}

// Hello returns the answer to the greeting with these changes.
func Hello(changes ...bson.E) bson.D {
	return append(bson.D{
		{Key: "ok", Value: 1}, {Key: "maxBsonObjectSize", Value: 16 << 20}, {Key: "maxMessageSizeBytes", Value: 48_000_000},
		{Key: "maxWriteBatchSize", Value: 100_000}, {Key: "minWireVersion", Value: 0}, {Key: "maxWireVersion", Value: 21},
	}, changes...)
}

// Member returns the answer of the only member of a replica set to the greeting.
func (s *Server) Member(primary bool) bson.D {
	return Hello(bson.E{Key: "isWritablePrimary", Value: primary}, bson.E{Key: "ismaster", Value: primary}, bson.E{Key: "secondary", Value: !primary},
		bson.E{Key: "setName", Value: "rs0"}, bson.E{Key: "hosts", Value: bson.A{s.Addr()}}, bson.E{Key: "me", Value: s.Addr()},
		bson.E{Key: "localTime", Value: time.UnixMilli(1_700_000_000_000)})
}

// Found returns the answer to a find: these documents.
func Found(ns string, documents ...bson.D) bson.D {
	batch := bson.A{}
	for _, d := range documents {
		batch = append(batch, d)
	}
	return bson.D{{Key: "ok", Value: 1}, {Key: "cursor", Value: bson.D{{Key: "id", Value: int64(0)}, {Key: "ns", Value: ns}, {Key: "firstBatch", Value: batch}}}}
}

// Failed returns the answer to a command that fails.
func Failed(code int) bson.D {
	return bson.D{{Key: "ok", Value: 0}, {Key: "code", Value: code}, {Key: "errmsg", Value: "no"}}
}
