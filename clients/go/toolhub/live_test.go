package toolhub

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	toolhubv1 "github.com/tool-hub/tool-hub/gen/go/toolhub/v1"
)

// live is the hub that tests/unit/clients/test_go_client.py serves; its policy lets everybody delete.
func live(t *testing.T) *Hub {
	t.Helper()
	address := os.Getenv("TOOLHUB_LIVE")
	if address == "" {
		t.Skip("TOOLHUB_LIVE names no hub: run pytest tests/unit/clients/test_go_client.py, which starts one")
	}
	return connect(t, address, Config{})
}

const hashing = "core/util.hash.sha256Text"

// TOOLHUB_ENCRYPTED is a hub that wants TLS and a certificate of its caller's; the folder beside has both.
func TestTLSAndACertificateOfOnesOwnOpenAHubThatWantsBoth(t *testing.T) {
	address, folder := os.Getenv("TOOLHUB_ENCRYPTED"), os.Getenv("TOOLHUB_ENCRYPTED_FILES")
	if address == "" {
		t.Skip("TOOLHUB_ENCRYPTED names no hub: run pytest tests/unit/clients/test_go_client.py, which starts one")
	}
	file := func(name string) string { return filepath.Join(folder, name) }
	own := Config{CAFile: file("ca.pem"), CertFile: file("me.pem"), KeyFile: file("me.key"), Retry: time.Minute}
	if _, err := connect(t, address, own).ServerInfo(t.Context()); err != nil {
		t.Error(err)
	}
	_, where := split(address)
	for _, each := range []struct {
		address string
		config  Config
		says    string
	}{
		{address, Config{CAFile: file("ca.pem")}, "wants a client certificate"},
		{address, Config{CertFile: file("me.pem"), KeyFile: file("me.key")}, "is not trusted"},
		{"http://" + where, Config{}, "wants TLS (https://"},
		{"https://" + os.Getenv("TOOLHUB_LIVE"), Config{CAFile: file("ca.pem")}, "does not use TLS"},
	} {
		each.config.Retry = time.Second
		hub := connect(t, each.address, each.config)
		_, err := hub.ServerInfo(t.Context())
		for asked := 1; asked < 20 && !strings.Contains(err.Error(), each.says); asked++ { // a busy machine shakes hands late
			_, err = hub.ServerInfo(t.Context())
		}
		if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), each.says) {
			t.Errorf("%v", err)
		}
	}
}

func TestPlanOfADryRunIsCommittedOnce(t *testing.T) {
	hub, ctx := live(t), t.Context()
	file := map[string]any{"path": "a.txt", "text": "hi"}
	if _, err := hub.Invoke(ctx, Call{Tool: "core/fs.writeText", Args: file, Purpose: "a test"}); err != nil {
		t.Fatal(err)
	}
	call := Call{Tool: "core/fs.deletePath", Args: map[string]any{"path": "a.txt", "confirm": true}, Purpose: "a test"}
	var failed *CallFailed
	if _, err := hub.Invoke(ctx, call); !errors.As(err, &failed) || failed.Kind() != KindPlanRequired {
		t.Fatalf("%v", err)
	}
	shown, err := hub.DryRun(ctx, call)
	if err != nil || shown.Err() != nil {
		t.Fatal(err, shown.Err())
	}
	if _, err := hub.Commit(ctx, shown); err != nil {
		t.Fatal(err)
	}
	if _, err := hub.Commit(ctx, shown); !errors.As(err, &failed) {
		t.Errorf("%v", err)
	}
}

func TestToolsAreListedFoundAndExported(t *testing.T) {
	hub, ctx := live(t), t.Context()
	names := map[string]bool{}
	for tool, err := range hub.ListTools(ctx, &toolhubv1.ToolFilter{Names: []string{"core/util.*"}}) {
		if err != nil {
			t.Fatal(err)
		}
		names[tool.GetName()] = true
	}
	hits, err := hub.Search(ctx, "current time", 1, nil)
	if err != nil || len(hits) != 1 || !names[hits[0].GetTool().GetName()] {
		t.Errorf("%v, %v", hits, err)
	}
	_, exported, err := hub.Export(ctx, toolhubv1.ExportFormat_EXPORT_FORMAT_MCP, nil)
	if err != nil || len(exported) < len(names) {
		t.Errorf("%v, %v", exported, err)
	}
	if _, err := hub.GetTool(ctx, "no/such.tool"); !errors.Is(err, ErrNotFound) {
		t.Errorf("%v", err)
	}
}

