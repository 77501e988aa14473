// Package toolhub is a client of tool-hub: tools, calls, jobs, artifacts and approvals over one gRPC connection.
//
//	hub, err := toolhub.Connect("", toolhub.Config{}) // TOOLHUB_ADDRESS, TOOLHUB_API_KEY, TOOLHUB_CA_FILE
//	result, err := hub.Invoke(ctx, toolhub.Call{Tool: "core/util.time.now"})
//
// Errors are *CallFailed, the hub's judgement of a call; *HubError, an RPC that failed; or those of ctx.
package toolhub

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"maps"
	"os"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	toolhubv1 "github.com/tool-hub/tool-hub/gen/go/toolhub/v1"
)

// Hub is a connected hub. Its fields are the generated clients, for RPCs that have no method here; they use the same
// credential and the same retries.
type Hub struct {
	Tools     toolhubv1.ToolServiceClient
	Jobs      toolhubv1.JobServiceClient
	Artifacts toolhubv1.ArtifactServiceClient
	Approvals toolhubv1.ApprovalServiceClient
	Registry  toolhubv1.RegistryServiceClient
	Audit     toolhubv1.AuditServiceClient

	config     Config
	address    string
	connection *grpc.ClientConn
	// Maps each exported name to its exportedTool, with the form of the latest export.
	exported sync.Map
}

// Connect opens a channel to the hub at address: `host`, `host:port`, `https://host`, `dns:///name:port`, `unix:/path`;
// empty: TOOLHUB_ADDRESS, else 127.0.0.1:50051. It does not wait for the hub: the first call does.
func Connect(address string, config Config) (*Hub, error) {
	connection, where, err := dial(address, &config)
	if err != nil {
		return nil, err
	}
	config.Context = proto.CloneOf(config.Context)
	if config.Context == nil {
		config.Context = &toolhubv1.ExecContext{}
	}
	if config.Context.RequestId == "" {
		config.Context.RequestId = firstOf(os.Getenv("TOOLHUB_REQUEST_ID"), "req_"+rand.Text())
	}
	return &Hub{
		Tools:      toolhubv1.NewToolServiceClient(connection),
		Jobs:       toolhubv1.NewJobServiceClient(connection),
		Artifacts:  toolhubv1.NewArtifactServiceClient(connection),
		Approvals:  toolhubv1.NewApprovalServiceClient(connection),
		Registry:   toolhubv1.NewRegistryServiceClient(connection),
		Audit:      toolhubv1.NewAuditServiceClient(connection),
		config:     config,
		address:    where,
		connection: connection,
	}, nil
}

// Close closes the channel.
func (hub *Hub) Close() error { return hub.connection.Close() }

// Address returns the address of the connection.
func (hub *Hub) Address() string { return hub.address }

// Call is what to do and why. Only Tool is required.
type Call struct {
	Tool           string
	Args           any    // anything that marshals to a JSON object; nil means {}
	Purpose        string // required by tools that change something; it goes into the audit log
	IdempotencyKey string // the same key and arguments have one effect, however often they are sent
	PlanDigest     string // of a plan that a dry run has shown; Commit sends it
	ApprovalID     string // of an approval that a person has granted
	// ExpectedToolDigest is the ToolSpec.Digest of the definition that the model was shown: if the tool has another one
	// by now, the call is refused as TOOL_CHANGED.
	ExpectedToolDigest string
	// ArgsForm is the form of Export whose definition a model wrote the arguments for; RunToolCall sets it.
	ArgsForm toolhubv1.ArgsForm
	// Context replaces Config.Context for this call; nil means Config.Context. Without a request id of its own it gets
	// the connection's, and so the connection's workspace.
	Context *toolhubv1.ExecContext
}

// Invoke makes one call. The result of a call that failed comes with a *CallFailed.
func (hub *Hub) Invoke(ctx context.Context, call Call) (*toolhubv1.ToolResult, error) {
	request, err := hub.request(call)
	if err != nil {
		return nil, err
	}
	return hub.invoke(ctx, request)
}

func (hub *Hub) invoke(ctx context.Context, request *toolhubv1.InvokeRequest) (*toolhubv1.ToolResult, error) {
	response, err := hub.Tools.Invoke(ctx, request)
	if err != nil {
		return nil, err
	}
	return outcome(response.GetResult())
}

// DryRun is what a call would do; Commit does exactly this.
type DryRun struct {
	Plan    *toolhubv1.Plan
	request *toolhubv1.InvokeRequest
}

// Err is what would stop the call; nil when it would run. PLAN_REQUIRED, which committing answers, does not count.
func (shown *DryRun) Err() error {
	for _, step := range shown.Plan.GetSteps() {
		if !step.GetOk() && shown.Plan.GetPlanDigest() == "" {
			return &CallFailed{Reason: step.GetError(), CallID: shown.Plan.GetCallId()}
		}
	}
	return nil
}

