package toolhub

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// watchAttempts are streams in a row that may bring nothing before a watch gives up.
const watchAttempts = 16

// watch is a stream that is opened again where it broke.
type watch[Message any] struct {
	hub *Hub
	// what is being done, for errors.
	what string
	// open begins a stream behind the last message seen.
	open func(context.Context) (grpc.ServerStreamingClient[Message], error)
	// ended says whether a stream that the hub ended in order, after so many messages, was the last. Nil: never.
	ended func(messages int) bool
	// attempts in a row may bring nothing; 0 means watchAttempts.
	attempts int
}

// messages gives what comes until the caller leaves or ctx ends. It fails when the hub refuses, and when that many
// attempts in a row brought nothing.
func (watch watch[Message]) messages(ctx context.Context) iter.Seq2[*Message, error] {
	return func(yield func(*Message, error) bool) {
		streams, cancel := context.WithCancel(context.WithValue(ctx, begunAgain{}, true))
		defer cancel()
		for failed := 1; ; failed++ {
			came := 0
			stream, err := watch.open(streams)
			for err == nil {
				var message *Message
				if message, err = stream.Recv(); err == nil {
					came++
					if !yield(message, nil) {
						return
					}
				}
			}
			if err == io.EOF {
				if watch.ended != nil && watch.ended(came) {
					return
				}
				err = io.ErrUnexpectedEOF
			}
			if came > 0 {
				failed = 1
			}
			err = hubError(err, watch.hub.address)
			switch {
			case ctx.Err() != nil:
				err = ctx.Err()
			case !broken(err) || failed >= cmp.Or(watch.attempts, watchAttempts):
				err = fmt.Errorf("%s: %w", watch.what, err)
			default:
				err = wait(ctx, pauseAfter(failed, err))
			}
			if err != nil {
				yield(nil, err)
				return
			}
		}
	}
}

// broken says whether a watch that ended so may be begun again.
func broken(err error) bool {
	switch status.Code(err) {
	case codes.Aborted, codes.Canceled, codes.ResourceExhausted, codes.Unavailable:
		return true
	case codes.Internal, codes.Unknown: // said of a connection that breaks, too; a hub that fails adds a reason
		var failed *HubError
		return !errors.As(err, &failed) || failed.Reason == ""
	}
	return false
}
