// The differences between two commits, node by node: only the runs that one of them has and the other has not are read.

import { rests } from "../reader/store.js";
import { cut } from "../words.js";
import { aboveOf, gridOf, isDocument, prefixOf } from "./nodes.js";

const MOST_KEYS = 20_000; // that differ
const MOST_DOCUMENTS = 64 << 20; // characters of all documents of the nodes that differ
const TOLD = 200; // nodes of which is told how they differ, with as many attributes
const MOST_TOLD = 1_000_000; // characters of what is told of documents
const AT_ONCE = 256; // nodes of which the documents are asked for
const LISTED = 32; // regions, and other keys, of a node

/** Yield the keys below a path whose values differ: {key, before, after}, the two entries. */
export async function* differing(stores, path = "", signal) {
  const [seen, rest] = [new Set(), rests()];
  for await (const keys of candidates(stores, prefixOf(path))) {
    signal?.throwIfAborted();
    await rest();
    const fresh = keys.filter((key) => !seen.has(key) && seen.add(key));
    const entriesOf = (key) => Promise.all(stores.map((store) => unlessErased(store.entry(key))));
    const pairs = await Promise.all(fresh.map(entriesOf));
    for (const [i, [before, after]] of pairs.entries()) if ((before || after) && !(before && after && isSame(before, after))) yield { key: fresh[i], before, after };
  }
}

/** Keys that may differ: those of runs that only one of the two has, and those that such a run deletes by a prefix. */
async function* candidates(stores, prefix) {
  const [start, decoder, since] = [new TextEncoder().encode(prefix), new TextDecoder("utf-8", { ignoreBOM: true }), ancestorOf(stores)];
  const listed = stores.map((store) => new Map((store.stored?.header.runs ?? []).map((run) => [store.nameOf(run), run])));
  for (const [i, store] of stores.entries()) {
    const own = [...listed[i]].filter(([name, { seq }]) => !listed[1 - i].has(name) && !(seq && seq <= since)).map(([, run]) => store.run(run));
    for (const run of await Promise.all(own)) {
      for await (const page of run.below(start, start, since)) yield page.map(({ key }) => decoder.decode(key));
      for (const [deleted, seq] of run.index.prefixes) {
        if (seq && seq <= since) continue;
        const both = deleted.startsWith(prefix) ? deleted : prefix.startsWith(deleted) ? prefix : null;
        if (both !== null) for await (const page of stores[1 - i].pages(both)) yield page.map(([key]) => key);
      }
    }
  }
}

/** The seq up to which two commits have one history, as far as it is known; 0: look at everything. */
function ancestorOf(stores) {
  const [one, other] = stores.map(({ stored }) => stored?.header);
  if (!one || !other || (one.branch !== other.branch && one.parent !== other.id && other.parent !== one.id)) return 0;
  const since = Math.min(one.seq, other.seq);
  // Of what was deleted before the oldest kept version, there may be no tombstone.
  return [one, other].every(({ oldestKept, seq, version }) => oldestKept + seq - version <= since) ? since : 0;
}

/** An erased value is one that differs from none. */
const unlessErased = (asked) =>
  asked.catch((error) => (error.name === "ErasedError" ? undefined : Promise.reject(error)));

/** Of a value that an erasure of rows has replaced, an entry has the checksum 0. */
const isSame = (one, other) =>
  one.length === other.length && one.checksum === other.checksum && one.kind === other.kind && (one.checksum !== 0 || placeOf(one) === placeOf(other));
const placeOf = ({ place, offset }) => `${place.path} ${place.id} ${place.base + offset}`;

