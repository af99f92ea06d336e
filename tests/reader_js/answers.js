/** Answers questions about repositories, one JSON object a line, until there are no more. For the tests in Python. */

import { createHash } from "node:crypto";
import { createInterface } from "node:readline";

import { openRepository } from "../../txstore/reader_js/node.js";

const digest = (bytes) => [bytes.length, createHash("sha256").update(bytes).digest("hex")];

/** An answer of which the last byte has not come. */
const cut = async (response) => {
  const body = (await response.arrayBuffer()).slice(0, -1);
  return new Response(body, { status: response.status, headers: response.headers });
};

/** An answer as another origin's page sees it if the server compresses it: its encoding is hidden, its length is not. */
const compressed = async (response) => {
  const body = await response.arrayBuffer();
  return new Response(body, { status: 200, headers: { "Content-Length": String(body.byteLength - 7) } });
};

/** Stores that stay open, by the names that questions give them. */
const stores = new Map();

const questions = {
  opened: () => null,
  log: async (repo, { branch, limit }) => (await repo.log({ branch, limit })).map((commit) => commit.id),
  commits: async (repo, { branch }) => (await repo.log({ branch })),
  branches: (repo) => repo.branches(),
  tags: (repo) => repo.tags(),
  async content(repo, { at, prefix }) {
    const store = await repo.at(at);
    const keys = [];
    for await (const key of store.keys(prefix)) keys.push(key);
    const values = await Promise.all(keys.map((key) => store.get(`/${key}`).then(digest, (error) => error.name)));
    return { commit: store.commit?.id ?? null, values: Object.fromEntries(keys.map((key, each) => [key, values[each]])) };
  },
  async get(repo, { at, key }) {
    const value = await (await repo.at(at)).get(key);
    return value ? digest(value) : null;
  },
  async aborted(repo, { at, key }) {
    const store = await repo.at(at);
    const aborting = new AbortController();
    const waiting = store.get(key, { signal: aborting.signal });
    aborting.abort();
    return waiting;
  },
  async range(repo, { at, key, range, hold }) {
    const store = stores.get(hold) ?? (await repo.at(at));
    if (hold) stores.set(hold, store);
    const value = await store.getRange(key, range);
    return value ? Buffer.from(value).toString("hex") : null;
  },
};

/** Repositories that stay open, by the names that questions give them. */
const kept = new Map();

for await (const line of createInterface({ input: process.stdin })) {
  const { what, url, foreign, keep, faults = [], ...question } = JSON.parse(line);
  let answer;
  const requests = { count: 0, bytes: 0 };
  const counting = async (input, init) => {
    requests.count++;
    const fault = faults.shift();
    if (fault === "TypeError") throw new TypeError("fetch failed");
    if (typeof fault === "number") return new Response("", { status: fault });
    const response = await fetch(input, init);
    if (fault === "cut") return cut(response);
    if (fault === "compressed") return compressed(response);
    requests.bytes += Number(response.headers.get("Content-Length") ?? 0);
    return response;
  };
  const began = performance.now();
  try {
    const options = { fetch: counting, retries: 4, allowForeign: (url) => foreign === true || foreign === url };
    const repo = kept.get(keep) ?? (await openRepository(url, options));
    if (keep) kept.set(keep, repo);
    answer = { is: await questions[what](repo, question) };
  } catch (error) {
    answer = { error: error.name, message: error.message, stack: error.stack };
  }
  process.stdout.write(`${JSON.stringify({ ...answer, requests, milliseconds: performance.now() - began })}\n`);
}
