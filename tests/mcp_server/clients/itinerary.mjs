// What each client in TypeScript does of a hub, on each of its connections, and reports as JSON on standard output.
// The same as itinerary.py, which says what the plan in the first argument holds.

const CONTROL = JSON.parse(process.argv[2]).control;

async function tell(what, query = {}) {
  const response = await fetch(`${CONTROL}/${what}?${new URLSearchParams(query)}`, { method: "POST" });
  return response.json();
}

const approvalIn = (text) => /apr_[A-Za-z0-9]+/.exec(text)[0];

/** Declines what is asked first, then lets it be approved, and accepts. */
export class Person {
  asked = [];

  async answers(message) {
    this.asked.push(message);
    if (this.asked.length === 1) return { action: "decline" };
    await tell("approve", { id: approvalIn(message) });
    return { action: "accept", content: {} };
  }
}

export function answer(result) {
  return {
    isError: result.isError === true,
    text: result.content.map((block) => block.text ?? "").join(""),
    structured: result.structuredContent ?? null,
    uris: result.content.filter((block) => block.type === "resource_link").map((block) => block.uri),
    error: result._meta?.["toolhub/error"] ?? null,
  };
}

export async function report(connect) {
  const seen = {};
  for (const wanted of JSON.parse(process.argv[2]).connections) {
    const person = new Person();
    let client;
    try {
      client = await connect(wanted, person);
      seen[wanted.name] = await one(client, wanted, person, `${process.pid}-${wanted.name}`);
    } catch (failed) {
      seen[wanted.name] = { failed: String(failed), stack: failed.stack };
    }
    await client?.close();
  }
  process.stdout.write(JSON.stringify(seen) + "\n");
}

async function one(client, wanted, person, key) {
  const seen = { about: client.about(), tools: await client.tools() };
  seen.search = await client.call("search_tools", { query: "read a text file", limit: 3 });
  seen.written = await client.call("core__fs_writeText", { path: `${key}.txt`, text: key });
  seen.read = await client.call("core__fs_readText", { path: `${key}.txt` });
  seen.wrong = await client.call("core__fs_readText", { pth: "a.txt" });
  seen.absent = await client.call("core__fs_readTxt", { path: "a.txt" });
  if (wanted.is_embedded) {
    await embedded(client, key, seen);
    return seen;
  }
  await work(client, key, seen);
  await approvals(client, person, key, seen);
  await changes(client, seen);
  return seen;
}

async function work(client, key, seen) {
  seen.progress = [];
  seen.worked = await client.call("held__work_on", { key }, {
    onprogress: ({ progress, total, message }) => {
      seen.progress.push([progress, total, message]);
      void tell("release", { key });
    },
  });
  const givenUp = new AbortController();
  const call = client.call("held__work_on", { key: `${key}-2` }, { signal: givenUp.signal }).catch(() => {});
  await tell("begun", { key: `${key}-2` });
  givenUp.abort("enough");
  await call;
  seen.cancelled = await tell("ended", { key: `${key}-2` });
  const started = await client.call("job_start", { name: "held__work_on", arguments: { key: `${key}-3` } });
  const job = { job_id: started.structured.job_id };
  await tell("begun", { key: `${key}-3` });
  const status = await client.call("job_status", job);
  await tell("release", { key: `${key}-3` });
  const result = await client.call("job_result", { ...job, wait_s: 50 });
  seen.job = { started, status, result };
  const kept = await client.call("held__thing_keep", { text: `kept ${key}` });
  seen.artifact = { call: kept, text: await client.read(kept.uris[0]) };
}

async function approvals(client, person, key, seen) {
  const copy = { source: `${key}.txt`, destination: `${key}-1.txt` };
  const refused = await client.call("core__fs_copy", copy);
  await tell("approve", { id: approvalIn(refused.text) });
  seen.approval = { refused, repeated: await client.call("core__fs_copy", copy) };
  if (person.asked.length > 0) {
    const granted = await client.call("core__fs_copy", { ...copy, destination: `${key}-2.txt` });
    seen.approval = { ...seen.approval, asked: person.asked, granted };
  }
}

async function changes(client, seen) {
  let newcomer;
  for (let heard = false; !heard; ) {
    newcomer = await tell("change");
    // The stream of the older era opens beside the first requests.
    let again;
    heard = await Promise.race([client.changed.then(() => true), new Promise((done) => (again = setTimeout(done, 2000)))]);
    clearTimeout(again);
  }
  seen.changed = (await client.tools()).includes(newcomer);
}

async function embedded(client, key, seen) {
  const started = await client.call("job_start", { name: "core__fs_readText", arguments: { path: `${key}.txt` } });
  const job = { job_id: started.structured.job_id, wait_s: 50 };
  seen.job = { result: await client.call("job_result", job) };
}
