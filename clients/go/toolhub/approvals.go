package toolhub

import (
	"context"
	"encoding/json"
	"io"
	"iter"

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

// WatchApprovals hands every pending approval to seen, then each change as it happens, until ctx ends or the connection
// breaks. tool is a name or a glob; empty means all.
func (hub *Hub) WatchApprovals(ctx context.Context, tool string, seen func(*toolhubv1.Approval)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := hub.Approvals.WatchApprovals(ctx, &toolhubv1.WatchApprovalsRequest{Tool: tool})
	for err == nil {
		var response *toolhubv1.WatchApprovalsResponse
		if response, err = stream.Recv(); err == nil {
			seen(response.GetApproval())
		}
	}
	if err == io.EOF {
		return nil
	}
	return hubError(err, hub.address)
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
