import { createHash } from "node:crypto";

import { type Client, Code, ConnectError } from "@connectrpc/connect";

import type { ArtifactService } from "../../../gen/ts/toolhub/v1/artifact_service_pb.js";
import { pauseAfter } from "./connection.js";
import { once, pause, until } from "./watches.js";

/** The bytes do not match the artifact's digest: discard them. */
export class DigestMismatch extends Error {
  constructor(artifactId: string) {
    super(`the bytes of artifact ${artifactId} do not match its sha256`);
    this.name = "DigestMismatch";
  }
}

/** An artifact's bytes across broken connections (`attempts` in a row at most), its digest compared before the last. */
export async function* readArtifact(
  artifacts: Client<typeof ArtifactService>,
  artifactId: string,
  signal?: AbortSignal,
  attempts = 8,
): AsyncGenerator<Uint8Array> {
  const ended = signal && { signal };
  const { artifact } = await artifacts.getArtifact({ artifactId }, ended);
  if (artifact === undefined) throw new TypeError("the hub answered without an artifact");
  const hash = createHash("sha256");
  let held: Uint8Array | undefined;
  let have = 0n;
  let failed = 0;
  while (have < artifact.sizeBytes) {
    let broken: unknown = new Error(`the hub ends artifact ${artifactId} before its end`);
    const before = have;
    try {
      const open = once((call) => artifacts.readArtifact({ artifactId, offsetBytes: have }, call));
      for await (const { part } of until(open, signal)) {
        if (part.case !== "chunk") continue; // the first message is the artifact itself
        have += BigInt(part.value.length);
        hash.update(part.value);
        if (held !== undefined) yield held;
        held = part.value;
      }
    } catch (error) {
      signal?.throwIfAborted();
      if (ConnectError.from(error).code !== Code.Unavailable) throw error;
      broken = error;
    }
    failed = have > before ? 0 : failed + 1;
    if (failed >= attempts) throw broken;
    if (failed > 0) await pause(pauseAfter(failed, broken), signal);
  }
  if (hash.digest("hex") !== artifact.sha256) throw new DigestMismatch(artifactId);
  if (held !== undefined) yield held;
}
