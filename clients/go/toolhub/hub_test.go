package toolhub

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	toolhubv1 "github.com/tool-hub/tool-hub/gen/go/toolhub/v1"
)

// refusing fails as it is told to, then answers.
type refusing struct {
	toolhubv1.UnimplementedToolServiceServer
	mutex    sync.Mutex
	failures []error
	metadata []metadata.MD
}

func (server *refusing) judge(ctx context.Context) error {
	server.mutex.Lock()
	defer server.mutex.Unlock()
	sent, _ := metadata.FromIncomingContext(ctx)
	server.metadata = append(server.metadata, sent)
	if len(server.failures) == 0 {
		return nil
	}
	failure := server.failures[0]
	server.failures = server.failures[1:]
	return failure
}

func (server *refusing) fail(failures ...error) {
	server.mutex.Lock()
	defer server.mutex.Unlock()
	server.failures, server.metadata = failures, nil
}

func (server *refusing) Invoke(ctx context.Context, request *toolhubv1.InvokeRequest) (*toolhubv1.InvokeResponse, error) {
	if err := server.judge(ctx); err != nil {
		return nil, err
	}
	result := &toolhubv1.ToolResult{
		Ok: true, Result: &toolhubv1.ToolResult_ResultJson{ResultJson: request.GetIntent().GetArgsJson()},
	}
	return &toolhubv1.InvokeResponse{Outcome: &toolhubv1.InvokeResponse_Result{Result: result}}, nil
}

func (server *refusing) InvokeStream(
	_ *toolhubv1.InvokeStreamRequest, stream grpc.ServerStreamingServer[toolhubv1.InvokeStreamResponse],
) error {
	if err := server.judge(stream.Context()); err != nil {
		return err
	}
	progress := &toolhubv1.InvokeStreamResponse{Event: &toolhubv1.InvokeStreamResponse_Progress{Progress: &toolhubv1.Progress{}}}
	if err := stream.Send(progress); err != nil {
		return err
	}
	if err := server.judge(stream.Context()); err != nil {
		return err
	}
	result := &toolhubv1.InvokeStreamResponse_Result{Result: &toolhubv1.ToolResult{Ok: true}}
	return stream.Send(&toolhubv1.InvokeStreamResponse{Event: result})
}

func (server *refusing) GetTool(ctx context.Context, request *toolhubv1.GetToolRequest) (*toolhubv1.GetToolResponse, error) {
	if err := server.judge(ctx); err != nil {
		return nil, err
	}
	return &toolhubv1.GetToolResponse{Tool: &toolhubv1.ToolSpec{Name: request.GetName()}}, nil
}

func serve(t *testing.T, listen string) (*refusing, string) {
	t.Helper()
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		t.Fatal(err)
	}
	server, servicer := grpc.NewServer(), &refusing{}
	toolhubv1.RegisterToolServiceServer(server, servicer)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return servicer, listener.Addr().String()
}

func connect(t *testing.T, address string, config Config) *Hub {
	t.Helper()
	hub, err := Connect(address, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = hub.Close() })
	return hub
}

func refused(code codes.Code, reason, message string) error {
	told, err := status.New(code, message).WithDetails(
		&errdetails.ErrorInfo{Reason: reason, Domain: "toolhub"},
		&errdetails.RetryInfo{RetryDelay: durationpb.New(10 * time.Millisecond)})
	if err != nil {
		panic(err)
	}
	return told.Err()
}

var unavailable = status.Error(codes.Unavailable, "broken")

func clear(t *testing.T) {
	for _, name := range []string{"ADDRESS", "API_KEY", "CA_FILE", "CERT_FILE", "KEY_FILE", "REQUEST_ID"} {
		t.Setenv("TOOLHUB_"+name, "")
	}
}

func TestAddressIsCompletedAndHTTPSMeansTLS(t *testing.T) {
	clear(t)
	for _, each := range []struct {
		given, where string
		isTLS        bool
	}{
		{"", "127.0.0.1:50051", false},
		{"hub.example.com", "hub.example.com:50051", false},
		{"http://hub:7000", "hub:7000", false},
		{"https://hub.example.com", "hub.example.com:443", true},
		{"[::1]", "[::1]:50051", false},
		{"unix:/run/hub.sock", "unix:/run/hub.sock", false},
		{"dns:///hub.svc:7000", "dns:///hub.svc:7000", false},
	} {
		where, transport, err := target(each.given, &Config{})
		if err != nil || where != each.where || (transport.Info().SecurityProtocol == "tls") != each.isTLS {
			t.Errorf("%q: %q, %v, %v", each.given, where, transport.Info(), err)
		}
	}
}

