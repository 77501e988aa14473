"""What surrounds every RPC, outermost first: tracing, metrics, errors, admission, auth, policy, validation."""
