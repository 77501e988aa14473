/** A tour of a hub: find a tool, call it, see what fails, exchange an artifact. Start a hub with `make run`, then `npm run tour`. */
import { CallFailed, connect, HubError, valueOf } from "../src/index.js";

const hub = connect(process.argv[2]);

for (const hit of await hub.search("current time", {}, { limit: 3 })) console.log(hit.score.toFixed(2).padStart(6), hit.tool?.name);

const answer = await hub.invoke({ tool: "core/util.time.now", args: { timezone: "UTC" }, purpose: "show the time" });
console.log("answer:", valueOf(answer));

const refused = await hub.invoke({
  tool: "core/fs.readText",
  args: { path: "../secret" },
  purpose: "try to leave the workspace",
});
try {
  valueOf(refused);
} catch (error) {
  if (!(error instanceof CallFailed)) throw error;
  console.log("refused:", `${error.kind}: ${error.message}`);
}

try {
  await hub.getTool("no/such.tool");
} catch (error) {
  if (!(error instanceof HubError)) throw error;
  console.log("missing:", error.reason);
}

const content = new TextEncoder().encode("0123456789".repeat(100_000));
const { artifactId } = await hub.putArtifact(content, { name: "digits.txt" });
const back = await hub.getArtifact(artifactId);
console.log("artifact:", back.length, "bytes,", Buffer.from(content).equals(back) ? "the same" : "others");
