// Package toolhub is a thin client of tool-hub.
package toolhub

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	toolhubv1 "github.com/tool-hub/tool-hub/gen/go/toolhub/v1"
)

// Reading is repeated while the hub is away. A call is not: it may have had its effect.
const serviceConfig = `{
  "loadBalancingConfig": [{"round_robin": {}}],
  "methodConfig": [{
    "name": [
      {"service": "toolhub.v1.ToolService", "method": "ListTools"},
      {"service": "toolhub.v1.ToolService", "method": "SearchTools"},
      {"service": "toolhub.v1.ToolService", "method": "GetTool"},
      {"service": "toolhub.v1.ToolService", "method": "ExportTools"},
      {"service": "toolhub.v1.JobService", "method": "GetJob"},
      {"service": "toolhub.v1.JobService", "method": "ListJobs"}
    ],
    "retryPolicy": {
      "maxAttempts": 4, "initialBackoff": "0.2s", "maxBackoff": "3s", "backoffMultiplier": 2,
      "retryableStatusCodes": ["UNAVAILABLE"]
    }
  }]
}`

// A hub that was started again is found soon.
var reconnect = backoff.Config{BaseDelay: 200 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 5 * time.Second}

// Config says how to reach a hub.
type Config struct {
	// APIKey is sent with every RPC. Empty: none.
	APIKey string
	// TLS are the channel's credentials. Nil: plaintext, for loopback or a sidecar.
	TLS credentials.TransportCredentials
	// Context is what every call is made under unless its Call brings its own.
	Context *toolhubv1.ExecContext
}

// Hub is a connected hub. Tools and Jobs are the generated clients, for what has no method here.
type Hub struct {
	Tools toolhubv1.ToolServiceClient
	Jobs  toolhubv1.JobServiceClient

	config     Config
	connection *grpc.ClientConn
}

// Connect opens a channel to the hub at address. It does not wait for the hub to answer.
func Connect(address string, config Config) (*Hub, error) {
	transport := config.TLS
	if transport == nil {
		transport = insecure.NewCredentials()
	}
	connection, err := grpc.NewClient(
		address, grpc.WithTransportCredentials(transport), grpc.WithDefaultServiceConfig(serviceConfig),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect, MinConnectTimeout: 20 * time.Second}))
	if err != nil {
		return nil, err
	}
	return &Hub{
		Tools:      toolhubv1.NewToolServiceClient(connection),
		Jobs:       toolhubv1.NewJobServiceClient(connection),
		config:     config,
		connection: connection,
	}, nil
}

// Close closes the channel.
func (hub *Hub) Close() error { return hub.connection.Close() }

// Authorized is ctx with the hub's credential, for use with Tools and Jobs.
func (hub *Hub) Authorized(ctx context.Context) context.Context {
	if hub.config.APIKey == "" {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+hub.config.APIKey)
}

// Call is what to do and why. Only Tool is required.
type Call struct {
	Tool           string
	Args           any // anything that marshals to a JSON object; nil means {}
	Purpose        string
	IdempotencyKey string
	PlanDigest     string
	ApprovalID     string
	Context        *toolhubv1.ExecContext // nil: the hub's
}

// CallFailed says that a call was judged or ran and did not succeed.
type CallFailed struct {
	Reason *toolhubv1.ToolError
	CallID string
}

// Kind is such as KindPolicyDenied.
func (failed *CallFailed) Kind() string {
	return strings.TrimPrefix(failed.Reason.GetKind().String(), "ERROR_KIND_")
}

func (failed *CallFailed) Error() string {
	return fmt.Sprintf("%s: %s", failed.Kind(), failed.Reason.GetMessage())
}

// Invoke makes one call. A *CallFailed is the hub's judgement; any other error is the RPC's.
func (hub *Hub) Invoke(ctx context.Context, call Call) (*toolhubv1.ToolResult, error) {
	intent, err := call.intent()
	if err != nil {
		return nil, err
	}
	response, err := hub.Tools.Invoke(hub.Authorized(ctx), &toolhubv1.InvokeRequest{
		Intent: intent, Context: hub.contextOf(call), PlanDigest: call.PlanDigest, ApprovalId: call.ApprovalID,
	})
	if err != nil {
		return nil, err
	}
	return judged(response.GetResult())
}

// InvokeStream makes one call and hands each progress report and chunk to seen as it happens.
func (hub *Hub) InvokeStream(
	ctx context.Context, call Call, seen func(*toolhubv1.InvokeStreamResponse),
) (*toolhubv1.ToolResult, error) {
	intent, err := call.intent()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(hub.Authorized(ctx))
	defer cancel()
	stream, err := hub.Tools.InvokeStream(ctx, &toolhubv1.InvokeStreamRequest{
		Intent: intent, Context: hub.contextOf(call), PlanDigest: call.PlanDigest, ApprovalId: call.ApprovalID,
	})
	if err != nil {
		return nil, err
	}
	for {
		event, err := stream.Recv()
		if err == io.EOF {
			return nil, io.ErrUnexpectedEOF
		}
		if err != nil {
			return nil, err
		}
		if result := event.GetResult(); result != nil {
			return judged(result)
		}
		seen(event)
	}
}

// Value unmarshals a result's JSON into target.
func Value(result *toolhubv1.ToolResult, target any) error {
	return json.Unmarshal(result.GetResultJson(), target)
}

func (hub *Hub) contextOf(call Call) *toolhubv1.ExecContext {
	if call.Context != nil {
		return call.Context
	}
	return hub.config.Context
}

func (call Call) intent() (*toolhubv1.ToolIntent, error) {
	args := []byte("{}")
	if call.Args != nil {
		marshalled, err := json.Marshal(call.Args)
		if err != nil {
			return nil, fmt.Errorf("arguments of %s: %w", call.Tool, err)
		}
		args = marshalled
	}
	return &toolhubv1.ToolIntent{
		Tool: call.Tool, Args: &toolhubv1.ToolIntent_ArgsJson{ArgsJson: args},
		Purpose: call.Purpose, IdempotencyKey: call.IdempotencyKey,
	}, nil
}

func judged(result *toolhubv1.ToolResult) (*toolhubv1.ToolResult, error) {
	if !result.GetOk() {
		return result, &CallFailed{Reason: result.GetError(), CallID: result.GetCallId()}
	}
	return result, nil
}
