package toolhub

import (
	"context"
	"fmt"
	"io"
	"iter"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	toolhubv1 "github.com/tool-hub/tool-hub/gen/go/toolhub/v1"
)

// resumedMax is the largest number of jobs whose sequence one request may name.
const resumedMax = 1024

// Final says whether a job in this state is over.
func Final(state toolhubv1.JobState) bool {
	switch state {
	case toolhubv1.JobState_JOB_STATE_SUCCEEDED, toolhubv1.JobState_JOB_STATE_FAILED,
		toolhubv1.JobState_JOB_STATE_CANCELLED, toolhubv1.JobState_JOB_STATE_TIMED_OUT,
		toolhubv1.JobState_JOB_STATE_LOST:
		return true
	}
	return false
}

// SubmitJob submits a call as a job, which runs without its caller. The same idempotency key returns the same job; a
// refused call is a job that has failed.
func (hub *Hub) SubmitJob(ctx context.Context, call Call) (*toolhubv1.Job, error) {
	request, err := hub.request(call)
	if err != nil {
		return nil, err
	}
	response, err := hub.Jobs.SubmitJob(ctx, &toolhubv1.SubmitJobRequest{
		Intent: request.Intent, Context: request.Context, PlanDigest: request.PlanDigest, ApprovalId: request.ApprovalId,
	})
	return response.GetJob(), err
}

// GetJob returns one job with its latest status; ErrNotFound when there is none.
func (hub *Hub) GetJob(ctx context.Context, jobID string) (*toolhubv1.Job, error) {
	response, err := hub.Jobs.GetJob(ctx, &toolhubv1.GetJobRequest{JobId: jobID})
	return response.GetJob(), err
}

// ListJobs gives the caller's jobs, newest first, page by page; nil means all of them.
func (hub *Hub) ListJobs(ctx context.Context, where *toolhubv1.ListJobsRequest) iter.Seq2[*toolhubv1.Job, error] {
	return pages(func(token string) ([]*toolhubv1.Job, string, error) {
		request := &toolhubv1.ListJobsRequest{}
		proto.Merge(request, where)
		request.PageToken = token
		page, err := hub.Jobs.ListJobs(ctx, request)
		return page.GetJobs(), page.GetNextPageToken(), err
	})
}

// CancelJob asks a job to stop; the status says whether it already has.
func (hub *Hub) CancelJob(ctx context.Context, jobID, reason string) (*toolhubv1.JobStatus, error) {
	response, err := hub.Jobs.CancelJob(ctx, &toolhubv1.CancelJobRequest{JobId: jobID, Reason: reason})
	return response.GetStatus(), err
}

// JobResult waits for a job's end. The result of a job that failed comes with a *CallFailed.
func (hub *Hub) JobResult(ctx context.Context, jobID string) (*toolhubv1.ToolResult, error) {
	for status, err := range hub.WatchJob(ctx, &toolhubv1.WatchJobRequest{JobId: jobID}) {
		if err != nil {
			return nil, err
		}
		if Final(status.GetState()) {
			return outcome(status.GetResult())
		}
	}
	return nil, fmt.Errorf("watching job %s: %w", jobID, io.ErrUnexpectedEOF)
}

// WatchJob gives every status of a job up to its final one. It begins with the current status, or where AfterSequence
// and FromFirst say, and gives nothing if AfterSequence is that of the final status. It reconnects with the last
// sequence that it saw, so nothing is missed and nothing is seen twice; it gives up when 16 attempts in a row bring
// nothing. ErrNotFound when there is no such job.
func (hub *Hub) WatchJob(
	ctx context.Context, where *toolhubv1.WatchJobRequest,
) iter.Seq2[*toolhubv1.JobStatus, error] {
	return func(yield func(*toolhubv1.JobStatus, error) bool) {
		request := &toolhubv1.WatchJobRequest{}
		proto.Merge(request, where)
		statuses := watch[toolhubv1.WatchJobResponse]{
			hub: hub, what: "watching job " + request.GetJobId(),
			open: func(ctx context.Context) (grpc.ServerStreamingClient[toolhubv1.WatchJobResponse], error) {
				return hub.Jobs.WatchJob(ctx, request)
			},
			// A stream ends by itself only after the final status, seen before.
			ended: func(messages int) bool { return messages == 0 && request.GetAfterSequence() > 0 },
		}
		for response, err := range statuses.messages(ctx) {
			status := response.GetStatus()
			if err == nil {
				request.AfterSequence = status.GetSequence()
			}
			if !yield(status, err) || Final(status.GetState()) {
				return
			}
		}
	}
}

// WatchJobs gives the statuses of several jobs as they happen. With JobIds, these are the jobs named there, until all
// are over; without, all jobs that match, future ones included, until the caller stops iterating or ctx ends. It
// reconnects as WatchJob does. ErrNotFound when a job that JobIds names does not exist.
func (hub *Hub) WatchJobs(
	ctx context.Context, where *toolhubv1.WatchJobsRequest,
) iter.Seq2[*toolhubv1.JobStatus, error] {
	return func(yield func(*toolhubv1.JobStatus, error) bool) {
		request := &toolhubv1.WatchJobsRequest{AfterSequences: map[string]int64{}}
		proto.Merge(request, where)
		named := len(request.JobIds) > 0
		statuses := watch[toolhubv1.WatchJobsResponse]{
			hub: hub, what: "watching jobs",
			open: func(ctx context.Context) (grpc.ServerStreamingClient[toolhubv1.WatchJobsResponse], error) {
				return hub.Jobs.WatchJobs(ctx, resumable(request))
			},
			ended: func(int) bool { return named },
		}
		for response, err := range statuses.messages(ctx) {
			status := response.GetStatus()
			if err == nil && status.GetSequence() <= request.AfterSequences[status.GetJobId()] {
				continue
			}
			if Final(status.GetState()) {
				delete(request.AfterSequences, status.GetJobId())
				request.JobIds = slices.DeleteFunc(request.JobIds, func(id string) bool { return id == status.GetJobId() })
			} else if err == nil {
				request.AfterSequences[status.GetJobId()] = status.GetSequence()
			}
			if !yield(status, err) || named && len(request.JobIds) == 0 {
				return
			}
		}
	}
}

// resumable returns the request with as many sequences as one may have; the remaining jobs begin with their current
// status.
func resumable(request *toolhubv1.WatchJobsRequest) *toolhubv1.WatchJobsRequest {
	sent := proto.CloneOf(request)
	for jobID := range sent.AfterSequences {
		if len(sent.AfterSequences) <= resumedMax {
			break
		}
		delete(sent.AfterSequences, jobID)
	}
	return sent
}