/** What differs, by node. `before` is null if there was nothing. */
export async function compare(nodes, stores, most, signal) {
  const sides = new Map(); // by path: what was there before and after
  let length = 0;
  const described = async (store, path) => {
    const odd = (error) => ({ kind: "unknown", length: 0, exactly: () => ({ document: {}, attributes: { "can't be read": error.message } }) });
    const found = await unlessErased(nodes.described(store, path)).catch(odd); // the others are compared
    length += found?.length ?? 0;
    if (length > MOST_DOCUMENTS) throw new Error("The documents of what differs are longer than this page can compare.");
    return found && { ...found, ...found.exactly() };
  };
  const at = (path) => {
    const read = () => Promise.all(stores.map((store) => described(store, path)));
    return sides.get(path) ?? sides.set(path, read()).get(path);
  };
  const changes = new Map();
  let [bytes_added, bytes_dropped] = [0, 0];
  let truncated = false;
  let [array, are] = ["\0", []]; // the array of the last key, and on which sides it is one: the next one mostly belongs to it, too
  const add = (path, each) => (changes.get(path) ?? changes.set(path, []).get(path)).push(each);
  const differ = [];
  for await (const each of differing(stores, "", signal)) {
    if ((truncated = differ.length >= MOST_KEYS)) break;
    differ.push(each);
  }
  for (const [i, each] of differ.entries()) {
    const isLast = changes.size > 2 * most; // some are joined: they were moved
    truncated ||= isLast;
    if (isLast) break;
    const ahead = i % AT_ONCE === 0 ? differ.slice(i, i + AT_ONCE).map(({ key }) => aboveOf(key)) : [];
    await Promise.all(ahead.filter(([, name]) => isDocument(name)).map(([above]) => at(above)));
    bytes_added += each.after?.length ?? 0;
    bytes_dropped += each.before?.length ?? 0;
    const sides = [each.before, each.after].flatMap((there, side) => (there ? [side] : []));
    if (each.key.startsWith(array) && sides.every((side) => are[side])) {
      add(array.slice(0, -1), each);
      continue;
    }
    const [path, other = path] = await Promise.all(sides.map((side) => nodeOf(at, each.key, side)));
    are = (await at(path)).map(isArray);
    array = path && are.includes(true) ? prefixOf(path) : "\0";
    if (path === other) add(path, each);
    else for (const [name, there] of [[path, { before: each.before }], [other, { after: each.after }]]) add(name, { key: each.key, ...there });
  }
  const found = [];
  for (const path of [...changes.keys()].sort()) found.push(...changesOf(path, await at(path), changes.get(path)));
  joinMoves(found);
  const kept = found.filter(({ isGone }) => !isGone).slice(0, most).map(({ places: _, isGone: __, ...each }) => each);
  const left = { size: MOST_TOLD };
  for (const [i, each] of kept.entries())
    for (const what of ["fields", "attributes"]) each[what] = i < TOLD ? each[what].slice(0, TOLD).map((one) => cut(one, left)) : [];
  for (const each of kept.slice(TOLD)) each.regions = each.keys = [];
  return { bytes_added, bytes_dropped, nodes: kept, truncated: truncated || found.length > most || kept.some((each) => each.truncated) };
}

const isArray = (node) => node?.kind === "array";

/** The path of the node that a key belongs to on a side: the array above it there, or on the other side, or what is right above. */
async function nodeOf(at, key, side) {
  const [above, name] = aboveOf(key);
  if (isDocument(name)) return above;
  const parts = key.split("/");
  let ofOther;
  for (let length = 0; length < parts.length; length++) {
    const path = parts.slice(0, length).join("/");
    const are = (await at(path)).map(isArray);
    if (are[side]) return path;
    if (are[1 - side]) ofOther ??= path;
  }
  return ofOther ?? above;
}

/** What has changed of a node. An array that has become a group, or the reverse, is removed and added. */
function changesOf(path, [old, now], changes) {
  if (old && now && old.kind !== now.kind && ![old.kind, now.kind].includes("unknown")) {
    const only = (side, otherwise) => changes.filter((each) => each[side]).map((each) => ({ ...each, [otherwise]: undefined }));
    return [...changesOf(path, [old, null], only("before", "after")), ...changesOf(path, [null, now], only("after", "before"))];
  }
  const prefix = prefixOf(path);
  const arrays = [now, old].filter(isArray);
  const grids = arrays.map(({ document }) => gridOf(document)).filter(Boolean);
  const chunks = { added: 0, removed: 0, changed: 0 };
  const [boxes, keys, places] = [[], [], []];
  let [bytes_added, bytes_dropped] = [0, 0];
  for (const { key, before, after } of changes) {
    bytes_added += after?.length ?? 0;
    bytes_dropped += before?.length ?? 0;
    const name = key.slice(prefix.length);
    const grid = grids.find(({ placeOf }) => placeOf(name)); // of an array that was made shorter, the old one has more places
    if (grid) {
      chunks[before ? (after ? "changed" : "removed") : "added"] += 1;
      boxes.push(grid.placeOf(name).map((each) => [each, each + 1]));
    } else if (!isDocument(name)) keys.push(key);
    if (!before || !after) places.push(`${name} ${(after ?? before).kind} ${(after ?? before).length} ${placeOf(after ?? before)}`);
  }
  const regions = regionsOf(grids, boxes);
  return [{
    path, change: !old && now ? "added" : old && !now ? "removed" : "changed", kind: arrays.length ? "array" : ((now ?? old)?.kind ?? "unknown"), moved_from: null,
    shape: grids[0]?.shape ?? null, fields: old && now ? fieldsOf(old, now) : [], attributes: unequal(old?.attributes ?? {}, now?.attributes ?? {}),
    chunks: arrays.length ? chunks : null, regions: regions.slice(0, LISTED), more: Math.max(0, regions.length - LISTED), keys: keys.slice(0, LISTED), bytes_added, bytes_dropped,
    truncated: keys.length > LISTED || regions.length > LISTED, places: places.sort().join("\n"), isGone: false,
  }];
}

