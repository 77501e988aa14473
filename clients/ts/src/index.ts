/** A thin client of tool-hub. */
export { CallFailed, connect, Hub, valueOf } from "./hub.js";
export type { Call, Config } from "./hub.js";
export { isFinal, watchJob } from "./jobs.js";