func TestJobIsSubmittedListedAndAnswered(t *testing.T) {
	hub, ctx := live(t), t.Context()
	job, err := hub.SubmitJob(ctx, Call{Tool: hashing, Args: map[string]any{"text": ""}, Purpose: "a test"})
	if err != nil {
		t.Fatal(err)
	}
	result, err := hub.JobResult(ctx, job.GetJobId())
	if err != nil {
		t.Fatal(err)
	}
	var value struct{ Sha256 string }
	if err := Value(result, &value); err != nil || value.Sha256[:8] != "e3b0c442" {
		t.Errorf("%v, %v", value, err)
	}
	found := 0
	for each, err := range hub.ListJobs(ctx, &toolhubv1.ListJobsRequest{Tool: hashing, PageSize: 1}) {
		if err != nil {
			t.Fatal(err)
		}
		if each.GetJobId() == job.GetJobId() {
			found++
		}
	}
	if found != 1 {
		t.Errorf("listed %d times", found)
	}
	if ended, err := hub.CancelJob(ctx, job.GetJobId(), ""); err != nil || !Final(ended.GetState()) {
		t.Errorf("%v, %v", ended, err)
	}
}

func TestSeveralJobsAreFollowedToTheirEndsAndAHistoryIsReadWhole(t *testing.T) {
	hub, ctx := live(t), t.Context()
	jobIDs := []string{}
	for range 3 {
		job, err := hub.SubmitJob(ctx, Call{Tool: hashing, Args: map[string]any{"text": ""}, Purpose: "a test"})
		if err != nil {
			t.Fatal(err)
		}
		jobIDs = append(jobIDs, job.GetJobId())
	}
	for status, err := range hub.WatchJobs(ctx, &toolhubv1.WatchJobsRequest{JobIds: jobIDs}) {
		if err != nil || Final(status.GetState()) && status.GetState() != succeeded {
			t.Errorf("%v, %v", status, err)
		}
	}
	last := int64(0)
	for status, err := range hub.WatchJob(ctx, &toolhubv1.WatchJobRequest{JobId: jobIDs[0], FromFirst: true}) {
		if err != nil || status.GetSequence() != last+1 {
			t.Fatal(status, err)
		}
		last = status.GetSequence()
	}
	if last < 2 {
		t.Errorf("a history of %d", last)
	}
}

func TestWatchOfToolsSaysWhetherTheyMustBeListedAnew(t *testing.T) {
	hub, ctx := live(t), t.Context()
	token := ""
	for range 2 {
		for change, err := range hub.WatchTools(ctx, &toolhubv1.ToolServiceWatchToolsRequest{ResumeToken: token}) {
			if err != nil || change.GetReset_() != (token == "") {
				t.Fatal(change, err)
			}
			token = change.GetResumeToken()
			break
		}
	}
}

func TestCallsOfOneConnectionShareAWorkspaceAndOthersHaveTheirOwn(t *testing.T) {
	hub, ctx := live(t), t.Context()
	write := Call{Tool: "core/fs.writeText", Args: map[string]any{"path": "shared.txt", "text": "hi"}, Purpose: "a test"}
	read := Call{Tool: "core/fs.readText", Args: map[string]any{"path": "shared.txt"}, Purpose: "a test"}
	if _, err := hub.Invoke(ctx, write); err != nil {
		t.Fatal(err)
	}
	job, err := hub.SubmitJob(ctx, read)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := hub.JobResult(ctx, job.GetJobId()); err != nil {
		t.Error(err)
	}
	var failed *CallFailed
	if _, err := live(t).Invoke(ctx, read); !errors.As(err, &failed) || failed.Kind() != KindNotFound {
		t.Errorf("%v", err)
	}
}

func TestToolThatIsNotAsItWasShownIsRefused(t *testing.T) {
	hub, ctx := live(t), t.Context()
	call := Call{Tool: hashing, Args: map[string]any{"text": ""}, ExpectedToolDigest: strings.Repeat("0", 64)}
	var failed *CallFailed
	if _, err := hub.Invoke(ctx, call); !errors.As(err, &failed) || failed.Kind() != KindToolChanged {
		t.Errorf("%v", err)
	}
	tool, err := hub.GetTool(ctx, hashing)
	if err != nil {
		t.Fatal(err)
	}
	call.ExpectedToolDigest = tool.GetDigest()
	if _, err := hub.Invoke(ctx, call); err != nil {
		t.Error(err)
	}
}

func TestRefusalByPolicyNamesWhatWouldAllowTheCall(t *testing.T) {
	call := Call{Tool: "core/http.fetchText", Args: map[string]any{"url": "https://example.com/"}, Purpose: "a test"}
	var failed *CallFailed
	if _, err := live(t).Invoke(t.Context(), call); !errors.As(err, &failed) || failed.Kind() != KindPolicyDenied {
		t.Fatal(err)
	}
	if failed.Remedy() == "" || failed.Advice() == "" || failed.ApprovalID() != "" {
		t.Errorf("%v", failed.Details())
	}
}

