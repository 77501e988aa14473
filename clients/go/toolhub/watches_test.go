package toolhub

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	toolhubv1 "github.com/tool-hub/tool-hub/gen/go/toolhub/v1"
)

// scripted ends each stream after the messages of its next script, and notes what it was asked.
type scripted[Request, Message any] struct {
	mutex   sync.Mutex
	asked   []*Request
	scripts []script[Message]
}

type script[Message any] struct {
	messages []*Message
	end      error
}

func (server *scripted[Request, Message]) play(request *Request, stream grpc.ServerStreamingServer[Message]) error {
	server.mutex.Lock()
	defer server.mutex.Unlock()
	server.asked = append(server.asked, request)
	if len(server.scripts) == 0 {
		return status.Error(codes.NotFound, "the test has no more to say")
	}
	next := server.scripts[0]
	server.scripts = server.scripts[1:]
	for _, message := range next.messages {
		if err := stream.Send(message); err != nil {
			return err
		}
	}
	return next.end
}

type scriptedJobs struct {
	toolhubv1.UnimplementedJobServiceServer
	one  scripted[toolhubv1.WatchJobRequest, toolhubv1.WatchJobResponse]
	many scripted[toolhubv1.WatchJobsRequest, toolhubv1.WatchJobsResponse]
}

func (server *scriptedJobs) WatchJob(
	request *toolhubv1.WatchJobRequest, stream grpc.ServerStreamingServer[toolhubv1.WatchJobResponse],
) error {
	return server.one.play(request, stream)
}

func (server *scriptedJobs) WatchJobs(
	request *toolhubv1.WatchJobsRequest, stream grpc.ServerStreamingServer[toolhubv1.WatchJobsResponse],
) error {
	return server.many.play(request, stream)
}

type scriptedApprovals struct {
	toolhubv1.UnimplementedApprovalServiceServer
	scripted[toolhubv1.WatchApprovalsRequest, toolhubv1.WatchApprovalsResponse]
}

func (server *scriptedApprovals) WatchApprovals(
	request *toolhubv1.WatchApprovalsRequest, stream grpc.ServerStreamingServer[toolhubv1.WatchApprovalsResponse],
) error {
	return server.play(request, stream)
}

type scriptedTools struct {
	toolhubv1.UnimplementedToolServiceServer
	scripted[toolhubv1.ToolServiceWatchToolsRequest, toolhubv1.ToolServiceWatchToolsResponse]
}

func (server *scriptedTools) WatchTools(
	request *toolhubv1.ToolServiceWatchToolsRequest,
	stream grpc.ServerStreamingServer[toolhubv1.ToolServiceWatchToolsResponse],
) error {
	return server.play(request, stream)
}

type scriptedHub struct {
	jobs      scriptedJobs
	approvals scriptedApprovals
	tools     scriptedTools
}

