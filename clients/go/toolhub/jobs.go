package toolhub

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	toolhubv1 "github.com/tool-hub/tool-hub/gen/go/toolhub/v1"
)

const (
	watchAttempts = 16
	firstWait     = 100 * time.Millisecond
	longestWait   = 5 * time.Second
)

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
	intent, err := call.intent()
	if err != nil {
		return nil, err
	}
	response, err := hub.Jobs.SubmitJob(hub.Authorized(ctx), &toolhubv1.SubmitJobRequest{
		Intent: intent, Context: hub.contextOf(call), PlanDigest: call.PlanDigest, ApprovalId: call.ApprovalID,
	})
	return response.GetJob(), err
}

// WatchJob hands every status after afterSequence to seen and returns the final one. It reconnects with the last
// sequence it saw, so nothing is missed and nothing is seen twice; it gives up when 16 attempts in a row bring nothing.
func (hub *Hub) WatchJob(
	ctx context.Context, jobID string, afterSequence int64, seen func(*toolhubv1.JobStatus),
) (*toolhubv1.JobStatus, error) {
	ctx, cancel := context.WithCancel(hub.Authorized(ctx))
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
			return hub.finalStatus(ctx, jobID) // a stream ends by itself only after the final status, seen before
		}
		failed++
		if err != io.EOF && !broken(err) || failed >= watchAttempts {
			return nil, fmt.Errorf("watching job %s: %w", jobID, err)
		}
		wait := min(longestWait, firstWait<<failed)
		select {
		case <-time.After(rand.N(wait)):
		case <-ctx.Done():
			return nil, ctx.Err()
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

func (hub *Hub) finalStatus(ctx context.Context, jobID string) (*toolhubv1.JobStatus, error) {
	response, err := hub.Jobs.GetJob(ctx, &toolhubv1.GetJobRequest{JobId: jobID})
	if err != nil {
		return nil, fmt.Errorf("watching job %s: %w", jobID, err)
	}
	return response.GetJob().GetStatus(), nil
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
