package toolhub

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"path"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/known/emptypb"

	toolhubv1 "github.com/tool-hub/tool-hub/gen/go/toolhub/v1"
)

const (
	firstPause   = 100 * time.Millisecond
	longestPause = 5 * time.Second
)

// retrier waits until a hub is there, and repeats what may be repeated.
type retrier struct {
	address     string
	patience    time.Duration
	isEncrypted bool
}

// repeatable has the RPCs that change something, and have the same effect when they are sent twice.
var repeatable = map[string]bool{"CancelJob": true, "DecideApproval": true}

// isRead says whether the contract declares a method as free of side effects.
func isRead(method string) bool {
	name := strings.ReplaceAll(strings.TrimPrefix(method, "/"), "/", ".")
	found, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(name))
	if err != nil {
		return false
	}
	options, ok := found.Options().(*descriptorpb.MethodOptions)
	return ok && options.GetIdempotencyLevel() == descriptorpb.MethodOptions_NO_SIDE_EFFECTS
}

func (retry *retrier) unary(
	ctx context.Context, method string, request, reply any, connection *grpc.ClientConn, invoke grpc.UnaryInvoker,
	options ...grpc.CallOption,
) error {
	if ctx.Value(askedWhy{}) != nil {
		return invoke(ctx, method, request, reply, connection, options...)
	}
	until := time.Now().Add(retry.patience)
	for failed := 1; ; failed++ {
		if err := retry.ready(ctx, connection, until); err != nil {
			return err
		}
		err := hubError(invoke(ctx, method, request, reply, connection, options...), retry.address)
		if err == nil {
			return nil
		}
		pause := pauseAfter(failed, err)
		if !mayRepeat(err, method, request) || time.Now().Add(pause).After(until) || wait(ctx, pause) != nil {
			return err
		}
	}
}

func (retry *retrier) stream(
	ctx context.Context, description *grpc.StreamDesc, connection *grpc.ClientConn, method string, open grpc.Streamer,
	options ...grpc.CallOption,
) (grpc.ClientStream, error) {
	until := time.Now().Add(retry.patience)
	begin := func() (grpc.ClientStream, error) {
		if err := retry.ready(ctx, connection, until); err != nil {
			return nil, err
		}
		stream, err := open(ctx, description, connection, method, options...)
		return stream, hubError(err, retry.address)
	}
	stream, err := begin()
	if err != nil || description.ClientStreams || ctx.Value(begunAgain{}) != nil {
		return stream, err
	}
	return &answers{
		ClientStream: stream, begin: begin, method: method, address: retry.address, until: until, cancelled: ctx.Done(),
	}, nil
}

// begunAgain marks the context of streams whose caller opens them again itself, so that they are not repeated here.
type begunAgain struct{}

// answers is a stream of answers to one request. Until the first answer has come, it is opened again like a call that
// failed.
type answers struct {
	grpc.ClientStream
	begin     func() (grpc.ClientStream, error)
	method    string
	address   string
	until     time.Time
	cancelled <-chan struct{} // by the caller; a stream's own context ends with each attempt
	request   any
	begun     bool
}

func (stream *answers) SendMsg(request any) error {
	stream.request = request
	return stream.ClientStream.SendMsg(request)
}

func (stream *answers) RecvMsg(answer any) error {
	for failed := 1; ; failed++ {
		err := hubError(stream.ClientStream.RecvMsg(answer), stream.address)
		if err == nil || stream.begun {
			stream.begun = true
			return err
		}
		pause := pauseAfter(failed, err)
		if !mayRepeat(err, stream.method, stream.request) || time.Now().Add(pause).After(stream.until) {
			return err
		}
		select {
		case <-time.After(pause):
		case <-stream.cancelled:
			return err
		}
		if again := stream.again(); again != nil {
			return again
		}
	}
}

func (stream *answers) again() error {
	begun, err := stream.begin()
	if err != nil {
		return err
	}
	stream.ClientStream = begun
	if err := begun.SendMsg(stream.request); err != nil && err != io.EOF { // io.EOF: receiving tells why
		return err
	}
	return begun.CloseSend()
}

// ready returns once a hub is connected. Because it waits before the RPC is sent, a hub that cannot be reached is told
// apart from one that died while it had the call.
func (retry *retrier) ready(ctx context.Context, connection *grpc.ClientConn, until time.Time) error {
	waiting, cancel := context.WithDeadline(ctx, maxTime(until, time.Now().Add(firstPause)))
	defer cancel()
	for {
		state := connection.GetState()
		if state == connectivity.Ready {
			return nil
		}
		connection.Connect()
		if !connection.WaitForStateChange(waiting, state) {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return &HubError{Address: retry.address, Code: codes.Unavailable, Message: retry.why(ctx, connection), NotSent: true}
		}
	}
}

// askedWhy marks the context of an RPC that is sent only to learn why there is no connection.
type askedWhy struct{}

// why returns, for a person to read, gRPC's message about the last failed attempt to connect, which only an RPC gets.
func (retry *retrier) why(ctx context.Context, connection *grpc.ClientConn) string {
	asking, cancel := context.WithTimeout(context.WithValue(ctx, askedWhy{}, true), 3*time.Second)
	defer cancel()
	err := connection.Invoke(asking, "/grpc.health.v1.Health/Check", &emptypb.Empty{}, &emptypb.Empty{})
	if problem := connectionProblem(status.Convert(err).Message(), retry.isEncrypted); problem != "" {
		return problem
	}
	return fmt.Sprintf("No hub answered within %v. Is it running, and does it want TLS (https://), or not?", retry.patience)
}

func maxTime(one, other time.Time) time.Time {
	if one.After(other) {
		return one
	}
	return other
}

// mayRepeat says whether a failed RPC may be sent again: if the hub refused it unread, or if the connection broke and
// the RPC has the same effect when it is sent twice.
func mayRepeat(failed error, method string, request any) bool {
	var err *HubError
	if !errors.As(failed, &err) {
		return false
	}
	if err.Reason == ReasonOverloaded || err.Reason == ReasonDraining {
		return true
	}
	if err.Code != codes.Unavailable {
		return false
	}
	if call, ok := request.(interface{ GetIntent() *toolhubv1.ToolIntent }); ok {
		return call.GetIntent().GetIdempotencyKey() != ""
	}
	return isRead(method) || repeatable[path.Base(method)]
}

// pauseAfter grows exponentially with full jitter (Brooker, "Exponential Backoff And Jitter"). A hub that says when to
// come back (RetryInfo), such as one that shuts down, is not asked earlier, up to longestPause.
func pauseAfter(failed int, err error) time.Duration {
	own := rand.N(min(longestPause, firstPause<<min(failed, 10)))
	var told *HubError
	if errors.As(err, &told) && told.RetryAfter > 0 {
		asked := min(told.RetryAfter, longestPause)
		return max(own, asked+rand.N(asked/2+1))
	}
	return own
}

func wait(ctx context.Context, pause time.Duration) error {
	select {
	case <-time.After(pause):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
