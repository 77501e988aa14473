package toolhub

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	toolhubv1 "github.com/tool-hub/tool-hub/gen/go/toolhub/v1"
)

// HubError says that an RPC failed: nothing is known of a call's result. errors.Is tells its status:
//
//	errors.Is(err, toolhub.ErrUnavailable)
type HubError struct {
	// Address is the hub's.
	Address string
	Code    codes.Code
	Message string
	// Reason is such as ReasonOverloaded; empty when it was not the hub that answered.
	Reason string
	// Info are facts of the reason.
	Info map[string]string
	// NotSent says that there was no connection to send the request over.
	NotSent bool
	// RetryAfter is how long the hub asks to wait; 0 when it does not say.
	RetryAfter time.Duration
}

// What errors.Is compares a HubError with.
var (
	// ErrUnavailable: no hub answers, or the connection broke. ErrConnectionLost tells the second from the first.
	ErrUnavailable error = codeError(codes.Unavailable)
	// ErrConnectionLost: the connection broke after the request was sent. A call may have had its effect: find out before
	// you repeat it, or send calls with an idempotency key.
	ErrConnectionLost = errors.New("the connection broke after the request was sent, which may have had its effect")
	// ErrOverloaded: the hub carries as much as it takes, or was sent more than it takes, as Reason says; it did nothing.
	ErrOverloaded error = codeError(codes.ResourceExhausted)
	// ErrUnauthenticated: the hub wants a credential, or knows the one that was sent no longer.
	ErrUnauthenticated error = codeError(codes.Unauthenticated)
	// ErrPermissionDenied: the caller is known and lacks the role or the grant.
	ErrPermissionDenied error = codeError(codes.PermissionDenied)
	// ErrNotFound: there is no such thing, or it is not the caller's to see.
	ErrNotFound error = codeError(codes.NotFound)
	// ErrInvalidRequest: the request breaks the contract's rules.
	ErrInvalidRequest error = codeError(codes.InvalidArgument)
	// ErrDigestMismatch: what came is not what the hub says the artifact is. Use none of it.
	ErrDigestMismatch = errors.New("the bytes of the artifact do not match its sha256")
)

type codeError codes.Code

func (code codeError) Error() string { return codes.Code(code).String() }

// Error is one line for a person.
func (err *HubError) Error() string {
	why := err.Reason
	if why == "" {
		why = err.Code.String()
	}
	text := fmt.Sprintf("%s: %s (%s)", err.Address, err.Message, why)
	if err.isLost() {
		text += ": " + ErrConnectionLost.Error()
	}
	return text
}

// Is compares with ErrUnavailable and its like, and with context.DeadlineExceeded.
func (err *HubError) Is(target error) bool {
	if target == context.DeadlineExceeded {
		return err.Code == codes.DeadlineExceeded
	}
	if target == ErrConnectionLost {
		return err.isLost()
	}
	code, ok := target.(codeError)
	return ok && codes.Code(code) == err.Code
}

// isLost tells whether the hub may have got the request, and nobody said what became of it.
func (err *HubError) isLost() bool {
	return err.Code == codes.Unavailable && err.Reason == "" && !err.NotSent
}

// neverSent are gRPC's words for a connection that was never made; it has no other sign.
var neverSent = []string{"Error while dialing", "name resolver error", "produced zero addresses", "andshake failed"}

// GRPCStatus makes status.Code and status.FromError read it.
func (err *HubError) GRPCStatus() *status.Status { return status.New(err.Code, err.Message) }

// hubError is the failed RPC with what the hub says of it; errors that are no status stay as they are.
func hubError(failed error, address string) error {
	var already *HubError
	told, ok := status.FromError(failed)
	if failed == nil || !ok || errors.As(failed, &already) {
		return failed
	}
	err := &HubError{Address: address, Code: told.Code(), Message: told.Message()}
	err.NotSent = slices.ContainsFunc(neverSent, func(words string) bool { return strings.Contains(err.Message, words) })
	for _, detail := range told.Details() {
		switch detail := detail.(type) {
		case *errdetails.ErrorInfo:
			err.Reason, err.Info = detail.GetReason(), detail.GetMetadata()
		case *errdetails.RetryInfo:
			err.RetryAfter = detail.GetRetryDelay().AsDuration()
		}
	}
	return err
}

// connectionProblem says why there is no connection to a server that is there, by the words of gRPC and crypto/tls;
// empty: they do not say.
func connectionProblem(details string, isEncrypted bool) string {
	says := func(parts ...string) bool {
		return slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(details, part) })
	}
	switch {
	case says("first record does not look like a TLS handshake"):
		return "The server does not use TLS: leave out https:// and TOOLHUB_CA_FILE."
	case says("certificate has expired or is not yet valid"):
		return "The server's certificate has expired or is not valid yet: it must be renewed, or a clock is wrong."
	case says("certificate signed by unknown authority", "certificate is not trusted"):
		return "The server's certificate is not trusted: give the CA that signed it as CAFile (TOOLHUB_CA_FILE)."
	case says("certificate is valid for", "certificate is not valid for", "cannot validate certificate for"):
		return "The server's certificate is for another host name: use one that the certificate contains."
	case isEncrypted && says("error reading server preface", "remote error: tls"):
		return "The server closes the connection: it probably wants a client certificate (CertFile and KeyFile)."
	case says("error reading server preface"):
		return "The server closes the connection: it probably wants TLS (https://, CAFile)."
	}
	return ""
}

// CallFailed says that a call was refused, or ran and failed.
type CallFailed struct {
	Reason *toolhubv1.ToolError
	CallID string
}

// Kind is such as KindPolicyDenied; UNKNOWN_ and a number for a kind of a newer hub.
func (failed *CallFailed) Kind() string {
	kind := failed.Reason.GetKind()
	if _, known := toolhubv1.ErrorKind_name[int32(kind)]; !known {
		return fmt.Sprintf("UNKNOWN_%d", kind)
	}
	return strings.TrimPrefix(kind.String(), "ERROR_KIND_")
}

// Error is the kind and the hub's message for the model.
func (failed *CallFailed) Error() string {
	return fmt.Sprintf("%s: %s", failed.Kind(), failed.Reason.GetMessage())
}

// Advice is what a model should do about an error of this kind; empty when the kind is unknown.
func (failed *CallFailed) Advice() string { return Advice(failed.Kind()) }

// Details are facts for repair, such as did_you_mean, rule_id, remedy.
func (failed *CallFailed) Details() map[string]any { return failed.Reason.GetDetails().AsMap() }

// ApprovalID is the approval that a person must grant, of APPROVAL_REQUIRED; empty of others.
func (failed *CallFailed) ApprovalID() string {
	id, _ := failed.Details()["approval_id"].(string)
	return firstOf(failed.Reason.GetApproval().GetApprovalId(), id)
}

// Remedy is what an operator could change so that the call is allowed, of POLICY_DENIED and its like; empty where
// nothing is known.
func (failed *CallFailed) Remedy() string {
	remedy, _ := failed.Details()["remedy"].(string)
	return firstOf(failed.Reason.GetRule().GetRemedy(), remedy)
}

// Retryable says whether the very same call may succeed later.
func (failed *CallFailed) Retryable() bool { return failed.Reason.GetRetryable() }

// RetryAfter is how long to wait; 0 when waiting does not help or is unknown.
func (failed *CallFailed) RetryAfter() time.Duration {
	return failed.Reason.GetRetryAfter().AsDuration()
}
