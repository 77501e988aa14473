package toolhub

import (
	"context"
	"fmt"
	"io"
	"iter"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	toolhubv1 "github.com/tool-hub/tool-hub/gen/go/toolhub/v1"
)

const watchAttempts = 16

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

// SubmitJob has a call made as a job, which goes on without its caller. The same key gives the same job; a refused call
// is a job that has failed.
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

// GetJob is one job with its latest status; ErrNotFound when there is none.
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
	final, err := hub.WatchJob(ctx, jobID, 0, func(*toolhubv1.JobStatus) {})
	if err != nil {
		return nil, err
	}
	return judged(final.GetResult())
}

// WatchJob hands every status after afterSequence to seen and returns the final one. It reconnects with the last
// sequence it saw, so nothing is missed and nothing is seen twice; it gives up when 16 attempts in a row bring nothing.
func (hub *Hub) WatchJob(
	ctx context.Context, jobID string, afterSequence int64, seen func(*toolhubv1.JobStatus),
) (*toolhubv1.JobStatus, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	last, failed := afterSequence, 0
	for {
		before := last
		final, err := hub.watchOnce(ctx, jobID, last, func(current *toolhubv1.JobStatus) {
			last, failed = current.GetSequence(), 0
			seen(current)
		})
		if final != nil {
			return final, nil
		}
		if err == io.EOF && last == before && last > 0 {
			job, err := hub.GetJob(ctx, jobID) // a stream ends by itself only after the final status, seen before
			return job.GetStatus(), err
		}
		failed++
		err = hubError(err, hub.address)
		if err != io.EOF && !broken(err) || failed >= watchAttempts {
			return nil, fmt.Errorf("watching job %s: %w", jobID, err)
		}
		if err := wait(ctx, pauseAfter(failed, err)); err != nil {
			return nil, err
		}
	}
}

// broken says whether a watch that ended so may be begun again.
func broken(err error) bool {
	switch status.Code(err) {
	case codes.Aborted, codes.Canceled, codes.Internal, codes.ResourceExhausted, codes.Unavailable, codes.Unknown:
		return true
	}
	return false
}

func (hub *Hub) watchOnce(
	ctx context.Context, jobID string, after int64, seen func(*toolhubv1.JobStatus),
) (*toolhubv1.JobStatus, error) {
	stream, err := hub.Jobs.WatchJob(ctx, &toolhubv1.WatchJobRequest{JobId: jobID, AfterSequence: after})
	if err != nil {
		return nil, err
	}
	for {
		response, err := stream.Recv()
		if err != nil {
			return nil, err
		}
		seen(response.GetStatus())
		if Final(response.GetStatus().GetState()) {
			return response.GetStatus(), nil
		}
	}
}
