package toolhub

import (
	"errors"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestALostConnectionIsToldFromOneThatWasNeverMade(t *testing.T) {
	for message, isLost := range map[string]bool{
		"error reading from server: EOF":                                                  true,
		"error reading from server: read tcp: connection reset by peer":                   true,
		"connection error: desc = \"transport: Error while dialing: connection refused\"": false,
		"name resolver error: produced zero addresses":                                    false,
	} {
		err := hubError(status.Error(codes.Unavailable, message), "hub:1")
		if errors.Is(err, ErrConnectionLost) != isLost {
			t.Errorf("%q: lost is not %v", message, isLost)
		}
		if !errors.Is(err, ErrUnavailable) {
			t.Errorf("%q is not unavailable", message)
		}
	}
	if errors.Is(hubError(status.Error(codes.PermissionDenied, "no"), "hub:1"), ErrConnectionLost) {
		t.Error("a refusal is no lost connection")
	}
}
