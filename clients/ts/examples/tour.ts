/** A tour of a hub: find a tool, call it, see a refusal. Start a hub with `make run`, then `npm run tour`. */
import { CallFailed, connect, valueOf } from "../src/index.js";

const hub = connect(process.argv[2]);

for (const hit of await hub.search("current time", 3)) console.log(hit.score.toFixed(2).padStart(6), hit.tool?.name);

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
