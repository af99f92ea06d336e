// The page's questions: answered from the files of a repository, but for those that only a process beside it can answer.
// All addresses are relative, so the page may lie anywhere.

import { compare } from "./answers/compare.js";
import { constraintsOf, feedsOf, viewsOf } from "./answers/declared.js";
import { History } from "./answers/history.js";
import { Nodes } from "./answers/nodes.js";
import { Cache } from "./reader/cache.js";
import { openRepository } from "./reader/index.js";

const MOST_COMPARED = 1000; // nodes

const told = (name) => document.querySelector(`meta[name="${name}"]`)?.content;

/** Whether this page comes from `txstore serve`, which knows also what is not in files. */
export const hasServer = told("txstore-server") === "yes";

/** Where the files of the repository lie. */
export const files = new URL((hasServer ? null : new URLSearchParams(location.search).get("repository")) ?? told("txstore-repository"), document.baseURI).href.replace(/\/+$/, "");

export const address = (path) => new URL(path, document.baseURI);

/** Where plain Zarr tools find a node. */
export const zarrAddress = (ref, path = "") => address(`at/${encodeURIComponent(ref)}/${path ? `${path.split("/").map(encodeURIComponent).join("/")}/` : ""}`).href;

const opened = new Cache(1);
const there = () => opened.get("", 1, async () => {
  const repository = await openRepository(files, { listsPages: hasServer });
  return { repository, history: new History(repository), nodes: new Nodes() };
});

const asked = (question) => async (...parameters) => question(await there(), ...parameters);
/** As `asked`, of a commit. */
const of = (question) => asked(async (all, ref, ...parameters) =>
  question(all, all.repository.storeOf(await all.history.stored(ref)), ...parameters));

/** What only the server knows. */
async function ask(path, signal) {
  const silent = "The server does not answer. Is `txstore serve` still running?";
  const response = await fetch(address(path), { signal, credentials: "same-origin" }).catch((error) => {
    throw error.name === "AbortError" ? error : new Error(silent, { cause: error });
  });
  if (response.ok) return response.json();
  throw await errorOf(response);
}

async function errorOf(response) {
  const failed = await response.json().catch(() => null); // the status is enough
  return new Error(failed?.error?.message ?? `the server answered ${response.status}`);
}

export const api = {
  async repository(signal) {
    const own = hasServer ? ask("api/repository", signal) : { url: files, name: decodeURIComponent(new URL(files).pathname.split("/").at(-1)) || files, origins: [] };
    const found = there().then(({ history }) => history.look(), (error) => {
      if (!hasServer || error.name !== "NotFoundError") throw error;
      return { exists: false, lists: true, head: {}, branches: [], tags: [] };
    });
    const [about, names] = await Promise.all([own, found]);
    return { ...about, ...names };
  },
  commits: asked(({ history }, parameters, signal) => history.commits(parameters, signal)),
  commit: of(async ({ repository, history, nodes }, store, signal) => {
    const parent = await history.parent(store.stored);
    const commit = history.told(store.stored);
    if (parent === undefined) return { commit, changed: null, truncated: false }; // no longer kept
    const found = await compare(nodes, [repository.storeOf(parent ?? undefined), store], MOST_COMPARED, signal);
    return { commit, changed: found.nodes, truncated: found.truncated };
  }),
  commitOf: of(({ history }, { stored }) => history.told(stored)),
  bySeq: of(async ({ history }, { stored }, seq) => {
    const found = await history.bySeq(stored, seq);
    return found && history.told(found);
  }),
  diff: asked(async ({ repository, history, nodes }, a, b, signal) => {
    const commits = await Promise.all([history.stored(a), history.stored(b)]);
    const found = await compare(nodes, commits.map((each) => repository.storeOf(each)), MOST_COMPARED, signal);
    const [before, after] = commits.map((each) => history.told(each));
    return { before, after, ...found };
  }),
  tree: of(({ nodes }, store, parameters, signal) => nodes.members(store, parameters, signal)),
  node: of(({ nodes }, store, path) => nodes.node(store, path)),
  /** What takes time for each key of a node, or for each view. */
  measured: of(async ({ history, nodes }, store, path, signal) => ({
    constraints: constraintsOf(store.stored, path), views: await viewsOf(history, store.stored, path, signal),
    ...(await nodes.measured(store, path, signal)),
  })),
  chunks: of(({ history, nodes }, store, path, part, signal) => nodes.chunks(store, path, part, history, signal)),
  usage: of(({ nodes }, store, signal) => nodes.usage(store, signal)),
  feeds: hasServer ? (signal) => ask("api/feeds", signal) : asked(({ history }) => ({ feeds: feedsOf(history) })),
  transactions: (signal) => ask("api/transactions", signal),
  locks: (signal) => ask("api/locks", signal),
};

/** What reads the values of a node: a function of a key, a range ({offset, length}, {suffixLength}, or undefined for all), and a signal. */
export async function valuesOf(ref, path) {
  const { history, repository } = await there();
  const store = repository.storeOf(await history.stored(ref));
  const prefix = path ? `${path}/` : "";
  return async (key, range, signal) => {
    try {
      return await (range ? store.getRange(prefix + key, range, { signal }) : store.get(prefix + key, { signal }));
    } catch (error) {
      // What the reader does not read, the server does: values in other files, and those that an erasure of rows has replaced.
      if (!hasServer && error.name === "ForeignError") throw new Error("Its values lie in files outside of the repository, which this page does not read: run `txstore serve`.", { cause: error });
      if (!hasServer || !["ForeignError", "UnsupportedError"].includes(error.name)) throw error;
    }
    const url = zarrAddress(store.commit.id, prefix + key).slice(0, -1);
    const { offset, length, suffixLength } = range ?? {};
    const bytes = suffixLength === undefined ? `${offset}-${offset + length - 1}` : `-${suffixLength}`;
    const headers = range && { Range: `bytes=${bytes}` };
    const response = await fetch(url, { signal, headers, credentials: "same-origin" });
    if (response.status === 404) return undefined;
    if (!response.ok || (range && response.status !== 206)) throw await errorOf(response);
    return new Uint8Array(await response.arrayBuffer());
  };
}

/** Follow the repository. Calls `on` for commits, for "heads" that have moved, and for "live" or "lost"; without a server once, for "files". */
export function follow(on) {
  if (!hasServer) return on("files");
  const events = new EventSource(address("api/events"));
  events.addEventListener("open", () => on("live"));
  events.addEventListener("error", () => on("lost"));
  for (const kind of ["commit", "heads"]) events.addEventListener(kind, (event) => on(kind, JSON.parse(event.data)));
}
