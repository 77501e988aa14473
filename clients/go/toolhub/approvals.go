package toolhub

import (
	"context"
	"encoding/json"
	"iter"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	toolhubv1 "github.com/tool-hub/tool-hub/gen/go/toolhub/v1"
)

// ListApprovals gives approvals, newest first, page by page: everybody's for approvers, the caller's own for others.
func (hub *Hub) ListApprovals(
	ctx context.Context, where *toolhubv1.ListApprovalsRequest,
) iter.Seq2[*toolhubv1.Approval, error] {
	return pages(func(token string) ([]*toolhubv1.Approval, string, error) {
		request := &toolhubv1.ListApprovalsRequest{}
		proto.Merge(request, where)
		request.PageToken = token
		page, err := hub.Approvals.ListApprovals(ctx, request)
		return page.GetApprovals(), page.GetNextPageToken(), err
	})
}

// GetApproval is one approval; ErrNotFound when there is none, or it is not the caller's to see.
func (hub *Hub) GetApproval(ctx context.Context, approvalID string) (*toolhubv1.Approval, error) {
	response, err := hub.Approvals.GetApproval(ctx, &toolhubv1.GetApprovalRequest{ApprovalId: approvalID})
	return response.GetApproval(), err
}

// WatchApprovals gives every pending approval, then each change as it happens, until the caller leaves or ctx ends; nil
// means those of all tools. With the last ResumeToken that was not empty, as it does itself across broken connections,
// it begins with what has changed since, decided or not; the latest may come twice.
func (hub *Hub) WatchApprovals(
	ctx context.Context, where *toolhubv1.WatchApprovalsRequest,
) iter.Seq2[*toolhubv1.WatchApprovalsResponse, error] {
	return func(yield func(*toolhubv1.WatchApprovalsResponse, error) bool) {
		request := &toolhubv1.WatchApprovalsRequest{}
		proto.Merge(request, where)
		changes := watch[toolhubv1.WatchApprovalsResponse]{
			hub: hub, what: "watching approvals",
			open: func(ctx context.Context) (grpc.ServerStreamingClient[toolhubv1.WatchApprovalsResponse], error) {
				return hub.Approvals.WatchApprovals(ctx, request)
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

// Approve says yes to exactly the arguments that approval shows. answer is for one with a question, and nil otherwise.
func (hub *Hub) Approve(
	ctx context.Context, approval *toolhubv1.Approval, comment string, answer any,
) (*toolhubv1.Approval, error) {
	var answerJSON []byte
	if answer != nil {
		marshalled, err := json.Marshal(answer)
		if err != nil {
			return nil, err
		}
		answerJSON = marshalled
	}
	return hub.decide(ctx, approval, toolhubv1.Decision_DECISION_APPROVE, comment, answerJSON)
}

// Reject says no.
func (hub *Hub) Reject(
	ctx context.Context, approval *toolhubv1.Approval, comment string,
) (*toolhubv1.Approval, error) {
	return hub.decide(ctx, approval, toolhubv1.Decision_DECISION_REJECT, comment, nil)
}

func (hub *Hub) decide(
	ctx context.Context, approval *toolhubv1.Approval, decision toolhubv1.Decision, comment string, answer []byte,
) (*toolhubv1.Approval, error) {
	response, err := hub.Approvals.DecideApproval(ctx, &toolhubv1.DecideApprovalRequest{
		ApprovalId: approval.GetApprovalId(), Decision: decision, Comment: comment,
		ArgsDigest: approval.GetArgsDigest(), AnswerJson: answer,
	})
	return response.GetApproval(), err
}
