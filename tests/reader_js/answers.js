/** Answers questions about repositories, one JSON object a line, until there are no more. For the tests in Python. */

import { createHash } from "node:crypto";
import { createInterface } from "node:readline";

import { openRepository } from "../../txstore/reader_js/node.js";

const digest = (bytes) => [bytes.length, createHash("sha256").update(bytes).digest("hex")];

const questions = {
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
  async range(repo, { at, key, range }) {
    const value = await (await repo.at(at)).getRange(key, range);
    return value ? Buffer.from(value).toString("hex") : null;
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const { what, url, ...question } = JSON.parse(line);
  let answer;
  const requests = { count: 0, bytes: 0 };
  const counting = async (input, init) => {
    requests.count++;
    const response = await fetch(input, init);
    requests.bytes += Number(response.headers.get("Content-Length") ?? 0);
    return response;
  };
  const began = performance.now();
  try {
    answer = { is: await questions[what](await openRepository(url, { fetch: counting, retries: 1 }), question) };
  } catch (error) {
    answer = { error: error.name, message: error.message, stack: error.stack };
  }
  process.stdout.write(`${JSON.stringify({ ...answer, requests, milliseconds: performance.now() - began })}\n`);
}