func TestToolCallsOfModelsAreMadeAndAnsweredInTheirForm(t *testing.T) {
	hub, ctx := live(t), t.Context()
	filter := &toolhubv1.ToolFilter{Names: []string{hashing}}
	_, names, err := hub.Export(ctx, toolhubv1.ExportFormat_EXPORT_FORMAT_OPENAI, filter)
	if err != nil {
		t.Fatal(err)
	}
	short := ""
	for exported := range names {
		short = exported
	}
	empty := "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	function := map[string]any{"name": short, "arguments": `{"text": ""}`}
	chat := map[string]any{"id": "call_7", "type": "function", "function": function}
	item := map[string]any{"type": "function_call", "call_id": "call_7", "name": short, "arguments": `{"text": ""}`}
	block := json.RawMessage(`{"type": "tool_use", "id": "toolu_7", "name": "core/fs.readText", "input": {"path": "../x"}}`)
	broken := map[string]any{"type": "function_call", "call_id": "call_7", "name": short, "arguments": "["}
	for _, asked := range []struct {
		call             any
		field, id, shows string
	}{
		{chat, "content", "tool_call_id", empty},
		{item, "output", "call_id", empty},
		{block, "content", "tool_use_id", "PATH_OUTSIDE_SANDBOX: "},
		{broken, "output", "call_id", "INVALID_INPUT: "},
	} {
		message, err := hub.RunToolCall(ctx, asked.call, Call{Purpose: "a test"})
		if err != nil || !strings.Contains(fmt.Sprint(message[asked.field]), asked.shows) || message[asked.id] == "" {
			t.Errorf("%v: %v, %v", asked.call, message, err)
		}
		if message["type"] == "tool_result" && message["is_error"] != true {
			t.Errorf("%v", message)
		}
	}
	if _, err := hub.RunToolCall(ctx, map[string]string{"type": "text"}, Call{}); !errors.Is(err, ErrNoToolCall) {
		t.Errorf("%v", err)
	}
}

func TestModelsCallIsUnderstoodByAnotherConnectionAndItsPlanCommitted(t *testing.T) {
	hub, ctx := live(t), t.Context()
	text := map[string]any{"path": "plans.txt", "text": "x", "overwrite": true}
	if _, err := hub.Invoke(ctx, Call{Tool: "core/fs.writeText", Args: text, Purpose: "a test"}); err != nil {
		t.Fatal(err)
	}
	arguments := `{"path": "plans.txt", "confirm": true`
	digest := regexp.MustCompile(`toolhub_plan: "(plan_[a-z2-7]+)"`)
	ask := func(arguments string) string {
		item := map[string]any{"type": "function_call", "call_id": "7", "name": "core__fs_deletePath", "arguments": arguments}
		message, err := hub.RunToolCall(ctx, item, Call{Purpose: "a test"})
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(message["output"])
	}
	refused := ask(arguments + "}")
	plan := digest.FindStringSubmatch(refused)
	if plan == nil || !strings.Contains(refused, `Delete "plans.txt": 1 file, 1 byte.`) {
		t.Fatal(refused)
	}
	if done := ask(arguments + `, "toolhub_plan": "` + plan[1] + `"}`); !strings.Contains(done, `"deleted":true`) {
		t.Error(done)
	}
}

func TestArgumentsAreReadInTheFormOfTheirExport(t *testing.T) {
	hub, ctx := live(t), t.Context()
	filter := &toolhubv1.ToolFilter{Names: []string{"core/util.text.truncate"}}
	const name, arguments = "core__util_text_truncate", `{"text": "abcdef", "maxChars": 3, "marker": null}`
	item := map[string]any{"type": "function_call", "call_id": "call_7", "name": name, "arguments": arguments}
	part := json.RawMessage(`{"functionCall": {"name": "` + name + `", "args": ` + arguments + `, "id": "7"}}`)
	for _, asked := range []struct {
		format toolhubv1.ExportFormat
		call   any
		field  string
	}{
		{toolhubv1.ExportFormat_EXPORT_FORMAT_OPENAI_STRICT, item, "output"},
		{toolhubv1.ExportFormat_EXPORT_FORMAT_GEMINI, part, "functionResponse"},
	} {
		if _, _, err := hub.Export(ctx, asked.format, filter); err != nil {
			t.Fatal(err)
		}
		message, err := hub.RunToolCall(ctx, asked.call, Call{Purpose: "a test"})
		if err != nil || !strings.Contains(fmt.Sprint(message[asked.field]), "ab…") {
			t.Errorf("%v: %v, %v", asked.format, message, err)
		}
	}
}

