// Answers the questions of `api.js` from the files of a repository, but for those that only a process beside it can answer.

import { Cache } from "../reader/cache.js";
import { TxStoreError } from "../reader/errors.js";
import { openRepository } from "../reader/index.js";
import { compare } from "./compare.js";
import { constraintsOf, feedsOf, viewsOf } from "./declared.js";
import { History } from "./history.js";
import { Nodes } from "./nodes.js";

const MOST_COMPARED = 1000; // nodes
const { files, hasServer, at } = JSON.parse(self.name); // where the repository is, and plain Zarr of it

const opened = new Cache(1);
const there = () => opened.get("", 1, async () => {
  const repository = await openRepository(files, { listsPages: hasServer });
  return { repository, history: new History(repository), nodes: new Nodes() };
});

/** A question about a commit. */
const of = (answer) => async (all, asked, ref, ...parameters) =>
  answer(all, asked, all.repository.storeOf(await all.history.stored(ref)), ...parameters);

const questions = {
  look: ({ history }) => history.look(),
  commits: ({ history }, { signal }, parameters) => history.commits(parameters, signal),
  commit: of(async ({ repository, history, nodes }, { signal }, store) => {
    const parent = await history.parent(store.stored);
    const commit = history.told(store.stored);
    if (parent === undefined) return { commit, changed: null, truncated: false }; // no longer kept
    const found = await compare(nodes, [repository.storeOf(parent ?? undefined), store], MOST_COMPARED, signal);
    return { commit, changed: found.nodes, truncated: found.truncated };
  }),
  commitOf: of(({ history }, _, { stored }) => history.told(stored)),
  bySeq: of(async ({ history }, _, { stored }, seq) => {
    const found = await history.bySeq(stored, seq);
    return found && history.told(found);
  }),
  diff: async ({ repository, history, nodes }, { signal }, ...refs) => {
    const commits = await Promise.all(refs.map((each) => history.stored(each)));
    const found = await compare(nodes, commits.map((each) => repository.storeOf(each)), MOST_COMPARED, signal);
    const [before, after] = commits.map((each) => history.told(each));
    return { before, after, ...found };
  },
  tree: of(({ nodes }, { signal }, store, parameters) => nodes.members(store, parameters, signal)),
  node: of(({ nodes }, _, store, path) => nodes.node(store, path)),
  /** What takes time for each key of a node, or for each view. */
  measured: of(async ({ history, nodes }, { signal }, store, path) => ({
    constraints: constraintsOf(store.stored, path), views: await viewsOf(history, store.stored, path, signal),
    ...(await nodes.measured(store, path, signal)),
  })),
  chunks: of(({ history, nodes }, { signal }, store, path, part) => nodes.chunks(store, path, part, history, signal)),
  usage: of(({ nodes }, { signal }, store) => nodes.usage(store, signal)),
  feeds: ({ history }) => ({ feeds: feedsOf(history) }),
  /** Values of a node, from at most so many bytes. */
  read: of(async (_, asked, store, path, question, most) => {
    const { read } = await import("../values.js");
    let [left, fault] = [most, null];
    const bytesOf = async (name, range) => {
      const key = path ? `${path}/${name}` : name;
      left -= range ? (range.length ?? range.suffixLength) : ((await store.entry(key))?.length ?? 0);
      if (!(left >= 0)) throw new Error("More bytes would be read than this page may hold: select a part of it.");
      return (await valueOf(store, key, range, asked.signal))?.slice(); // decoders may look behind the bytes that they are given
    };
    try {
      const found = await read((...wanted) => bytesOf(...wanted).catch((error) => { throw (fault = error); }), question, asked);
      return { ...found, bytes: most - left };
    } catch (error) {
      throw fault ?? new Error(`This browser can't decode it: ${[error, error?.cause].map((each) => each?.message).filter(Boolean).join(": ")}`);
    }
  }),
};

async function valueOf(store, key, range, signal) {
  try {
    return await (range ? store.getRange(key, range, { signal }) : store.get(key, { signal }));
  } catch (error) {
    // What the reader does not read, the server does: values in other files, and those that an erasure of rows has replaced.
    if (!hasServer && error.name === "ForeignError") throw new Error("Its values lie in files outside of the repository, which this page does not read: run `txstore serve`.", { cause: error });
    if (!hasServer || !["ForeignError", "UnsupportedError"].includes(error.name)) throw error;
  }
  const { offset, length, suffixLength } = range ?? {};
  const bytes = suffixLength === undefined ? `${offset}-${offset + length - 1}` : `-${suffixLength}`;
  const headers = range && { Range: `bytes=${bytes}` };
  const response = await fetch(`${at}${store.commit.id}/${key.split("/").map(encodeURIComponent).join("/")}`, { signal, headers, credentials: "same-origin" });
  if (response.status === 404) return undefined;
  if (response.ok && (!range || response.status === 206)) return new Uint8Array(await response.arrayBuffer());
  const failed = await response.json().catch(() => null); // the status is enough
  throw new Error(failed?.error?.message ?? `the server answered ${response.status}`);
}

const running = new Map(); // by number: what stops a question

onmessage = async ({ data: { number, name, parameters, stop } }) => {
  if (stop) return running.get(stop)?.abort();
  if (!number) return postMessage({}); // it was asked whether this worker is still there
  const abort = new AbortController();
  running.set(number, abort);
  try {
    const tell = (...progress) => postMessage({ number, progress });
    const all = await there();
    if (name !== "look" && !all.history.heads.length) await all.history.look(); // the worker before this one has
    const answer = await questions[name](all, { signal: abort.signal, tell }, ...parameters);
    postMessage({ number, answer }, answer?.values?.buffer ? [answer.values.buffer] : []);
  } catch (error) {
    const isNone = name === "look" && hasServer && error.name === "NotFoundError";
    const failed = { message: error.message, name: error.name, isTold: error instanceof TxStoreError };
    postMessage(isNone ? { number, answer: { exists: false, lists: true, head: {}, branches: [], tags: [] } } : { number, failed });
  } finally {
    running.delete(number);
  }
};

postMessage({}); // it has loaded