func TestWhatIsLeftOutComesFromTheEnvironment(t *testing.T) {
	clear(t)
	t.Setenv("TOOLHUB_ADDRESS", "hub:7000")
	t.Setenv("TOOLHUB_API_KEY", "thk_1")
	config := Config{}
	where, _, err := target("", &config)
	if err != nil || where != "hub:7000" || config.APIKey != "thk_1" {
		t.Errorf("%q, %+v, %v", where, config, err)
	}
}

func TestHalvesAndContradictionsAreRefused(t *testing.T) {
	clear(t)
	if _, err := Connect("", Config{CertFile: "me.pem"}); err == nil {
		t.Error("a certificate without its key")
	}
	if _, err := Connect("http://hub", Config{CAFile: "ca.pem"}); err == nil {
		t.Error("TLS and plaintext")
	}
}

func TestKeyIsSentByMethodsAndGeneratedClientsAndWarnedOf(t *testing.T) {
	clear(t)
	servicer, address := serve(t, "127.0.0.1:0")
	warnings := []string{}
	warn := func(message string) { warnings = append(warnings, message) }
	hub := connect(t, address, Config{APIKey: "thk_1", Warn: warn})
	if _, err := hub.Invoke(t.Context(), Call{Tool: "t/a"}); err != nil {
		t.Fatal(err)
	}
	if _, err := hub.Tools.GetTool(t.Context(), &toolhubv1.GetToolRequest{Name: "t/a"}); err != nil {
		t.Fatal(err)
	}
	for _, sent := range servicer.metadata {
		if got := sent.Get("authorization"); len(got) != 1 || got[0] != "Bearer thk_1" {
			t.Errorf("sent %v", got)
		}
		if agent := sent.Get("user-agent"); !strings.HasPrefix(agent[0], "toolhub-go/") {
			t.Errorf("sent %v", agent)
		}
	}
	connect(t, "hub.example.com:7000", Config{APIKey: "thk_1", Warn: warn})
	if len(warnings) != 1 || strings.Contains(warnings[0], "thk_1") {
		t.Errorf("warned %q", warnings)
	}
}

func TestWhatTheHubRefusedUnseenIsSentAgain(t *testing.T) {
	clear(t)
	servicer, address := serve(t, "127.0.0.1:0")
	hub := connect(t, address, Config{Retry: time.Minute})
	for _, failure := range []error{
		refused(codes.ResourceExhausted, ReasonOverloaded, "Full."), refused(codes.Unavailable, ReasonDraining, "Leaving."),
	} {
		servicer.fail(failure, failure)
		if _, err := hub.Invoke(t.Context(), Call{Tool: "t/a"}); err != nil || len(servicer.metadata) != 3 {
			t.Errorf("%v after %d attempts", err, len(servicer.metadata))
		}
	}
}

func TestCallThatBrokeIsRepeatedOnlyWithAKey(t *testing.T) {
	clear(t)
	servicer, address := serve(t, "127.0.0.1:0")
	hub := connect(t, address, Config{Retry: time.Minute})
	servicer.fail(unavailable)
	if _, err := hub.Invoke(t.Context(), Call{Tool: "t/a"}); !errors.Is(err, ErrUnavailable) {
		t.Errorf("%v", err)
	}
	servicer.fail(unavailable)
	if _, err := hub.Invoke(t.Context(), Call{Tool: "t/a", IdempotencyKey: "once"}); err != nil {
		t.Errorf("%v", err)
	}
	servicer.fail(unavailable)
	if _, err := hub.GetTool(t.Context(), "t/a"); err != nil {
		t.Errorf("%v", err)
	}
	servicer.fail(unavailable)
	keyed := connect(t, address, Config{Retry: time.Minute, AutomaticKeys: true})
	if _, err := keyed.Invoke(t.Context(), Call{Tool: "t/a"}); err != nil {
		t.Errorf("%v", err)
	}
}