func TestArtifactComesBackAsItWasPut(t *testing.T) {
	hub, ctx := live(t), t.Context()
	content := bytes.Repeat([]byte("0123456789"), 100_000)
	put, err := hub.PutArtifact(ctx, bytes.NewReader(content), &toolhubv1.ArtifactHeader{Name: "a.txt"})
	if err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	if _, err := hub.CopyArtifact(ctx, put.GetArtifactId(), &got); err != nil || !bytes.Equal(got.Bytes(), content) {
		t.Errorf("%d bytes, %v", got.Len(), err)
	}
	if _, err := hub.CopyArtifact(ctx, "art_unknown", &got); !errors.Is(err, ErrNotFound) {
		t.Errorf("%v", err)
	}
	for artifact, err := range hub.ListArtifacts(ctx, &toolhubv1.ListArtifactsRequest{Sha256: put.GetSha256()}) {
		if err != nil || artifact.GetArtifactId() != put.GetArtifactId() {
			t.Errorf("%v, %v", artifact, err)
		}
	}
	if err := hub.DeleteArtifact(ctx, put.GetArtifactId()); err != nil {
		t.Error(err)
	}
	if err := hub.DeleteArtifact(ctx, put.GetArtifactId()); !errors.Is(err, ErrNotFound) {
		t.Errorf("%v", err)
	}
	if info, err := hub.ServerInfo(ctx); err != nil || info.GetServer().GetVersion() == "" {
		t.Errorf("%v, %v", info, err)
	}
	wrong := &toolhubv1.ArtifactHeader{Name: "a.txt", SizeBytes: 3}
	if _, err := hub.PutArtifact(ctx, bytes.NewReader(content), wrong); !errors.Is(err, ErrInvalidRequest) {
		t.Errorf("%v", err)
	}
}

func TestCallsOfASessionEachGetTheirOwnAnswer(t *testing.T) {
	hub, ctx := live(t), t.Context()
	session, err := hub.Session(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	var mutex sync.Mutex
	digests := map[string]bool{}
	for number := range 2 * inFlightMax {
		group.Go(func() {
			result, err := session.Invoke(ctx, Call{Tool: hashing, Args: map[string]any{"text": fmt.Sprint(number)}})
			mutex.Lock()
			defer mutex.Unlock()
			if err != nil {
				t.Error(err)
			}
			digests[string(result.GetResultJson())] = true
		})
	}
	group.Wait()
	if len(digests) != 2*inFlightMax {
		t.Errorf("%d answers differ", len(digests))
	}
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := session.Invoke(cancelled, Call{Tool: hashing}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if err := session.Close(); err != nil {
		t.Error(err)
	}
	if _, err := session.Invoke(ctx, Call{Tool: hashing}); err == nil {
		t.Error("a session that is closed answers")
	}
}

func TestApprovalIsListedWatchedAndDecidedByNobodyForThemselves(t *testing.T) {
	hub, ctx := live(t), t.Context()
	call := Call{Tool: "core/fs.stat", Args: map[string]any{"path": "a.txt"}, Purpose: "a test"}
	_, err := hub.Invoke(ctx, call)
	var failed *CallFailed
	if !errors.As(err, &failed) || failed.ApprovalID() == "" {
		t.Fatalf("%v", err)
	}
	listed := 0
	for approval, err := range hub.ListApprovals(ctx, nil) {
		if err != nil {
			t.Fatal(err)
		}
		if approval.GetApprovalId() == failed.ApprovalID() {
			listed++
		}
	}
	token := ""
	for change, err := range hub.WatchApprovals(ctx, &toolhubv1.WatchApprovalsRequest{Tool: "core/fs.*"}) {
		if err != nil {
			t.Fatal(err)
		}
		if token = change.GetResumeToken(); token != "" { // those that were pending have come
			break
		}
	}
	for change, err := range hub.WatchApprovals(ctx, &toolhubv1.WatchApprovalsRequest{ResumeToken: token}) {
		if err != nil || change.GetApproval().GetApprovalId() != failed.ApprovalID() { // the latest comes twice
			t.Fatal(change, err)
		}
		break
	}
	approval, err := hub.GetApproval(ctx, failed.ApprovalID())
	if err != nil || listed != 1 {
		t.Fatal(approval, err, listed)
	}
	if _, err := hub.Approve(ctx, approval, "", nil); !errors.Is(err, ErrPermissionDenied) {
		t.Errorf("%v", err)
	}
}
