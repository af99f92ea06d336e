// The page's questions. A worker answers them from the files of the repository, so that nothing in these can hold up the page: it may be ended at any time.
// All addresses are relative, so the page may lie anywhere.

const SECONDS = 10; // that the worker may be silent before it is ended

const told = (name) => document.querySelector(`meta[name="${name}"]`)?.content;

/** Whether this page comes from `txstore serve`, which knows also what is not in files. */
export const hasServer = told("txstore-server") === "yes";

export const address = (path) => new URL(path, document.baseURI);

/** The repository that the page was made for, if it was, and the one that its address names. */
const [own, named] = [told("txstore-repository"), new URLSearchParams(location.search).get("repository")];

/** Where the files of the repository lie. */
export const files = address(own || named || ".").href.replace(/\/+$/, "");

/** Where plain Zarr tools find a node. */
export const zarrAddress = (ref, path = "") => address(`at/${encodeURIComponent(ref)}/${path ? `${path.split("/").map(encodeURIComponent).join("/")}/` : ""}`).href;

/** What only the server knows. */
async function ask(path, signal) {
  const silent = "The server does not answer. Is `txstore serve` still running?";
  const response = await fetch(address(path), { signal, credentials: "same-origin" }).catch((error) => {
    throw error.name === "AbortError" ? error : new Error(silent, { cause: error });
  });
  const found = await response.json().catch(() => null); // of a failure, the status is enough
  if (response.ok) return found;
  throw new Error(found?.error?.message ?? `the server answered ${response.status}`);
}

let worker = null;
let isThere = false; // whether it has loaded, which takes as long as the network does
let isSilent = false; // since it was asked whether it is still there
const waiting = new Map(); // by number: a question, and what settles it
let numbered = 0;

function start() {
  worker = new Worker(new URL("answers/worker.js", import.meta.url), { type: "module", name: JSON.stringify({ files, hasServer, at: address("at/").href }) });
  worker.onmessage = ({ data: { number, progress, answer, failed } }) => {
    isThere = true;
    isSilent = false;
    const { resolve, reject, tell } = waiting.get(number) ?? {};
    if (progress) return tell?.(...progress);
    waiting.delete(number);
    if (failed) reject?.(Object.assign(new Error(failed.message), failed));
    else resolve?.(answer);
  };
  worker.onerror = (event) => end(`What reads the files of this page could not be started: ${event.message ?? "it did not load. Load the page again"}`);
}

/** End the worker; without a reason, another one is asked for what is still waited for. */
function end(reason) {
  worker.terminate();
  worker = null;
  isThere = false;
  if (!reason && waiting.size) start();
  for (const [number, { reject, name, parameters }] of waiting)
    if (!reason) worker.postMessage({ number, name, parameters });
    else if (waiting.delete(number)) reject(new Error(reason));
}

/** End the worker if it says nothing for some seconds. */
function watch(seconds, reason) {
  if (!isThere) return;
  const watched = worker;
  isSilent = true;
  worker.postMessage({});
  setTimeout(() => { if (isSilent && worker === watched) end(reason); }, seconds * 1000);
}

setInterval(() => waiting.size && watch(SECONDS, `It takes more than ${SECONDS} s: the page reads it no more.`), 2 * SECONDS * 1000);

/** Ask the worker; a signal among what is given stops that, and a function is told how far it is. */
const question = (name) => (...given) => new Promise((resolve, reject) => {
  const signal = given.find((each) => each instanceof AbortSignal);
  const tell = given.find((each) => typeof each === "function");
  const parameters = given.filter((each) => each !== signal && each !== tell);
  signal?.throwIfAborted();
  if (!worker) start();
  const number = ++numbered;
  const stop = () => {
    reject(signal.reason);
    if (!waiting.delete(number)) return;
    worker.postMessage({ stop: number });
    watch(3);
  };
  signal?.addEventListener("abort", stop, { once: true });
  waiting.set(number, { resolve, reject, tell, name, parameters });
  worker.postMessage({ number, name, parameters });
});

const NAMES = ["bySeq", "chunks", "commit", "commitOf", "commits", "diff", "look", "measured", "node", "read", "tree", "usage"];
const asked = Object.fromEntries(["feeds", ...NAMES].map((name) => [name, question(name)]));

export const api = {
  ...asked,
  async repository(signal) {
    if (own && named !== null) throw new Error("This page was made for one repository, and shows no other one: leave out ?repository= in its address.");
    const about = hasServer ? ask("api/repository", signal) : { url: files, name: decodeURIComponent(new URL(files).pathname.split("/").at(-1)) || files, origins: [] };
    const [one, other] = await Promise.all([about, asked.look(signal)]);
    return { ...one, ...other };
  },
  feeds: hasServer ? (signal) => ask("api/feeds", signal) : asked.feeds,
  transactions: (signal) => ask("api/transactions", signal),
  locks: (signal) => ask("api/locks", signal),
};

/** Follow the repository. Calls `on` for commits, for "heads" that have moved, and for "live" or "lost"; without a server once, for "files". */
export function follow(on) {
  if (!hasServer) return on("files");
  const events = new EventSource(address("api/events"));
  events.addEventListener("open", () => on("live"));
  events.addEventListener("error", () => on("lost"));
  for (const kind of ["commit", "heads"]) events.addEventListener(kind, (event) => on(kind, JSON.parse(event.data)));
}
