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
	watchAttempts = 8
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

// WatchJob hands every status after afterSequence to seen and returns the final one. It reconnects with the last
// sequence it saw, so nothing is missed and nothing is seen twice; it gives up when eight attempts in a row bring nothing.
func (hub *Hub) WatchJob(
	ctx context.Context, jobID string, afterSequence int64, seen func(*toolhubv1.JobStatus),
) (*toolhubv1.JobStatus, error) {
	ctx, cancel := context.WithCancel(hub.Authorized(ctx))
	defer cancel()
	last, failed := afterSequence, 0
	for {
		final, err := hub.watchOnce(ctx, jobID, last, func(current *toolhubv1.JobStatus) {
			last, failed = current.GetSequence(), 0
			seen(current)
		})
		if final != nil {
			return final, nil
		}
		failed++
		if err != io.EOF && status.Code(err) != codes.Unavailable || failed >= watchAttempts {
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