func serveScripts(t *testing.T) (*scriptedHub, *Hub) {
	t.Helper()
	clear(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server, scripts := grpc.NewServer(), &scriptedHub{}
	toolhubv1.RegisterJobServiceServer(server, &scripts.jobs)
	toolhubv1.RegisterApprovalServiceServer(server, &scripts.approvals)
	toolhubv1.RegisterToolServiceServer(server, &scripts.tools)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return scripts, connect(t, listener.Addr().String(), Config{Retry: time.Minute})
}

func statusOf(jobID string, sequence int64, state toolhubv1.JobState) *toolhubv1.JobStatus {
	return &toolhubv1.JobStatus{JobId: jobID, Sequence: sequence, State: state}
}

const (
	running   = toolhubv1.JobState_JOB_STATE_RUNNING
	succeeded = toolhubv1.JobState_JOB_STATE_SUCCEEDED
)

func TestWatchOfAJobGoesOnWhereItsStreamBroke(t *testing.T) {
	scripts, hub := serveScripts(t)
	one := func(sequence int64, state toolhubv1.JobState) []*toolhubv1.WatchJobResponse {
		return []*toolhubv1.WatchJobResponse{{Status: statusOf("j1", sequence, state)}}
	}
	scripts.jobs.one.scripts = []script[toolhubv1.WatchJobResponse]{
		{one(1, running), unavailable}, {one(2, running), nil}, {nil, unavailable}, {one(3, succeeded), nil},
	}
	seen := []int64{}
	for status, err := range hub.WatchJob(t.Context(), &toolhubv1.WatchJobRequest{JobId: "j1", FromFirst: true}) {
		if err != nil {
			t.Fatal(err)
		}
		seen = append(seen, status.GetSequence())
	}
	if !slices.Equal(seen, []int64{1, 2, 3}) {
		t.Errorf("%v", seen)
	}
	for place, request := range scripts.jobs.one.asked {
		if !request.GetFromFirst() || request.GetAfterSequence() != []int64{0, 1, 2, 2}[place] {
			t.Errorf("%d: %v", place, request)
		}
	}
}

func TestWatchOfAJobThatWasOverBeforeEndsAndOneOfNoneFails(t *testing.T) {
	scripts, hub := serveScripts(t)
	scripts.jobs.one.scripts = []script[toolhubv1.WatchJobResponse]{{}}
	for status, err := range hub.WatchJob(t.Context(), &toolhubv1.WatchJobRequest{JobId: "j1", AfterSequence: 3}) {
		t.Errorf("%v, %v", status, err)
	}
	if _, err := hub.JobResult(t.Context(), "j1"); !errors.Is(err, ErrNotFound) {
		t.Errorf("%v", err)
	}
}

func TestWatchOfSeveralJobsAsksOnlyForThoseThatAreNotOver(t *testing.T) {
	scripts, hub := serveScripts(t)
	many := func(statuses ...*toolhubv1.JobStatus) []*toolhubv1.WatchJobsResponse {
		responses := []*toolhubv1.WatchJobsResponse{}
		for _, status := range statuses {
			responses = append(responses, &toolhubv1.WatchJobsResponse{Status: status})
		}
		return responses
	}
	first := many(statusOf("j1", 1, running), statusOf("j2", 1, running), statusOf("j1", 2, succeeded))
	second := many(statusOf("j2", 1, running), statusOf("j2", 2, succeeded)) // the first of them twice
	scripts.jobs.many.scripts = []script[toolhubv1.WatchJobsResponse]{{first, unavailable}, {second, nil}}
	seen := []int64{}
	where := &toolhubv1.WatchJobsRequest{JobIds: []string{"j1", "j2"}}
	for status, err := range hub.WatchJobs(t.Context(), where) {
		if err != nil {
			t.Fatal(err)
		}
		seen = append(seen, status.GetSequence())
	}
	if !slices.Equal(seen, []int64{1, 1, 2, 2}) {
		t.Errorf("%v", seen)
	}
	again := scripts.jobs.many.asked[1]
	if !slices.Equal(again.GetJobIds(), []string{"j2"}) || len(again.AfterSequences) != 1 || again.AfterSequences["j2"] != 1 {
		t.Errorf("%v", again)
	}
	if len(where.GetJobIds()) != 2 {
		t.Errorf("the caller's own request was changed: %v", where)
	}
}

func TestWatchOfApprovalsGoesOnAfterItsLastToken(t *testing.T) {
	scripts, hub := serveScripts(t)
	change := func(id, token string) *toolhubv1.WatchApprovalsResponse {
		return &toolhubv1.WatchApprovalsResponse{Approval: &toolhubv1.Approval{ApprovalId: id}, ResumeToken: token}
	}
	scripts.approvals.scripts = []script[toolhubv1.WatchApprovalsResponse]{
		{[]*toolhubv1.WatchApprovalsResponse{change("a1", ""), change("a2", "7")}, unavailable},
		{[]*toolhubv1.WatchApprovalsResponse{change("a3", "8")}, nil},
		{[]*toolhubv1.WatchApprovalsResponse{change("a4", "9")}, nil},
	}
	seen := []string{}
	for change, err := range hub.WatchApprovals(t.Context(), &toolhubv1.WatchApprovalsRequest{Tool: "t/*"}) {
		if err != nil {
			t.Fatal(err)
		}
		if seen = append(seen, change.GetApproval().GetApprovalId()); len(seen) == 4 {
			break
		}
	}
	for place, request := range scripts.approvals.asked {
		if request.GetTool() != "t/*" || request.GetResumeToken() != []string{"", "7", "8"}[place] {
			t.Errorf("%d: %v", place, request)
		}
	}
	if !slices.Equal(seen, []string{"a1", "a2", "a3", "a4"}) {
		t.Errorf("%v", seen)
	}
}

func TestWatchOfToolsGoesOnAfterItsLastTokenUntilItIsRefused(t *testing.T) {
	scripts, hub := serveScripts(t)
	message := &toolhubv1.ToolServiceWatchToolsResponse{Reset_: true, ResumeToken: "r1"}
	scripts.tools.scripts = []script[toolhubv1.ToolServiceWatchToolsResponse]{
		{[]*toolhubv1.ToolServiceWatchToolsResponse{message}, refused(codes.Unavailable, ReasonDraining, "Leaving.")},
	}
	came := 0
	for change, err := range hub.WatchTools(t.Context(), nil) {
		if came++; came == 1 && (err != nil || !change.GetReset_()) || came == 2 && !errors.Is(err, ErrNotFound) || came > 2 {
			t.Errorf("%d: %v, %v", came, change, err)
		}
	}
	if token := scripts.tools.asked[1].GetResumeToken(); token != "r1" {
		t.Errorf("%q", token)
	}
}

func TestWatchEndsWithItsContext(t *testing.T) {
	scripts, hub := serveScripts(t)
	approval := &toolhubv1.Approval{ApprovalId: "a1"}
	messages := []*toolhubv1.WatchApprovalsResponse{{Approval: approval}}
	scripts.approvals.scripts = []script[toolhubv1.WatchApprovalsResponse]{{messages, unavailable}}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var last error
	for _, err := range hub.WatchApprovals(ctx, nil) {
		cancel()
		last = err
	}
	if !errors.Is(last, ctx.Err()) || last == nil {
		t.Errorf("%v", last)
	}
}

func TestWatchThatBringsNothingAnyMoreIsGivenUp(t *testing.T) {
	scripts, hub := serveScripts(t)
	nothing := script[toolhubv1.WatchApprovalsResponse]{end: unavailable}
	scripts.approvals.scripts = []script[toolhubv1.WatchApprovalsResponse]{nothing, nothing}
	changes := watch[toolhubv1.WatchApprovalsResponse]{
		hub: hub, what: "watching approvals", attempts: 2,
		open: func(ctx context.Context) (grpc.ServerStreamingClient[toolhubv1.WatchApprovalsResponse], error) {
			return hub.Approvals.WatchApprovals(ctx, &toolhubv1.WatchApprovalsRequest{})
		},
	}
	for _, err := range changes.messages(t.Context()) {
		if !errors.Is(err, ErrUnavailable) || !strings.HasPrefix(err.Error(), "watching approvals: ") {
			t.Errorf("%v", err)
		}
	}
	if len(scripts.approvals.scripts) != 0 {
		t.Errorf("%d attempts are left", len(scripts.approvals.scripts))
	}
}

// TOOLHUB_BREAKING is an ArtifactService whose streams break, which tests/unit/clients/test_go_client.py serves.
func TestUploadGoesOnWhereItsConnectionBroke(t *testing.T) {
	address := os.Getenv("TOOLHUB_BREAKING")
	if address == "" {
		t.Skip("TOOLHUB_BREAKING names no server: run pytest tests/unit/clients/test_go_client.py, which starts one")
	}
	hub, content := connect(t, address, Config{Retry: time.Minute}), bytes.Repeat([]byte("0123456789abcdef"), 128_000)
	reader := bytes.NewReader(append([]byte("before"), content...))
	if _, err := reader.Seek(6, 0); err != nil {
		t.Fatal(err)
	}
	artifact, err := hub.PutArtifact(t.Context(), reader, nil)
	if err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	if _, err := hub.CopyArtifact(t.Context(), artifact.GetArtifactId(), &got); err != nil || !bytes.Equal(got.Bytes(), content) {
		t.Errorf("%d bytes, %v", got.Len(), err)
	}
}

func TestAHubThatFailsWithAReasonIsNotTakenForABrokenConnection(t *testing.T) {
	for _, code := range []codes.Code{codes.Internal, codes.Unknown} {
		if !broken(&HubError{Code: code}) {
			t.Errorf("%s without a reason is a broken connection", code)
		}
		if broken(&HubError{Code: code, Reason: ReasonInternal}) {
			t.Errorf("%s with a reason would fail again", code)
		}
	}
}