// DryRun says what Invoke would do. Nothing happens.
func (hub *Hub) DryRun(ctx context.Context, call Call) (*DryRun, error) {
	request, err := hub.request(call)
	if err != nil {
		return nil, err
	}
	asked := proto.CloneOf(request)
	asked.Mode = toolhubv1.InvokeMode_INVOKE_MODE_DRY_RUN
	response, err := hub.Tools.Invoke(ctx, asked)
	if err != nil {
		return nil, err
	}
	return &DryRun{Plan: response.GetPlan(), request: request}, nil
}

// Commit does exactly what the dry run has shown; anything else is PLAN_REQUIRED.
func (hub *Hub) Commit(ctx context.Context, shown *DryRun) (*toolhubv1.ToolResult, error) {
	request := proto.CloneOf(shown.request)
	request.PlanDigest = shown.Plan.GetPlanDigest()
	return hub.invoke(ctx, request)
}

// InvokeStream makes one call and hands each progress report and chunk to seen as it happens.
func (hub *Hub) InvokeStream(
	ctx context.Context, call Call, seen func(*toolhubv1.InvokeStreamResponse),
) (*toolhubv1.ToolResult, error) {
	request, err := hub.request(call)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := hub.Tools.InvokeStream(ctx, &toolhubv1.InvokeStreamRequest{
		Intent: request.Intent, Context: request.Context, PlanDigest: request.PlanDigest, ApprovalId: request.ApprovalId,
	})
	if err != nil {
		return nil, hubError(err, hub.address)
	}
	for {
		event, err := stream.Recv()
		if err == io.EOF {
			return nil, io.ErrUnexpectedEOF
		}
		if err != nil {
			return nil, hubError(err, hub.address)
		}
		if result := event.GetResult(); result != nil {
			return outcome(result)
		}
		seen(event)
	}
}

// Value unmarshals a result's JSON into target. A *CallFailed says that the call did not succeed; a result that became a
// job has no value yet.
func Value(result *toolhubv1.ToolResult, target any) error {
	if _, err := outcome(result); err != nil {
		return err
	}
	if job := result.GetJob(); job != nil {
		return fmt.Errorf("%s has no value yet: it goes on as job %s, whose end JobResult waits for", result.GetTool(), job.GetJobId())
	}
	if text := result.GetResultJson(); text != nil {
		return json.Unmarshal(text, target)
	}
	text, err := result.GetResultStruct().MarshalJSON()
	if err != nil {
		return err
	}
	return json.Unmarshal(text, target)
}

// ListTools gives every tool the caller could be allowed, page by page, with those filters; nil means all.
func (hub *Hub) ListTools(ctx context.Context, where *toolhubv1.ToolFilter) iter.Seq2[*toolhubv1.ToolSpec, error] {
	return pages(func(token string) ([]*toolhubv1.ToolSpec, string, error) {
		page, err := hub.Tools.ListTools(ctx, &toolhubv1.ListToolsRequest{Filter: where, PageToken: token})
		return page.GetTools(), page.GetNextPageToken(), err
	})
}

// WatchTools gives each change of what ListTools gives, until the caller stops iterating or ctx ends; nil means all
// tools. After a message with Reset, list the tools again. The first message has Reset, unless the request has a
// ResumeToken. After a broken connection WatchTools resumes by itself.
func (hub *Hub) WatchTools(
	ctx context.Context, where *toolhubv1.ToolServiceWatchToolsRequest,
) iter.Seq2[*toolhubv1.ToolServiceWatchToolsResponse, error] {
	return func(yield func(*toolhubv1.ToolServiceWatchToolsResponse, error) bool) {
		request := &toolhubv1.ToolServiceWatchToolsRequest{}
		proto.Merge(request, where)
		changes := watch[toolhubv1.ToolServiceWatchToolsResponse]{
			hub: hub, what: "watching tools",
			open: func(ctx context.Context) (grpc.ServerStreamingClient[toolhubv1.ToolServiceWatchToolsResponse], error) {
				return hub.Tools.WatchTools(ctx, request)
			},
		}
		for change, err := range changes.messages(ctx) {
			request.ResumeToken = firstOf(change.GetResumeToken(), request.ResumeToken)
			if !yield(change, err) {
				return
			}
		}
	}
}

// Search gives the best hits, at most limit; 0 means 100.
func (hub *Hub) Search(
	ctx context.Context, query string, limit int32, where *toolhubv1.ToolFilter,
) ([]*toolhubv1.SearchHit, error) {
	var found []*toolhubv1.SearchHit
	for hit, err := range pages(func(token string) ([]*toolhubv1.SearchHit, string, error) {
		page, err := hub.Tools.SearchTools(
			ctx, &toolhubv1.SearchToolsRequest{Query: query, PageSize: limit, Filter: where, PageToken: token})
		return page.GetHits(), page.GetNextPageToken(), err
	}) {
		if err != nil {
			return nil, err
		}
		if found = append(found, hit); len(found) == int(limit) || limit == 0 && len(found) == 100 {
			break
		}
	}
	return found, nil
}

