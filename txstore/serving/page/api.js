// The page's questions, to its server. All addresses are relative, so the application may be mounted below any prefix.
// Where no server runs, `without_server/` answers them from the files of a repository.

const NAMES_KEPT = 200;

export class ServerError extends Error {
  constructor(status, told) {
    super(told?.message || `the server answered ${status}`);
    this.status = status;
    this.type = told?.type || "";
  }
}

export const address = (path) => new URL(path, document.baseURI);

export const encodePath = (path) => path.split("/").map(encodeURIComponent).join("/");

/** Where plain Zarr tools find a node. */
export const zarrAddress = (ref, path = "") =>
  address(`at/${encodeURIComponent(ref)}/${path ? `${encodePath(path)}/` : ""}`).href;

async function answered(path, signal) {
  let response;
  try {
    response = await fetch(address(path), { signal, credentials: "same-origin" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError(0, { message: "The server does not answer. Is `txstore serve` still running?" });
  }
  if (response.ok) return response;
  let told = null;
  try {
    told = (await response.json()).error;
  } catch {
    // the error is not JSON: the status is enough
  }
  throw new ServerError(response.status, told);
}

export async function ask(path, signal) {
  return (await answered(path, signal)).json();
}

function query(parameters) {
  const given = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return given.length ? `?${new URLSearchParams(given)}` : "";
}

/** Where the repository lies whose files this page reads by itself; null: a server answers. */
export const files = (() => {
  const given = new URLSearchParams(location.search).get("repository");
  const beside = document.querySelector('meta[name="txstore-repository"]')?.content;
  return beside === undefined ? null : new URL(given ?? beside, document.baseURI).href.replace(/\/+$/, "");
})();

const at = (ref) => encodeURIComponent(ref);
const below = (ref, path) => `${at(ref)}/${encodePath(path)}`;

const served = {
  repository: (signal) => ask("api/repository", signal),
  commits: (parameters, signal) => ask(`api/commits${query(parameters)}`, signal),
  commit: (ref, signal) => ask(`api/commit/${at(ref)}`, signal),
  tree: (ref, parameters, signal) => ask(`api/tree/${at(ref)}${query(parameters)}`, signal),
  /** Without the stored bytes and chunks, whose counting takes time per chunk: `measured` returns them. */
  node: (ref, path, signal) => ask(`api/node/${below(ref, path)}?stored=no`, signal),
  measured: (ref, path, signal) => ask(`api/node/${below(ref, path)}`, signal),
  chunks: (ref, path, parameters, signal) => ask(`api/chunks/${below(ref, path)}${query(parameters)}`, signal),
  diff: (a, b, signal) => ask(`api/diff/${at(a)}/${at(b)}`, signal),
  usage: (ref, signal) => ask(`api/usage/${at(ref)}`, signal),
  transactions: (signal) => ask("api/transactions", signal),
  locks: (signal) => ask("api/locks", signal),
  feeds: (signal) => ask("api/feeds", signal),
  preview: (ref, path, selection, signal) => answered(`api/preview/${below(ref, path)}${query({ selection })}`, signal),
};

export const api = files === null ? served : new Proxy({}, {
  // Loaded late: what answers imports from here.
  get: (_, question) => async (...parameters) => (await answering())[question](...parameters),
});

let loaded = null;
const answering = () => (loaded ??= import("./without_server/answers.js").then((found) => found.answers(files)));

/** Commits by id: a commit never changes, so each is asked for once. */
const commits = new Map();

export function remember(commit) {
  if (commits.size > NAMES_KEPT) commits.delete(commits.keys().next().value);
  commits.set(commit.id, commit);
}

export async function commitOf(id, signal) {
  if (!commits.has(id)) remember((await api.commit(id, signal)).commit);
  return commits.get(id);
}

/** Follow the repository. Calls `on` for commits, for "heads" that have moved, and for "live" or "lost". */
export function follow(on) {
  if (files !== null) {
    on("files");
    return null;
  }
  const events = new EventSource(address("api/events"));
  events.addEventListener("open", () => on("live"));
  events.addEventListener("error", () => on("lost"));
  for (const kind of ["commit", "heads"]) events.addEventListener(kind, (event) => on(kind, JSON.parse(event.data)));
  return events;
}
