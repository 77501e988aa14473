// Load for `tests/bench/session.py`: one program for unary calls and for sessions, so that neither side's client is the
// slower one. Messages are bytes both ways: a call is a template with a call_id of its own behind it, and of an answer
// only what tells whether it succeeded is looked at. Prints one line of JSON.
//
//	session_load -address 127.0.0.1:50051 -call <base64> -batch 64 -seconds 8     batch 0: unary
package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protowire"
)

const (
	unaryMethod   = "/toolhub.v1.ToolService/Invoke"
	sessionMethod = "/toolhub.v1.ToolService/InvokeSession"
	// Field numbers of toolhub.v1: see proto/toolhub/v1/tool_service.proto.
	callsField, callIDField, eventsField = 1, 7, 1
	eventResultField, unaryResultField   = 4, 1
	resultOkField                        = 1
)

// tally is what one connection saw.
type tally struct {
	calls, failed int
	waits         []time.Duration
}

// verbatim sends and receives bytes as they are.
type verbatim struct{}

func (verbatim) Marshal(message any) ([]byte, error)   { return *message.(*[]byte), nil }
func (verbatim) Unmarshal(data []byte, into any) error { *into.(*[]byte) = slices.Clone(data); return nil }
func (verbatim) Name() string                          { return "proto" }

func main() {
	address := flag.String("address", "", "host:port")
	encoded := flag.String("call", "", "base64 of an InvokeRequest, or of a SessionCall without its call_id")
	batch := flag.Int("batch", 0, "calls a message; 0: unary calls")
	window := flag.Int("window", 4, "messages, or unary calls, in flight on a connection")
	connections := flag.Int("connections", 4, "connections")
	seconds := flag.Float64("seconds", 8, "how long")
	flag.Parse()
	call, err := base64.StdEncoding.DecodeString(*encoded)
	if err != nil || len(call) == 0 {
		log.Fatal("-call is missing or is not base64")
	}
	until := time.Now().Add(time.Duration(*seconds * float64(time.Second)))
	tallies := make([]tally, *connections)
	var running sync.WaitGroup
	began := time.Now()
	for place := range tallies {
		running.Add(1)
		go func() {
			defer running.Done()
			if err := drive(&tallies[place], *address, call, *batch, *window, until); err != nil {
				log.Fatal(err)
			}
		}()
	}
	running.Wait()
	report(tallies, time.Since(began))
}

func drive(seen *tally, address string, call []byte, batch, window int, until time.Time) error {
	connection, err := grpc.NewClient(address,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(verbatim{})))
	if err != nil {
		return err
	}
	defer connection.Close()
	if batch == 0 {
		return driveUnary(seen, connection, call, window, until)
	}
	return driveSession(seen, connection, call, batch, window, until)
}

func driveUnary(seen *tally, connection *grpc.ClientConn, call []byte, window int, until time.Time) error {
	parts := make([]tally, window)
	var running sync.WaitGroup
	for place := range parts {
		running.Add(1)
		go func() {
			defer running.Done()
			part := &parts[place]
			for time.Now().Before(until) {
				var answer []byte
				began := time.Now()
				err := connection.Invoke(context.Background(), unaryMethod, &call, &answer)
				part.waits = append(part.waits, time.Since(began))
				part.calls++
				if err != nil || !isOk(field(answer, unaryResultField)) {
					part.failed++
				}
			}
		}()
	}
	running.Wait()
	for _, part := range parts {
		seen.calls += part.calls
		seen.failed += part.failed
		seen.waits = append(seen.waits, part.waits...)
	}
	return nil
}