// GetTool returns one tool; ErrNotFound when there is none.
func (hub *Hub) GetTool(ctx context.Context, name string) (*toolhubv1.ToolSpec, error) {
	response, err := hub.Tools.GetTool(ctx, &toolhubv1.GetToolRequest{Name: name})
	return response.GetTool(), err
}

// ServerInfo returns the version, features and limits of the hub, and who the caller is.
func (hub *Hub) ServerInfo(ctx context.Context) (*toolhubv1.GetServerInfoResponse, error) {
	return hub.Tools.GetServerInfo(ctx, &toolhubv1.GetServerInfoRequest{})
}

// Export returns definitions for a model as a JSON array, and a map from each exported name to its tool.
func (hub *Hub) Export(
	ctx context.Context, format toolhubv1.ExportFormat, where *toolhubv1.ToolFilter,
) (json.RawMessage, map[string]string, error) {
	definitions, names := []json.RawMessage{}, map[string]string{}
	for definition, err := range pages(func(token string) ([]json.RawMessage, string, error) {
		page, err := hub.Tools.ExportTools(
			ctx, &toolhubv1.ExportToolsRequest{Format: format, Filter: where, PageToken: token})
		if err != nil {
			return nil, "", err
		}
		maps.Copy(names, page.GetNames())
		var found []json.RawMessage
		err = json.Unmarshal(page.GetToolsJson(), &found)
		return found, page.GetNextPageToken(), err
	}) {
		if err != nil {
			return nil, nil, err
		}
		definitions = append(definitions, definition)
	}
	for exported, name := range names {
		hub.exported.Store(exported, exportedTool{name, argsForm(format)})
	}
	whole, err := json.Marshal(definitions)
	return whole, names, err
}

// Stubs returns tools as functions for programs: the text of EXPORT_FORMAT_PYTHON_STUBS or EXPORT_FORMAT_TYPESCRIPT.
func (hub *Hub) Stubs(
	ctx context.Context, format toolhubv1.ExportFormat, where *toolhubv1.ToolFilter,
) (string, error) {
	var whole strings.Builder
	for token := ""; ; {
		page, err := hub.Tools.ExportTools(
			ctx, &toolhubv1.ExportToolsRequest{Format: format, Filter: where, PageToken: token})
		if err != nil {
			return "", err
		}
		whole.WriteString(page.GetText())
		if token = page.GetNextPageToken(); token == "" {
			return whole.String(), nil
		}
	}
}

// pages gives the items of page after page, until there is none or one fails.
func pages[Item any](page func(token string) ([]Item, string, error)) iter.Seq2[Item, error] {
	return func(yield func(Item, error) bool) {
		token := ""
		for {
			items, next, err := page(token)
			if err != nil {
				var nothing Item
				yield(nothing, err)
				return
			}
			for _, item := range items {
				if !yield(item, nil) {
					return
				}
			}
			if token = next; token == "" {
				return
			}
		}
	}
}

// request returns the call as a message; SubmitJobRequest, InvokeStreamRequest and SessionCall have the same fields.
func (hub *Hub) request(call Call) (*toolhubv1.InvokeRequest, error) {
	args := []byte("{}")
	if call.Args != nil {
		marshalled, err := json.Marshal(call.Args)
		if err != nil {
			return nil, fmt.Errorf("arguments of %s: %w", call.Tool, err)
		}
		args = marshalled
	}
	key := call.IdempotencyKey
	if key == "" && hub.config.AutomaticKeys {
		key = rand.Text()
	}
	under := hub.config.Context
	if call.Context != nil {
		under = proto.CloneOf(call.Context)
		under.RequestId = firstOf(under.RequestId, hub.config.Context.RequestId)
	}
	return &toolhubv1.InvokeRequest{
		Intent: &toolhubv1.ToolIntent{
			Tool: call.Tool, Args: &toolhubv1.ToolIntent_ArgsJson{ArgsJson: args},
			Purpose: call.Purpose, IdempotencyKey: key, ExpectedToolDigest: call.ExpectedToolDigest,
			ArgsForm: call.ArgsForm,
		},
		Context: under, PlanDigest: call.PlanDigest, ApprovalId: call.ApprovalID,
	}, nil
}

func outcome(result *toolhubv1.ToolResult) (*toolhubv1.ToolResult, error) {
	if !result.GetOk() {
		return result, &CallFailed{Reason: result.GetError(), CallID: result.GetCallId()}
	}
	return result, nil
}
