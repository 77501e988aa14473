"""The gRPC face: protobuf in, one call, protobuf out. The only place (with app) that knows grpc and toolhub.v1."""
