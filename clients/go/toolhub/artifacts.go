package toolhub

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"iter"

	"google.golang.org/protobuf/proto"

	toolhubv1 "github.com/tool-hub/tool-hub/gen/go/toolhub/v1"
)

// readAttempts are streams in a row that may bring nothing before a download gives up.
const readAttempts = 8

// CopyArtifact writes the artifact's bytes to target, across broken connections. It is ErrDigestMismatch when they are
// not what the hub says they are: use none of what was written.
func (hub *Hub) CopyArtifact(ctx context.Context, artifactID string, target io.Writer) (*toolhubv1.Artifact, error) {
	known, err := hub.Artifacts.GetArtifact(ctx, &toolhubv1.GetArtifactRequest{ArtifactId: artifactID})
	if err != nil {
		return nil, err
	}
	artifact, digest := known.GetArtifact(), sha256.New()
	both := io.MultiWriter(digest, target)
	for have, failed := int64(0), 0; have < artifact.GetSizeBytes(); {
		count, err := hub.readOnce(ctx, artifactID, have, both)
		have += count
		if failed++; count > 0 {
			failed = 0
		}
		if err != nil && !errors.Is(err, ErrUnavailable) {
			return nil, err
		}
		if failed >= readAttempts {
			return nil, fmt.Errorf("reading artifact %s: %w", artifactID, errors.Join(err, io.ErrUnexpectedEOF))
		}
		if failed > 0 {
			if err := wait(ctx, pauseAfter(failed, err)); err != nil {
				return nil, err
			}
		}
	}
	return artifact, matches(digest, artifact)
}

// ListArtifacts gives artifacts, page by page, those that expire last first; nil means all of the caller's.
func (hub *Hub) ListArtifacts(
	ctx context.Context, where *toolhubv1.ListArtifactsRequest,
) iter.Seq2[*toolhubv1.Artifact, error] {
	return pages(func(token string) ([]*toolhubv1.Artifact, string, error) {
		request := &toolhubv1.ListArtifactsRequest{}
		proto.Merge(request, where)
		request.PageToken = token
		page, err := hub.Artifacts.ListArtifacts(ctx, request)
		return page.GetArtifacts(), page.GetNextPageToken(), err
	})
}

// DeleteArtifact removes one of the caller's own before it expires; ErrNotFound when there is none.
func (hub *Hub) DeleteArtifact(ctx context.Context, artifactID string) error {
	_, err := hub.Artifacts.DeleteArtifact(ctx, &toolhubv1.DeleteArtifactRequest{ArtifactId: artifactID})
	return err
}

// readOnce writes what one stream brings from that offset on; how many bytes, and how it ended.
func (hub *Hub) readOnce(ctx context.Context, artifactID string, offset int64, target io.Writer) (int64, error) {
	ctx, cancel := context.WithCancel(context.WithValue(ctx, begunAgain{}, true))
	defer cancel()
	stream, err := hub.Artifacts.ReadArtifact(
		ctx, &toolhubv1.ReadArtifactRequest{ArtifactId: artifactID, OffsetBytes: offset})
	if err != nil {
		return 0, hubError(err, hub.address)
	}
	count := int64(0)
	for {
		response, err := stream.Recv()
		if err == io.EOF {
			return count, nil
		}
		if err != nil {
			return count, hubError(err, hub.address)
		}
		written, err := target.Write(response.GetChunk()) // the first message is the artifact, and has none
		count += int64(written)
		if err != nil {
			return count, err
		}
	}
}

func matches(digest hash.Hash, artifact *toolhubv1.Artifact) error {
	if hex.EncodeToString(digest.Sum(nil)) != artifact.GetSha256() {
		return fmt.Errorf("%s: %w", artifact.GetArtifactId(), ErrDigestMismatch)
	}
	return nil
}
