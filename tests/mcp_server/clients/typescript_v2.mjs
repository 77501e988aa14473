// The TypeScript SDK's 2.x line, as an application uses it.

import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";
import { answer, report } from "./itinerary.mjs";

await report(async (wanted, person) => {
  let told;
  const changed = new Promise((done) => (told = done));
  const client = new Client(
    { name: "typescript-v2", version: "2" },
    {
      capabilities: { elicitation: { form: {} } },
      versionNegotiation: { mode: wanted.mode ?? "auto" },
      listChanged: { tools: { autoRefresh: false, onChanged: () => told() } },
    },
  );
  const transport = wanted.url
    ? new StreamableHTTPClientTransport(new URL(wanted.url), { requestInit: { headers: wanted.headers } })
    : new StdioClientTransport({ command: wanted.command, args: wanted.args, env: wanted.env });
  client.setRequestHandler("elicitation/create", (request) => person.answers(request.params.message));
  await client.connect(transport);
  return {
    changed,
    about: () => ({
      era: client.getNegotiatedProtocolVersion(),
      serverInfo: client.getServerVersion(),
      capabilities: client.getServerCapabilities(),
      instructions: client.getInstructions(),
    }),
    tools: async () => (await client.listTools()).tools.map((tool) => tool.name),
    call: async (name, given, options) => answer(await client.callTool({ name, arguments: given }, options)),
    read: async (uri) => (await client.readResource({ uri })).contents[0].text,
    close: async () => {
      await transport.terminateSession?.();
      await client.close();
    },
  };
});
