// What a commit declares: constraints, views, and the cursors of feeds. A header may come from a stranger: each is looked at before it is believed.

import { CorruptionError } from "../reader/errors.js";
import { cut } from "../words.js";
import { differing } from "./compare.js";

const MOST_OUTPUTS = 100; // of a view
const MOST_TEXT = 1_000_000; // characters of all of one kind
const TOLD = 100; // constraints, views or feeds

const isText = (value) => typeof value === "string";

function objects(stored, kind) {
  const left = { size: MOST_TEXT };
  return Object.entries(stored.header.declared[kind]).sort(([one], [other]) => (one < other ? -1 : 1)).map(([name, told]) => {
    if (told === null || typeof told !== "object") throw new CorruptionError(`${stored.path}: ${JSON.stringify(name)} among its ${kind} is no object. Run \`txstore verify\``);
    return { ...cut(told, left), name: cut(name, left) };
  });
}

const isAt = (path, above) => path === above || path.startsWith(above ? `${above}/` : "");

/** Constraints that name a node, or one below it. */
export function constraintsOf(stored, path) {
  return objects(stored, "constraints").filter((told) => Object.values(told).flat().some((each) => isText(each) && isAt(each.replace(/^\/+|\/+$/g, ""), path))).slice(0, TOLD);
}

/** Views that read or make a node, or one below it, and whether their outputs are what the sources at this commit make. */
export async function viewsOf(history, stored, path, signal) {
  const views = objects(stored, "views").map((told) => ({ ...told, ...endsOf(told) }));
  const found = views.filter(({ sources, outputs }) => [...sources, ...outputs].some((each) => isAt(each, path))).slice(0, TOLD);
  return Promise.all(found.map(async ({ name, kind, when, sources, outputs }) => ({
    name, kind, when, sources, outputs, current: await isCurrent(history, stored, views, name, signal),
  })));
}

function endsOf({ kind, source, inputs, to, dim, by, levels }) {
  const texts = (...each) => each.flat().filter(isText);
  const beside = (place, name) => [...String(place).split("/").slice(0, -1), name].join("/");
  if (kind === "coarsen") return { sources: texts(source), outputs: isText(to) ? Array.from({ length: Math.min(levels, MOST_OUTPUTS) || 0 }, (_, i) => to.replaceAll("{level}", i + 1)) : [] };
  if (kind === "apply") return { sources: texts(inputs ?? []), outputs: texts(to) };
  const labels = beside(to, beside(to, "") === beside(source, "") ? `${dim}_${by}` : String(dim));
  return { sources: texts(source, by ? beside(source, dim) : []), outputs: texts(to, by ? labels : []) };
}

/** Outputs are derived by each commit, or are those of a commit since which no source, and no view that makes one, has changed. */
async function isCurrent(history, stored, views, name, signal) {
  const met = new Set([name]);
  for (const each of met) {
    const { when, as_of: of, sources } = views.find((view) => view.name === each);
    if (when === "follow") {
      const old = isText(of?.id) && (await at(history, of));
      if (!old) return false;
      const stores = [old, stored].map((one) => history.repository.storeOf(one));
      for (const path of sources) if (!(await differing(stores, path, signal).next()).done) return false;
    }
    for (const { name: maker, outputs } of views) if (outputs.some((output) => sources.includes(output))) met.add(maker);
  }
  return true;
}

/** The commit of an id that lies in a version of a branch; undefined: it is gone. */
async function at(history, { id, branch, version }) {
  const known = history.known.get(id);
  const found = known || !isText(branch) || !Number.isSafeInteger(version) ? known : await history.repository.branch(branch).then((record) => record && history.repository.commits.made(record.id, version));
  return found?.header.id === id ? history.note(found) : undefined;
}

/** The feeds of all branches, and how many commits each has not seen yet. Of a name that several branches have, the first one counts. */
export function feedsOf(history) {
  const [feeds, { names }] = [new Map(), history.repository];
  for (const [kept_on, head] of history.heads) {
    for (const { name, branch, paths, place } of objects(head, "cursors")) {
      if (name.includes("#") || feeds.has(name)) continue; // a share of a change that several workers divide
      const followed = history.heads.find(([each]) => each === names.get(branch))?.[1];
      const behind = followed && Number.isSafeInteger(place?.version) ? Math.max(0, followed.header.version - place.version) : null;
      feeds.set(name, { name, kept_on, branch: names.get(branch) ?? String(branch), paths: Array.isArray(paths) ? paths.filter(isText) : [], behind, pending: behind !== 0 });
    }
  }
  return [...feeds.values()].slice(0, TOLD);
}
