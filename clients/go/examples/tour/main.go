// Tour of a hub: find a tool, call it, see what fails, exchange an artifact. Start a hub with `make run`, then `go run ./examples/tour`.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/tool-hub/tool-hub/clients/go/toolhub"
)

func main() {
	address := "127.0.0.1:50051"
	if len(os.Args) > 1 {
		address = os.Args[1]
	}
	if err := tour(address); err != nil {
		log.Fatal(err)
	}
}

func tour(address string) error {
	hub, err := toolhub.Connect(address, toolhub.Config{})
	if err != nil {
		return err
	}
	defer hub.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()

	found, err := hub.Search(ctx, "current time", 3, nil)
	if err != nil {
		return err
	}
	for _, hit := range found {
		fmt.Printf("%6.2f  %s\n", hit.GetScore(), hit.GetTool().GetName())
	}

	result, err := hub.Invoke(ctx, toolhub.Call{
		Tool: "core/util.time.now", Args: map[string]string{"timezone": "UTC"}, Purpose: "show the time",
	})
	if err != nil {
		return err
	}
	fmt.Printf("answer: %s\n", result.GetResultJson())

	_, err = hub.Invoke(ctx, toolhub.Call{
		Tool: "core/fs.readText", Args: map[string]string{"path": "../secret"}, Purpose: "try to leave the workspace",
	})
	var refused *toolhub.CallFailed
	if !errors.As(err, &refused) {
		return fmt.Errorf("expected a refusal, got %v", err)
	}
	fmt.Println("refused:", refused)

	_, err = hub.GetTool(ctx, "no/such.tool")
	var failed *toolhub.HubError
	if !errors.As(err, &failed) {
		return fmt.Errorf("expected no such tool, got %v", err)
	}
	fmt.Println("missing:", failed.Reason)

	content := bytes.Repeat([]byte("0123456789"), 100_000)
	artifact, err := hub.PutArtifact(ctx, bytes.NewReader(content), nil)
	if err != nil {
		return err
	}
	var back bytes.Buffer
	if _, err = hub.CopyArtifact(ctx, artifact.GetArtifactId(), &back); err != nil {
		return err
	}
	same := map[bool]string{true: "the same", false: "others"}[bytes.Equal(back.Bytes(), content)]
	fmt.Printf("artifact: %d bytes, %s\n", back.Len(), same)
	return nil
}