/** A node that was added is a moved one if one that was removed has the same values at the same places in the packs. */
function joinMoves(found) {
  const removed = found.filter(({ change }) => change === "removed");
  for (const node of found.filter(({ change }) => change === "added")) {
    const from = removed.filter(({ places, isGone }) => !isGone && places === node.places);
    const nameOf = ({ path }) => path.split("/").at(-1);
    const old = from.find((each) => nameOf(each) === nameOf(node)) ?? from[0];
    if (!old) continue;
    old.isGone = true;
    Object.assign(node, { change: "moved", moved_from: old.path, attributes: [], regions: [], bytes_added: 0, chunks: node.chunks && { added: 0, removed: 0, changed: 0 } });
  }
}

/** Boxes of chunks as regions of an array, neighbours joined: along the last axis first, then rows of equal extent along the one before, and so on. */
function regionsOf(grids, boxes) {
  if (!grids.length) return [];
  if (grids.some((each) => String(each.lengths) !== String(grids[0].lengths))) return [grids[0].shape.map((length) => [0, length])]; // now it has other chunks
  const ordered = (axes) => (one, other) => axes.reduce((found, i) => found || one[i][0] - other[i][0] || one[i][1] - other[i][1], 0);
  const axes = grids[0].shape.map((_, i) => i);
  let joined = boxes;
  for (const axis of [...axes].reverse()) {
    const others = axes.filter((i) => i !== axis);
    const last = [];
    for (const box of joined.sort(ordered([...others, axis]))) {
      const before = last.at(-1);
      if (before && before[axis][1] === box[axis][0] && others.every((i) => String(before[i]) === String(box[i]))) before[axis] = [before[axis][0], box[axis][1]];
      else last.push(box);
    }
    joined = last;
  }
  const extents = axes.map((i) => Math.max(...grids.map(({ shape }) => shape[i])));
  return joined.sort(ordered(axes)).map((box) => box.map((ends, i) => ends.map((each) => Math.min(each * grids[0].lengths[i], extents[i]))));
}

const NAMES = { data_type: "dtype", chunk_grid: "chunks" };
const LEFT_OUT = new Set(["attributes", "consolidated_metadata", "node_type"]);

/** The members of two documents that differ, by the names that users know. */
function fieldsOf(old, now) {
  const [one, other] = [old, now].map(({ document }) => Object.fromEntries(Object.entries(document).filter(([name]) => !LEFT_OUT.has(name))
    .map(([name, value]) => [NAMES[name] ?? name, name === "chunk_grid" && value?.name === "regular" ? value.configuration?.chunk_shape : value])));
  return [...new Set([...Object.keys(one), ...Object.keys(other)])].filter((name) => !isEqual(one[name], other[name])).map((name) => changed([name], one[name], other[name]));
}

const isObject = (value) => value !== null && typeof value === "object";
const isEqual = (one, other) =>
  one === other ||
  (isObject(one) && isObject(other) && Array.isArray(one) === Array.isArray(other) && Object.keys(one).length === Object.keys(other).length &&
    Object.keys(one).every((name) => Object.hasOwn(other, name) && isEqual(one[name], other[name])));
const changed = (path, before, after) => ({ name: path.length > 1 ? path : path[0], before, after });

/** Attributes that differ, those in nested objects one by one. */
function unequal(one, other, path = []) {
  return [...new Set([...Object.keys(one), ...Object.keys(other)])].sort().flatMap((name) => {
    const [before, after] = [one, other].map((each) => (Object.hasOwn(each, name) ? each[name] : undefined));
    if (isEqual(before, after)) return [];
    const areObjects = [before, after].every((each) => isObject(each) && !Array.isArray(each));
    return areObjects ? unequal(before, after, [...path, name]) : [changed([...path, name], before, after)];
  });
}