// driveSession keeps `window` messages in flight: each is sent when so many calls have been answered.
func driveSession(seen *tally, connection *grpc.ClientConn, call []byte, batch, window int, until time.Time) error {
	description := &grpc.StreamDesc{StreamName: "InvokeSession", ServerStreams: true, ClientStreams: true}
	stream, err := connection.NewStream(context.Background(), description, sessionMethod)
	if err != nil {
		return err
	}
	sent, sentAt := 0, make([]time.Time, 0, 1<<16)
	send := func() error {
		message := batchOf(call, batch, sent)
		sent += batch
		sentAt = append(sentAt, time.Now())
		return stream.SendMsg(&message)
	}
	for range window {
		if err := send(); err != nil {
			return err
		}
	}
	for seen.calls < sent {
		var answer []byte
		if err := stream.RecvMsg(&answer); err != nil {
			return fmt.Errorf("after %d calls: %w", seen.calls, err)
		}
		if err := seen.count(answer); err != nil {
			return err
		}
		for len(seen.waits) < seen.calls/batch {
			seen.waits = append(seen.waits, time.Since(sentAt[len(seen.waits)]))
			if time.Now().Before(until) {
				if err := send(); err != nil {
					return err
				}
			}
		}
	}
	return stream.CloseSend()
}

// batchOf is an InvokeSessionRequest of `batch` calls, named by their numbers.
func batchOf(call []byte, batch, first int) []byte {
	message := make([]byte, 0, batch*(len(call)+24))
	for number := first; number < first+batch; number++ {
		name := fmt.Sprintf("call-%d", number)
		message = protowire.AppendTag(message, callsField, protowire.BytesType)
		size := len(call) + protowire.SizeTag(callIDField) + protowire.SizeBytes(len(name))
		message = protowire.AppendVarint(message, uint64(size))
		message = append(message, call...)
		message = protowire.AppendTag(message, callIDField, protowire.BytesType)
		message = protowire.AppendString(message, name)
	}
	return message
}

func (seen *tally) count(answer []byte) error {
	for len(answer) > 0 {
		number, kind, size := protowire.ConsumeTag(answer)
		if size < 0 || number != eventsField || kind != protowire.BytesType {
			return errors.New("an answer that is no InvokeSessionResponse")
		}
		event, eventSize := protowire.ConsumeBytes(answer[size:])
		if eventSize < 0 {
			return protowire.ParseError(eventSize)
		}
		answer = answer[size+eventSize:]
		seen.calls++
		if !isOk(field(event, eventResultField)) {
			seen.failed++
		}
	}
	return nil
}

// field is the first bytes field of that number; nil when there is none.
func field(message []byte, wanted protowire.Number) []byte {
	for len(message) > 0 {
		number, kind, size := protowire.ConsumeTag(message)
		if size < 0 {
			return nil
		}
		if number == wanted && kind == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(message[size:])
			return value
		}
		valueSize := protowire.ConsumeFieldValue(number, kind, message[size:])
		if valueSize < 0 {
			return nil
		}
		message = message[size+valueSize:]
	}
	return nil
}

// isOk says whether a ToolResult begins with ok = true, as serialisers write it.
func isOk(result []byte) bool {
	number, kind, size := protowire.ConsumeTag(result)
	if size < 0 || number != resultOkField || kind != protowire.VarintType {
		return false
	}
	value, _ := protowire.ConsumeVarint(result[size:])
	return value == 1
}

func report(tallies []tally, took time.Duration) {
	var all tally
	for _, one := range tallies {
		all.calls += one.calls
		all.failed += one.failed
		all.waits = append(all.waits, one.waits...)
	}
	slices.Sort(all.waits)
	told := map[string]any{
		"calls":       all.calls,
		"failed":      all.failed,
		"calls_per_s": float64(all.calls) / took.Seconds(),
		"p50_ms":      percentile(all.waits, 0.50),
		"p99_ms":      percentile(all.waits, 0.99),
	}
	if err := json.NewEncoder(os.Stdout).Encode(told); err != nil {
		log.Fatal(err)
	}
}

func percentile(sorted []time.Duration, share float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return float64(sorted[int(share*float64(len(sorted)-1))].Microseconds()) / 1000
}