func TestStreamIsBegunAgainLikeACallUntilItsFirstMessage(t *testing.T) {
	clear(t)
	servicer, address := serve(t, "127.0.0.1:0")
	hub := connect(t, address, Config{Retry: time.Minute})
	seen := 0
	watch := func(*toolhubv1.InvokeStreamResponse) { seen++ }
	full := refused(codes.ResourceExhausted, ReasonOverloaded, "Full.")
	servicer.fail(full, unavailable)
	if _, err := hub.InvokeStream(t.Context(), Call{Tool: "t/a", IdempotencyKey: "once"}, watch); err != nil || seen != 1 {
		t.Errorf("%v, %d seen", err, seen)
	}
	servicer.fail(full, unavailable)
	if _, err := hub.InvokeStream(t.Context(), Call{Tool: "t/a"}, watch); !errors.Is(err, ErrUnavailable) || seen != 1 {
		t.Errorf("%v, %d seen", err, seen)
	}
	servicer.fail(nil, refused(codes.Unavailable, ReasonDraining, "Leaving."))
	_, err := hub.InvokeStream(t.Context(), Call{Tool: "t/a", IdempotencyKey: "once"}, watch)
	var failed *HubError
	if !errors.As(err, &failed) || failed.Reason != ReasonDraining || seen != 2 {
		t.Errorf("%v, %d seen", err, seen)
	}
}

func TestContractSaysWhatIsRepeatedWithoutAKey(t *testing.T) {
	broken := &HubError{Code: codes.Unavailable}
	for method, may := range map[string]bool{
		toolhubv1.ToolService_GetServerInfo_FullMethodName:      true,
		toolhubv1.ArtifactService_ListArtifacts_FullMethodName:  true,
		toolhubv1.JobService_CancelJob_FullMethodName:           true,
		toolhubv1.ArtifactService_DeleteArtifact_FullMethodName: false,
		toolhubv1.RegistryService_RegisterTool_FullMethodName:   false,
		"/somebody.v1.Else/Get":                                 false,
	} {
		if mayRepeat(broken, method, nil) != may {
			t.Errorf("%s: not %v", method, may)
		}
	}
}

func TestWhatCannotHelpIsNotRepeatedAndIsTold(t *testing.T) {
	clear(t)
	servicer, address := serve(t, "127.0.0.1:0")
	hub := connect(t, address, Config{Retry: time.Minute})
	servicer.fail(refused(codes.NotFound, ReasonToolNotFound, "There is no such tool."))
	_, err := hub.GetTool(t.Context(), "t/a")
	var failed *HubError
	if !errors.As(err, &failed) || !errors.Is(err, ErrNotFound) || failed.Reason != ReasonToolNotFound {
		t.Fatalf("%v", err)
	}
	if want := address + ": There is no such tool. (TOOL_NOT_FOUND)"; err.Error() != want {
		t.Errorf("%q", err)
	}
	if status.Code(err) != codes.NotFound || len(servicer.metadata) != 1 {
		t.Errorf("%v after %d attempts", status.Code(err), len(servicer.metadata))
	}
}

func TestHubThatIsAwayIsToldWithItsAddress(t *testing.T) {
	clear(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	_ = listener.Close()
	hub := connect(t, address, Config{Retry: 200 * time.Millisecond})
	_, err = hub.Invoke(t.Context(), Call{Tool: "t/a"})
	if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), address+": No hub answered") {
		t.Errorf("%v", err)
	}
}

