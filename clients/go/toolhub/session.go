package toolhub

import (
	"context"
	"errors"
	"io"
	"strconv"
	"sync"

	toolhubv1 "github.com/tool-hub/tool-hub/gen/go/toolhub/v1"
)

// inFlightMax are calls that a hub takes from one session at a time; the next one waits here.
const inFlightMax = 256

// Session makes many calls over one stream: each goes through the whole chain of the hub, and costs a third of an RPC of
// its own. Its methods may be called from several goroutines.
type Session struct {
	hub    *Hub
	stream toolhubv1.ToolService_InvokeSessionClient
	cancel context.CancelFunc
	places chan struct{}
	ended  chan struct{}

	// Apart from mutex: sending waits where the hub reads no more, and answers must come in meanwhile.
	sending sync.Mutex

	mutex   sync.Mutex
	number  int
	pending map[string]chan *toolhubv1.ToolResult
	broken  error
}

// Session opens one. Close it.
func (hub *Hub) Session(ctx context.Context) (*Session, error) {
	ctx, cancel := context.WithCancel(ctx)
	stream, err := hub.Tools.InvokeSession(ctx)
	if err != nil {
		cancel()
		return nil, hubError(err, hub.address)
	}
	session := &Session{
		hub: hub, stream: stream, cancel: cancel,
		places: make(chan struct{}, inFlightMax), ended: make(chan struct{}),
		pending: map[string]chan *toolhubv1.ToolResult{},
	}
	go session.receive()
	return session, nil
}

// Invoke is as Hub.Invoke. When ctx ends, the call is cancelled at the hub. When the stream breaks, the call may have had
// its effect, and is not repeated.
func (session *Session) Invoke(ctx context.Context, call Call) (*toolhubv1.ToolResult, error) {
	request, err := session.hub.request(call)
	if err != nil {
		return nil, err
	}
	select {
	case session.places <- struct{}{}:
		defer func() { <-session.places }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	id, answered, err := session.send(request)
	if err != nil {
		return nil, err
	}
	select {
	case result := <-answered:
		return outcome(result)
	case <-session.ended:
		select {
		case result := <-answered: // it came with the end
			return outcome(result)
		default:
			return nil, session.broken
		}
	case <-ctx.Done():
		session.mutex.Lock()
		delete(session.pending, id)
		session.mutex.Unlock()
		_ = session.write(&toolhubv1.InvokeSessionRequest{CancelCallIds: []string{id}}) // a broken stream needs none
		return nil, ctx.Err()
	}
}

func (session *Session) send(request *toolhubv1.InvokeRequest) (string, chan *toolhubv1.ToolResult, error) {
	session.mutex.Lock()
	if session.broken != nil {
		session.mutex.Unlock()
		return "", nil, session.broken
	}
	session.number++
	id, answered := "c"+strconv.Itoa(session.number), make(chan *toolhubv1.ToolResult, 1)
	session.pending[id] = answered
	session.mutex.Unlock()
	err := session.write(&toolhubv1.InvokeSessionRequest{Calls: []*toolhubv1.SessionCall{{
		Intent: request.Intent, Context: request.Context, PlanDigest: request.PlanDigest,
		ApprovalId: request.ApprovalId, CallId: id,
	}}})
	return id, answered, err
}

// write sends one message at a time. The receiver reports a stream that has ended, because it learns why.
func (session *Session) write(message *toolhubv1.InvokeSessionRequest) error {
	session.sending.Lock()
	defer session.sending.Unlock()
	if err := session.stream.Send(message); err != io.EOF {
		return hubError(err, session.hub.address)
	}
	return nil
}

func (session *Session) receive() {
	for {
		response, err := session.stream.Recv()
		session.mutex.Lock()
		if err != nil {
			session.broken = hubError(err, session.hub.address)
			if err == io.EOF {
				session.broken = errors.New("the session has ended")
			}
			session.mutex.Unlock()
			close(session.ended)
			return
		}
		for _, event := range response.GetEvents() {
			if result := event.GetResult(); result != nil {
				if answered := session.pending[event.GetCallId()]; answered != nil {
					answered <- result
					delete(session.pending, event.GetCallId())
				}
			}
		}
		session.mutex.Unlock()
	}
}

// Close lets what is in flight finish, and ends the session.
func (session *Session) Close() error {
	defer session.cancel()
	session.sending.Lock()
	err := session.stream.CloseSend()
	session.sending.Unlock()
	<-session.ended
	return err
}
