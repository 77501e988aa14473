/**
 * Long work: submit a job and follow it to its end, whatever happens to the hub meanwhile.
 * Start a hub with `make run`, then `npm run job -- [ADDRESS] [TOOL] [ARGUMENTS as JSON]`.
 */
import { connect, JobState, valueOf } from "../src/index.js";

const [address, tool = "core/util.hash.sha256Text", args = '{"text": "hello"}'] =
  process.argv.slice(2);
const hub = connect(address);

const job = await hub.submitJob({ tool, args: JSON.parse(args), purpose: "show a job" });
for await (const status of hub.watchJob(job.jobId)) {
  console.log(Number(status.sequence), `JOB_STATE_${JobState[status.state]}`, status.progress?.step ?? 0);
  if (status.result !== undefined) console.log("answer:", JSON.stringify(valueOf(status.result)));
}
