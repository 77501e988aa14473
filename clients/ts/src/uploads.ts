import { createHash, randomUUID } from "node:crypto";

import { clone, create, type MessageInitShape } from "@bufbuild/protobuf";
import { type CallOptions, type Client, Code } from "@connectrpc/connect";

import type { Artifact } from "../../../gen/ts/toolhub/v1/artifact_pb.js";
import { type ArtifactHeader, ArtifactHeaderSchema, type ArtifactService } from "../../../gen/ts/toolhub/v1/artifact_service_pb.js";
import { DigestMismatch } from "./artifacts.js";
import { pauseAfter } from "./connection.js";
import { Reason } from "./errors.js";
import { HubError } from "./failures.js";
import { pause } from "./watches.js";

const CHUNK_BYTES = 256 * 1024;

/** Bytes that can be read from anywhere, such as a Blob; `await openAsBlob(path)` of node:fs makes one of a file. */
export interface Sliceable {
  readonly size: number;
  slice(start: number, end: number): { arrayBuffer(): Promise<ArrayBuffer> };
}

/** What can be stored. Content of known size resumes where a connection broke; a stream of chunks cannot. */
export type Content = Uint8Array | Sliceable | AsyncIterable<Uint8Array>;

/**
 * Store content across broken connections (`attempts` in a row at most). When it throws, nothing is kept: HubError, what
 * the content itself throws, or DigestMismatch.
 */
export async function putArtifact(
  artifacts: Client<typeof ArtifactService>,
  content: Content,
  header: MessageInitShape<typeof ArtifactHeaderSchema>,
  signal?: AbortSignal,
  attempts = 8,
): Promise<Artifact> {
  const own = clone(ArtifactHeaderSchema, create(ArtifactHeaderSchema, header));
  const upload = new Upload(artifacts, content, own, signal && { signal });
  let broken: HubError | undefined;
  for (let failed = 1; ; failed += 1) {
    const before = upload.header.offsetBytes;
    try {
      return upload.checked(broken === undefined ? await upload.send() : await upload.goOn(broken));
    } catch (error) {
      signal?.throwIfAborted();
      if (upload.header.offsetBytes > before) failed = 1;
      if (!(error instanceof HubError) || error === broken || !upload.mayGoOn(error) || failed > attempts) throw error;
      broken = error;
      await pause(pauseAfter(failed, error), signal);
    }
  }
}

class Upload {
  /** Over what was sent, each byte once. */
  private readonly sent = createHash("sha256");
  private sentBytes = 0;

  constructor(
    private readonly artifacts: Client<typeof ArtifactService>,
    private readonly content: Content,
    readonly header: ArtifactHeader,
    private readonly ended?: CallOptions,
  ) {
    const size = content instanceof Uint8Array ? content.length : "size" in content ? content.size : 0;
    header.offsetBytes = 0n;
    header.uploadId = size > 0 ? randomUUID() : "";
    header.sizeBytes ||= BigInt(size);
  }

  /** Whether the hub may hold what was sent: the connection broke, or the hub is leaving. */
  mayGoOn(error: HubError): boolean {
    if (this.header.uploadId === "") return false;
    return RESET.has(error.code) || error.code === Code.Unavailable || error.reason === Reason.OVERLOADED;
  }

  /** Send what the hub does not hold yet, after an attempt that failed so. */
  async goOn(broken: HubError): Promise<Artifact | undefined> {
    const { uploadId } = this.header;
    const held = await this.artifacts.getUpload({ uploadId }, this.ended).catch((error: unknown) => {
      if (!(error instanceof HubError) || error.code !== Code.NotFound) throw error;
      if (RESET.has(broken.code)) throw broken; // it was a refusal
      return undefined; // another hub answers
    });
    if (held?.artifact !== undefined) return held.artifact;
    this.header.offsetBytes = held?.receivedBytes ?? 0n;
    return this.send();
  }

  /** One attempt, from the header's offset on. */
  async send(): Promise<Artifact | undefined> {
    let unreadable: { error: unknown } | undefined;
    const { header, content } = this;
    const note = (atBytes: number, chunk: Uint8Array) => this.note(atBytes, chunk);
    async function* parts() {
      yield { part: { case: "header" as const, value: header } };
      let atBytes = Number(header.offsetBytes);
      const chunks = chunksOf(content, atBytes);
      try {
        for (;;) {
          const next = await chunks.next().catch((error: unknown) => {
            unreadable = { error };
            throw error;
          });
          if (next.done) return;
          note(atBytes, next.value);
          atBytes += next.value.length;
          yield { part: { case: "chunk" as const, value: next.value } };
        }
      } finally {
        await chunks.return(undefined);
      }
    }
    try {
      return (await this.artifacts.writeArtifact(parts(), this.ended)).artifact;
    } catch (error) {
      throw unreadable === undefined ? error : unreadable.error;
    }
  }

  checked(artifact: Artifact | undefined): Artifact {
    if (artifact === undefined) throw new TypeError("the hub answered an upload without an artifact");
    if (artifact.sha256 !== this.sent.digest("hex")) throw new DigestMismatch(artifact.artifactId);
    return artifact;
  }

  private note(atBytes: number, chunk: Uint8Array): void {
    const fresh = chunk.subarray(Math.max(0, this.sentBytes - atBytes));
    this.sent.update(fresh);
    this.sentBytes += fresh.length;
  }
}

/** Said of streams that were reset, whatever the reason. */
const RESET: ReadonlySet<Code> = new Set([Code.Canceled, Code.Internal]);

async function* chunksOf(content: Content, start: number): AsyncGenerator<Uint8Array, undefined> {
  if (content instanceof Uint8Array) {
    for (let at = start; at < content.length; at += CHUNK_BYTES) yield content.subarray(at, at + CHUNK_BYTES);
  } else if ("size" in content) {
    for (let at = start; at < content.size; at += CHUNK_BYTES) {
      yield new Uint8Array(await content.slice(at, at + CHUNK_BYTES).arrayBuffer());
    }
  } else {
    for await (const chunk of content) yield* chunksOf(chunk, 0);
  }
}
