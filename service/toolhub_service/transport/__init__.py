"""The gRPC interface: protobuf in, one call, protobuf out. Only this package and app know grpc and toolhub.v1."""
