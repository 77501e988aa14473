// The TypeScript SDK's 1.x line, as an application uses it.

import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import {
  CallToolResultSchema,
  ElicitRequestSchema,
  ToolListChangedNotificationSchema,
} from "@modelcontextprotocol/sdk/types.js";
import { answer, report } from "./itinerary.mjs";

await report(async (wanted, person) => {
  const client = new Client({ name: "typescript-v1", version: "1" }, { capabilities: { elicitation: {} } });
  const transport = wanted.url
    ? new StreamableHTTPClientTransport(new URL(wanted.url), { requestInit: { headers: wanted.headers } })
    : new StdioClientTransport({ command: wanted.command, args: wanted.args, env: wanted.env });
  client.setRequestHandler(ElicitRequestSchema, (request) => person.answers(request.params.message));
  const changed = new Promise((done) => client.setNotificationHandler(ToolListChangedNotificationSchema, done));
  let era;
  const setProtocolVersion = transport.setProtocolVersion?.bind(transport);
  transport.setProtocolVersion = (version) => {
    era = version;
    setProtocolVersion?.(version);
  };
  await client.connect(transport);
  return {
    changed,
    about: () => ({
      era,
      serverInfo: client.getServerVersion(),
      capabilities: client.getServerCapabilities(),
      instructions: client.getInstructions(),
    }),
    tools: async () => (await client.listTools()).tools.map((tool) => tool.name),
    call: async (name, given, options) =>
      answer(await client.callTool({ name, arguments: given }, CallToolResultSchema, options)),
    read: async (uri) => (await client.readResource({ uri })).contents[0].text,
    close: async () => {
      await transport.terminateSession?.();
      await client.close();
    },
  };
});