func TestCallWaitsForAHubThatIsStillStarting(t *testing.T) {
	clear(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	_ = listener.Close()
	hub, answered := connect(t, address, Config{Retry: time.Minute}), make(chan error)
	go func() {
		_, err := hub.Invoke(context.Background(), Call{Tool: "t/a"})
		answered <- err
	}()
	serve(t, address)
	if err := <-answered; err != nil {
		t.Error(err)
	}
}

// silent answers no call, and notes when each had to be answered.
type silent struct {
	toolhubv1.UnimplementedToolServiceServer
	deadlines chan time.Time
}

func (server *silent) Invoke(ctx context.Context, _ *toolhubv1.InvokeRequest) (*toolhubv1.InvokeResponse, error) {
	until, _ := ctx.Deadline()
	server.deadlines <- until
	<-ctx.Done()
	return nil, status.FromContextError(ctx.Err()).Err()
}

func TestDeadlineOfAContextReachesTheHubAndEndsTheCall(t *testing.T) {
	clear(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server, servicer := grpc.NewServer(), &silent{deadlines: make(chan time.Time, 1)}
	toolhubv1.RegisterToolServiceServer(server, servicer)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	hub := connect(t, listener.Addr().String(), Config{})
	if _, err := hub.Tools.GetTool(t.Context(), &toolhubv1.GetToolRequest{}); status.Code(err) != codes.Unimplemented {
		t.Fatal(err) // now there is a connection
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err = hub.Invoke(ctx, Call{Tool: "a/tool"})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	if until := <-servicer.deadlines; until.IsZero() || time.Until(until) > time.Second {
		t.Errorf("the hub was told %v", until)
	}
}

func TestDeadlineCountsWhileAHubIsWaitedFor(t *testing.T) {
	clear(t)
	hub := connect(t, "127.0.0.1:1", Config{Retry: time.Hour})
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := hub.Invoke(ctx, Call{Tool: "a/tool"}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
}

func TestOptionsOfTheProgramsOwnSeeEveryRPC(t *testing.T) {
	clear(t)
	servicer, address := serve(t, "127.0.0.1:0")
	traced := grpc.WithChainUnaryInterceptor(func(
		ctx context.Context, method string, request, reply any, connection *grpc.ClientConn, invoke grpc.UnaryInvoker,
		options ...grpc.CallOption,
	) error {
		ctx = metadata.AppendToOutgoingContext(ctx, "traceparent", "00-1-2-01")
		return invoke(ctx, method, request, reply, connection, options...)
	})
	hub := connect(t, address, Config{Options: []grpc.DialOption{traced}})
	if _, err := hub.GetTool(t.Context(), "t/a"); err != nil || servicer.metadata[0].Get("traceparent")[0] != "00-1-2-01" {
		t.Errorf("%v, %v", err, servicer.metadata)
	}
}

func TestRequestIDOfAConnectionIsMintedOnceUnlessItIsGiven(t *testing.T) {
	clear(t)
	idOf := func(hub *Hub, call Call) string {
		call.Tool = "t/a"
		request, err := hub.request(call)
		if err != nil {
			t.Fatal(err)
		}
		return request.GetContext().GetRequestId()
	}
	hub := connect(t, "", Config{})
	minted := idOf(hub, Call{})
	if !strings.HasPrefix(minted, "req_") || idOf(hub, Call{}) != minted || idOf(connect(t, "", Config{}), Call{}) == minted {
		t.Errorf("%q", minted)
	}
	given := &toolhubv1.ExecContext{RequestId: "r1"}
	if id := idOf(connect(t, "", Config{Context: given}), Call{}); id != "r1" {
		t.Errorf("%q", id)
	}
	if id := idOf(hub, Call{Context: given}); id != "r1" {
		t.Errorf("%q", id)
	}
	if id := idOf(hub, Call{Context: &toolhubv1.ExecContext{TaskId: "t1"}}); id != minted {
		t.Errorf("%q", id)
	}
	t.Setenv("TOOLHUB_REQUEST_ID", "r2")
	if id := idOf(connect(t, "", Config{}), Call{}); id != "r2" {
		t.Errorf("%q", id)
	}
}

func TestValueOfACallThatHasNoneIsAnErrorThatSaysWhatToDo(t *testing.T) {
	job := &toolhubv1.JobRef{JobId: "job_1"}
	var value map[string]any
	if err := Value(&toolhubv1.ToolResult{Ok: true, Job: job}, &value); err == nil || !strings.Contains(err.Error(), "job_1") {
		t.Errorf("%v", err)
	}
	var failed *CallFailed
	if err := Value(&toolhubv1.ToolResult{Error: &toolhubv1.ToolError{Message: "No."}}, &value); !errors.As(err, &failed) {
		t.Errorf("%v", err)
	}
}

func TestKindOfANewerHubSurvives(t *testing.T) {
	failed := &CallFailed{Reason: &toolhubv1.ToolError{Kind: 4711, Message: "New."}}
	if failed.Kind() != "UNKNOWN_4711" || failed.Advice() != "" || failed.Error() != "UNKNOWN_4711: New." {
		t.Errorf("%v", failed)
	}
}
