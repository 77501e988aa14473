// Long work: submit a job and follow it to its end, whatever happens to the hub meanwhile.
// Start a hub with `make run`, then `go run ./examples/job [ADDRESS] [TOOL] [ARGUMENTS as JSON]`.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"

	"github.com/tool-hub/tool-hub/clients/go/toolhub"
	toolhubv1 "github.com/tool-hub/tool-hub/gen/go/toolhub/v1"
)

func main() {
	words := []string{"127.0.0.1:50051", "core/util.hash.sha256Text", `{"text": "hello"}`}
	copy(words, os.Args[1:])
	if err := run(words[0], words[1], words[2]); err != nil {
		log.Fatal(err)
	}
}

func run(address, tool, args string) error {
	hub, err := toolhub.Connect(address, toolhub.Config{})
	if err != nil {
		return err
	}
	defer hub.Close()
	ctx := context.Background()

	job, err := hub.SubmitJob(ctx, toolhub.Call{Tool: tool, Args: json.RawMessage(args), Purpose: "show a job"})
	if err != nil {
		return err
	}
	for status, err := range hub.WatchJob(ctx, &toolhubv1.WatchJobRequest{JobId: job.GetJobId()}) {
		if err != nil {
			return err
		}
		fmt.Println(status.GetSequence(), status.GetState(), status.GetProgress().GetStep())
	}
	result, err := hub.JobResult(ctx, job.GetJobId())
	if err != nil {
		return err
	}
	fmt.Printf("answer: %s\n", result.GetResultJson())
	return nil
}
