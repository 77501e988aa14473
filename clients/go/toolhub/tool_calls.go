package toolhub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	toolhubv1 "github.com/tool-hub/tool-hub/gen/go/toolhub/v1"
)

// ErrNoToolCall says that what RunToolCall was given has none of the forms that it reads.
var ErrNoToolCall = errors.New(
	"no tool call: give an entry of OpenAI's tool_calls, a function_call item, an Anthropic tool_use block, or a part " +
		"of Gemini with a functionCall")

const noObject = "INVALID_INPUT: The arguments are not a JSON object. Send one object with a name for each argument, " +
	"and nothing around it."

// RunToolCall makes a model's tool call and returns the message that answers it in the form of its API: OpenAI's Chat
// Completions and Responses, Anthropic's Messages, and Gemini. call is what the model said, as its SDK has it, or as
// JSON. The tool is named as any connection has exported it, or by its full name. The arguments are read in the form in
// which this hub has exported the tool, else in the one that belongs to the kind of message: set more.ArgsForm if
// another connection exported OPENAI_STRICT. A refusal is a message, too, and tells the model what to do: a call that
// needs a plan is answered with the plan, which the model commits by calling again with toolhub_plan. more is what else
// is said of the call, such as its purpose.
func (hub *Hub) RunToolCall(ctx context.Context, call any, more Call) (map[string]any, error) {
	asked, err := readToolCall(call)
	if err != nil {
		return nil, err
	}
	if asked.args == nil {
		return asked.answer(noObject, true), nil
	}
	tool := exportedTool{asked.name, asked.form}
	if known, ok := hub.exported.Load(asked.name); ok {
		tool = known.(exportedTool)
	}
	more.Tool, more.Args = tool.name, asked.args
	if more.ArgsForm == toolhubv1.ArgsForm_ARGS_FORM_UNSPECIFIED {
		more.ArgsForm = tool.form
	}
	result, err := hub.Invoke(ctx, more)
	var failed *CallFailed
	if errors.As(err, &failed) {
		return asked.answer(failed.text(), true), nil
	}
	if err != nil {
		return nil, err
	}
	text, err := textOf(result)
	return asked.answer(text, false), err
}

// exportedTool is what a model knows under another name.
type exportedTool struct {
	name string
	form toolhubv1.ArgsForm
}

// argsForm is the form of arguments for definitions of that format.
func argsForm(format toolhubv1.ExportFormat) toolhubv1.ArgsForm {
	if _, ok := toolhubv1.ArgsForm_name[int32(format)]; ok {
		return toolhubv1.ArgsForm(format)
	}
	return toolhubv1.ArgsForm_ARGS_FORM_UNSPECIFIED
}

const (
	openAI    = toolhubv1.ArgsForm_ARGS_FORM_OPENAI
	anthropic = toolhubv1.ArgsForm_ARGS_FORM_ANTHROPIC
	gemini    = toolhubv1.ArgsForm_ARGS_FORM_GEMINI
)

type toolCall struct {
	name   string
	args   map[string]json.RawMessage // nil: what the model wrote is no JSON object
	form   toolhubv1.ArgsForm         // of the definitions for the interface that such calls come from
	answer func(text string, failed bool) map[string]any
}

func readToolCall(call any) (*toolCall, error) {
	text, err := json.Marshal(call)
	if err != nil {
		return nil, err
	}
	var said struct {
		Type      string          `json:"type"`
		ID        string          `json:"id"`
		CallID    string          `json:"call_id"`
		Name      string          `json:"name"`
		Input     json.RawMessage `json:"input"`
		Arguments string          `json:"arguments"`
		Function  *struct {
			Name      string `json:"name"`
			Arguments string `json:"arguments"`
		} `json:"function"`
		Args         json.RawMessage `json:"args"`
		FunctionCall *geminiCall     `json:"functionCall"`
	}
	if err := json.Unmarshal(text, &said); err != nil {
		return nil, fmt.Errorf("%w (%w)", ErrNoToolCall, err)
	}
	switch {
	case said.Type == "tool_use":
		return &toolCall{said.Name, object(said.Input), anthropic, func(text string, failed bool) map[string]any {
			message := map[string]any{"type": "tool_result", "tool_use_id": said.ID, "content": text}
			if failed {
				message["is_error"] = true
			}
			return message
		}}, nil
	case said.Type == "function_call":
		return &toolCall{said.Name, object([]byte(said.Arguments)), openAI, func(text string, _ bool) map[string]any {
			return map[string]any{"type": "function_call_output", "call_id": said.CallID, "output": text}
		}}, nil
	case said.Function != nil:
		arguments := []byte(said.Function.Arguments)
		return &toolCall{said.Function.Name, object(arguments), openAI, func(text string, _ bool) map[string]any {
			return map[string]any{"role": "tool", "tool_call_id": said.ID, "content": text}
		}}, nil
	}
	if said.FunctionCall == nil && said.Type == "" && said.Name != "" {
		said.FunctionCall = &geminiCall{said.ID, said.Name, said.Args}
	}
	if said.FunctionCall != nil {
		return said.FunctionCall.toolCall(), nil
	}
	return nil, ErrNoToolCall
}

// geminiCall is a FunctionCall of Gemini.
type geminiCall struct {
	ID   string          `json:"id"`
	Name string          `json:"name"`
	Args json.RawMessage `json:"args"`
}

func (call *geminiCall) toolCall() *toolCall {
	return &toolCall{call.Name, object(call.Args), gemini, func(text string, failed bool) map[string]any {
		response := map[string]any{"output": text}
		if failed {
			response = map[string]any{"error": text}
		}
		message := map[string]any{"name": call.Name, "response": response}
		if call.ID != "" {
			message["id"] = call.ID
		}
		return map[string]any{"functionResponse": message}
	}}
}

func object(text []byte) map[string]json.RawMessage {
	if len(text) == 0 {
		return map[string]json.RawMessage{}
	}
	var value map[string]json.RawMessage
	if json.Unmarshal(text, &value) != nil {
		return nil
	}
	return value
}

// textOf is what a model is shown of a result.
func textOf(result *toolhubv1.ToolResult) (string, error) {
	if job := result.GetJob(); job != nil {
		note := "The call goes on as a job; ask core/job.status for it."
		text, err := json.Marshal(map[string]string{"job_id": job.GetJobId(), "note": note})
		return string(text), err
	}
	var value json.RawMessage
	err := Value(result, &value)
	return string(value), err
}

// text is what a model is shown of a failure, one line each: kind and message, the facts for repair, the advice.
func (failed *CallFailed) text() string {
	text, facts := failed.Error(), failed.Details()
	delete(facts, "remedy") // for operators, as the next
	delete(facts, "policy_revision")
	if told, err := json.Marshal(facts); err == nil && len(facts) > 0 {
		text += "\n" + string(told)
	}
	if advice := failed.Advice(); advice != "" {
		text += "\n" + advice
	}
	return text
}
