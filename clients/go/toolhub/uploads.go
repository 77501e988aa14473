package toolhub

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"hash"
	"io"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	toolhubv1 "github.com/tool-hub/tool-hub/gen/go/toolhub/v1"
)

const (
	chunkBytes = 256 << 10
	// uploadAttempts are streams in a row that may bring nothing before an upload gives up.
	uploadAttempts = 8
)

// PutArtifact uploads the content; arguments name it as {"$artifact": artifact_id}. header may be nil; of what it
// declares, the hub stores name and media type, and checks size and digest. The upload of content that can seek, such as
// a file, resumes where a connection broke. When PutArtifact fails, nothing is stored.
func (hub *Hub) PutArtifact(
	ctx context.Context, content io.Reader, header *toolhubv1.ArtifactHeader,
) (*toolhubv1.Artifact, error) {
	up := &upload{hub: hub, content: content, header: &toolhubv1.ArtifactHeader{}, sent: sha256.New()}
	proto.Merge(up.header, header)
	up.header.UploadId, up.header.OffsetBytes = "", 0
	up.header.TaskId = firstOf(up.header.TaskId, hub.config.Context.GetTaskId())
	if seeker, start, size := seekable(content); size > 0 {
		up.seeker, up.start, up.header.UploadId = seeker, start, rand.Text()
		if up.header.SizeBytes == 0 {
			up.header.SizeBytes = size
		}
	}
	artifact, err := up.send(ctx)
	for failed := 1; err != nil && up.mayGoOn(ctx, err) && failed <= uploadAttempts; failed++ {
		if paused := wait(ctx, pauseAfter(failed, err)); paused != nil {
			return nil, paused
		}
		before := up.header.OffsetBytes
		artifact, err = up.goOn(ctx, err)
		if up.header.OffsetBytes > before {
			failed = 0
		}
	}
	if err != nil {
		return nil, err
	}
	return artifact, matches(up.sent, artifact)
}

type upload struct {
	hub     *Hub
	content io.Reader
	header  *toolhubv1.ArtifactHeader
	// seeker is the content, nil where it cannot go back; start is where in it the artifact begins.
	seeker io.Seeker
	start  int64
	// sent digests what was sent, each byte once; sentBytes says how many these are.
	sent      hash.Hash
	sentBytes int64
}

// seekable returns the position in content and the number of bytes that follow; 0 if they are unknown.
func seekable(content io.Reader) (seeker io.Seeker, start, size int64) {
	seeker, ok := content.(io.Seeker)
	if !ok {
		return nil, 0, 0
	}
	start, err := seeker.Seek(0, io.SeekCurrent)
	if err != nil { // such as a pipe
		return nil, 0, 0
	}
	end, err := seeker.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, 0, 0
	}
	if _, err = seeker.Seek(start, io.SeekStart); err != nil {
		return nil, 0, 0
	}
	return seeker, start, end - start
}

// mayGoOn says whether the hub may hold what was sent: the connection broke, or the hub is leaving.
func (up *upload) mayGoOn(ctx context.Context, failed error) bool {
	var err *HubError
	if up.header.UploadId == "" || ctx.Err() != nil || !errors.As(failed, &err) {
		return false
	}
	switch err.Code {
	case codes.Canceled, codes.Internal, codes.Unavailable: // the first two are said of streams that were reset
		return true
	}
	return err.Reason == ReasonOverloaded
}

// goOn sends what the hub does not hold yet, after an attempt that failed so.
func (up *upload) goOn(ctx context.Context, failed error) (*toolhubv1.Artifact, error) {
	held, err := up.hub.Artifacts.GetUpload(ctx, &toolhubv1.GetUploadRequest{UploadId: up.header.UploadId})
	if errors.Is(err, ErrNotFound) { // refused, or another hub answers
		if !errors.Is(failed, ErrUnavailable) && !errors.Is(failed, ErrOverloaded) {
			up.header.UploadId = "" // it was a refusal
			return nil, failed
		}
		held = nil
	} else if err != nil {
		return nil, err
	}
	if held.GetArtifact() != nil {
		return held.GetArtifact(), nil
	}
	up.header.OffsetBytes = held.GetReceivedBytes()
	return up.send(ctx)
}

// send makes one attempt, from the header's offset on.
func (up *upload) send(ctx context.Context) (*toolhubv1.Artifact, error) {
	if up.seeker != nil {
		if _, err := up.seeker.Seek(up.start+up.header.OffsetBytes, io.SeekStart); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := up.hub.Artifacts.WriteArtifact(ctx)
	if err != nil {
		return nil, hubError(err, up.hub.address)
	}
	part := &toolhubv1.WriteArtifactRequest{Part: &toolhubv1.WriteArtifactRequest_Header{Header: up.header}}
	at, buffer := up.header.OffsetBytes, make([]byte, chunkBytes)
	for sent := stream.Send(part); sent == nil; { // where the hub refuses, CloseAndRecv tells why
		count, err := io.ReadFull(up.content, buffer)
		if count > 0 {
			up.note(at, buffer[:count])
			at += int64(count)
			chunk := &toolhubv1.WriteArtifactRequest_Chunk{Chunk: buffer[:count]}
			sent = stream.Send(&toolhubv1.WriteArtifactRequest{Part: chunk})
		}
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			break
		}
		if err != nil {
			return nil, err
		}
	}
	response, err := stream.CloseAndRecv()
	return response.GetArtifact(), hubError(err, up.hub.address)
}

// note takes a chunk that begins at that offset into the digest, as far as it was not sent before.
func (up *upload) note(at int64, chunk []byte) {
	known := min(max(0, up.sentBytes-at), int64(len(chunk)))
	up.sent.Write(chunk[known:])
	up.sentBytes += int64(len(chunk)) - known
}
