// The page's questions: answered from the files of a repository, but for those that only a process beside it can answer.
// All addresses are relative, so the page may lie anywhere.

import { compare } from "./answers/compare.js";
import { constraintsOf, feedsOf, viewsOf } from "./answers/declared.js";
import { History } from "./answers/history.js";
import { Nodes } from "./answers/nodes.js";
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

// --- from files

let opened = null;

function there() {
  return (opened ??= openRepository(files, { listsPages: hasServer }).then(
    (repository) => ({ repository, history: new History(repository), nodes: new Nodes(repository) }),
    (error) => {
      opened = null;
      throw error;
    },
  ));
}

const asked = (question) => async (...parameters) => question(await there(), ...parameters);
/** As `asked`, of a commit. */
const of = (question) => asked(async (all, ref, ...parameters) => question(all, await all.history.stored(ref), ...parameters));

/** What only the server knows. */
async function ask(path, signal) {
  let response;
  try {
    response = await fetch(address(path), { signal, credentials: "same-origin" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer. Is `txstore serve` still running?", { cause: error });
  }
  if (response.ok) return response.json();
  const failed = await response.json().catch(() => null); // the status is enough
  throw new Error(failed?.error?.message ?? `the server answered ${response.status}`);
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
  commit: of(async ({ history, nodes }, stored, signal) => {
    const parent = await history.parent(stored);
    const commit = history.told(stored);
    if (parent === undefined) return { commit, changed: null, truncated: false }; // no longer kept
    const found = await compare(nodes, parent, stored, MOST_COMPARED, signal);
    return { commit, changed: found.nodes, truncated: found.truncated };
  }),
  commitOf: of(({ history }, stored) => history.told(stored)),
  bySeq: of(async ({ history }, stored, seq) => {
    const found = await history.bySeq(stored, seq);
    return found && history.told(found);
  }),
  diff: asked(async ({ history, nodes }, a, b, signal) => {
    const [before, after] = await Promise.all([history.stored(a), history.stored(b)]);
    return { before: history.told(before), after: history.told(after), ...(await compare(nodes, before, after, MOST_COMPARED, signal)) };
  }),
  tree: of(({ nodes }, stored, parameters, signal) => nodes.members(stored, parameters, signal)),
  node: of(({ nodes }, stored, path) => nodes.node(stored, path)),
  /** What takes time for each key of a node, or for each view. */
  measured: of(async ({ history, nodes }, stored, path, signal) => ({
    constraints: constraintsOf(stored, path), views: await viewsOf(history, stored, path, signal), ...(await nodes.measured(stored, path, signal)),
  })),
  chunks: of(({ history, nodes }, stored, path, part, signal) => nodes.chunks(stored, path, part, history, signal)),
  usage: of(({ nodes }, stored, signal) => nodes.usage(stored, signal)),
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
      return throughServer(zarrAddress(store.commit.id, prefix + key).slice(0, -1), range, signal);
    }
  };
}

async function throughServer(url, range, signal) {
  const headers = range && { Range: range.suffixLength === undefined ? `bytes=${range.offset}-${range.offset + range.length - 1}` : `bytes=-${range.suffixLength}` };
  const response = await fetch(url, { signal, headers, credentials: "same-origin" });
  if (response.status === 404) return undefined;
  if (!response.ok || (range && response.status !== 206)) {
    const failed = await response.json().catch(() => null);
    throw new Error(failed?.error?.message ?? `the server answered ${response.status}`);
  }
  return new Uint8Array(await response.arrayBuffer());
}

/** Follow the repository. Calls `on` for commits, for "heads" that have moved, and for "live" or "lost"; without a server once, for "files". */
export function follow(on) {
  if (!hasServer) {
    on("files");
    return;
  }
  const events = new EventSource(address("api/events"));
  events.addEventListener("open", () => on("live"));
  events.addEventListener("error", () => on("lost"));
  for (const kind of ["commit", "heads"]) events.addEventListener(kind, (event) => on(kind, JSON.parse(event.data)));
}
