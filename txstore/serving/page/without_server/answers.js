// Answers the page's questions from the files of a repository, where no server does: as `api.js` has them from `txstore serve`.

import { openRepository } from "../reader/index.js";
import { ServerError } from "../api.js";
import { compare } from "./compare.js";
import { History } from "./history.js";
import { Nodes } from "./nodes.js";

const MOST_COMPARED = 1000; // nodes

/** The questions that only a process beside the repository can answer. */
const onlyServed = (what) => async () => {
  throw new ServerError(501, { message: `${what} are not in the files of a repository: \`txstore serve\` shows them.` });
};

export function answers(url) {
  let opened = null;
  const there = () => (opened ??= openRepository(url).then(
    (repository) => ({ repository, history: new History(repository), nodes: new Nodes(repository) }),
    (error) => {
      opened = null;
      throw error;
    },
  ));
  /** The page says what failed by a status, as a server does. */
  const asked = (question) => async (...parameters) => {
    try {
      return await question(await there(), ...parameters);
    } catch (error) {
      if (error.name === "NotFoundError") throw new ServerError(404, { message: error.message, type: error.name });
      throw error;
    }
  };
  return {
    repository: asked(({ history }) => history.about(url)),
    commits: asked(({ history }, parameters, signal) => history.commits(parameters, signal)),
    commit: asked(async ({ history, repository }, ref, signal) => {
      const stored = await history.stored(ref);
      const parent = await history.parent(stored);
      const told = { commit: history.told(stored), changed: null, truncated: false };
      if (parent === undefined) return told; // no longer kept
      const found = await compare(repository, parent, stored, MOST_COMPARED, signal);
      return { ...told, changed: found.nodes.map(numbers), truncated: found.truncated };
    }),
    diff: asked(async ({ history, repository }, a, b, signal) => {
      const [before, after] = await Promise.all([history.stored(a), history.stored(b)]);
      const found = await compare(repository, before, after, MOST_COMPARED, signal);
      return { before: history.told(before), after: history.told(after), ...found };
    }),
    tree: asked(async ({ history, nodes }, ref, parameters, signal) => nodes.members(await history.stored(ref), parameters, signal)),
    node: asked(async ({ history, nodes }, ref, path, signal) => nodes.node(await history.stored(ref), path, signal)),
    measured: asked(async ({ history, nodes }, ref, path, signal) => nodes.measured(await history.stored(ref), path, signal)),
    chunks: asked(async ({ history, nodes }, ref, path, parameters, signal) => nodes.chunks(await history.stored(ref), path, parameters, history, signal)),
    store: asked(async ({ history, repository }, ref) => repository.storeOf(await history.stored(ref))),
    usage: onlyServed("Sums over all arrays"),
    transactions: onlyServed("Open transactions"),
    locks: onlyServed("Locks"),
    feeds: onlyServed("Places of feeds"),
    preview: async () => {
      throw new ServerError(501, { message: "This is more than a browser reads from files, or in a codec that it does not know: choose less of it, or run `txstore serve`." });
    },
  };
}

/** What a commit has changed of a node, without the values. */
const numbers = ({ path, change, kind, moved_from, fields, attributes, chunks, bytes_added, bytes_dropped }) => ({
  path, change, kind, moved_from, chunks: chunks ?? { added: 0, removed: 0, changed: 0 }, bytes_added, bytes_dropped,
  fields: fields.map(({ name }) => name), attributes: attributes.map(({ name }) => name),
});
