// The differences between two commits, node by node: only the runs that one of them has and the other has not are read.

import { gridOf } from "./nodes.js";

const MOST_KEYS = 20_000; // that are looked at
const REGIONS = 256; // of a node
const DOCUMENTS = new Set(["zarr.json", ".zarray", ".zgroup", ".zattrs"]);

/** `before` is null if there was nothing. */
export async function compare(repository, before, after, most, signal) {
  const stores = [before, after].map((stored) => repository.storeOf(stored ?? undefined));
  const { keys, truncated } = await differing(stores, signal);
  const nodes = new Map();
  const places = new Places(stores);
  // In parallel: neighbours need the same blocks, which are read once.
  const pairs = await Promise.all(keys.map(async (key) => Promise.all([...stores.map((store) => entryOf(store, key)), places.of(key)])));
  signal?.throwIfAborted();
  let [bytes_added, bytes_dropped] = [0, 0];
  for (const [i, [old, now, path]] of pairs.entries()) {
    if ((!old && !now) || (old && now && isSame(old, now))) continue;
    bytes_added += now?.length ?? 0;
    bytes_dropped += old?.length ?? 0;
    if (!nodes.has(path)) nodes.set(path, []);
    nodes.get(path).push({ key: keys[i], old, now });
  }
  const paths = [...nodes.keys()].sort();
  const found = await Promise.all(paths.slice(0, most).map((path) => nodeOf(stores, path, nodes.get(path))));
  return { bytes_added, bytes_dropped, nodes: found, truncated: truncated || paths.length > most || found.some((each) => each.truncated) };
}

/** Keys that may differ: those of runs that only one of the two has, and those that such a run deletes by a prefix. */
async function differing(stores, signal) {
  const listed = stores.map((store) => new Map((store.stored?.header.runs ?? []).map((run) => [store.nameOf(run), run])));
  const keys = new Set();
  const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  const isFull = () => {
    signal?.throwIfAborted();
    return keys.size >= MOST_KEYS;
  };
  for (const [i, store] of stores.entries()) {
    for (const [name, run] of listed[i]) {
      if (listed[1 - i].has(name)) continue;
      const opened = await store.run(run);
      for await (const { key } of opened.below(new Uint8Array(0))) {
        if (isFull()) return { keys: [...keys], truncated: true };
        keys.add(decoder.decode(key));
      }
      for (const prefix of opened.index.prefixes) {
        for await (const [key] of stores[1 - i].entries(prefix, prefix)) {
          if (isFull()) return { keys: [...keys], truncated: true };
          keys.add(key);
        }
      }
    }
  }
  return { keys: [...keys].sort(), truncated: false };
}

/** The entry of a key. An erased value is one that differs from none. */
async function entryOf(store, key) {
  try {
    return await store.entry(key);
  } catch (error) {
    if (error.name === "ErasedError") return undefined;
    throw error;
  }
}

/** Of a value that an erasure of rows has replaced, an entry has the checksum 0. */
const isSame = (one, other) =>
  one.length === other.length && one.checksum === other.checksum && one.kind === other.kind && (one.checksum !== 0 || placeOf(one) === placeOf(other));

const placeOf = ({ place, offset }) => `${place.path} ${place.id} ${place.base + offset}`;

/** Finds the node that a key belongs to: the nearest array above it, or the group right above. */
class Places {
  constructor(stores) {
    this.stores = stores;
    this.arrays = new Map(); // whether a path is one, in either commit
  }

  isArray(path) {
    if (!this.arrays.has(path)) this.arrays.set(path, this.look(path));
    return this.arrays.get(path);
  }

  async look(path) {
    for (const store of this.stores) {
      if (await entryOf(store, `${path}/.zarray`)) return true;
      const bytes = (await entryOf(store, `${path}/zarr.json`)) && (await store.get(`${path}/zarr.json`));
      if (bytes && JSON.parse(new TextDecoder().decode(bytes)).node_type === "array") return true;
    }
    return false;
  }

  async of(key) {
    const parts = key.split("/");
    const above = parts.slice(0, -1).join("/");
    if (DOCUMENTS.has(parts.at(-1))) return above;
    for (let length = parts.length - 1; length > 0; length--) {
      const path = parts.slice(0, length).join("/");
      if (await this.isArray(path)) return path;
    }
    return above;
  }
}

/** What has changed of a node. */
async function nodeOf(stores, path, changes) {
  const prefix = path ? `${path}/` : "";
  const parsed = async (store, name) => {
    const bytes = store.stored && (await store.get(prefix + name));
    return bytes ? JSON.parse(new TextDecoder().decode(bytes)) : null;
  };
  const sides = await Promise.all(stores.map(async (store) => {
    const three = await parsed(store, "zarr.json");
    if (three) return { document: three, attributes: three.attributes ?? {}, isArray: three.node_type === "array" };
    const two = (await parsed(store, ".zarray")) ?? (await parsed(store, ".zgroup"));
    return two && { document: two, attributes: (await parsed(store, ".zattrs")) ?? {}, isArray: "shape" in two };
  }));
  const [old, now] = sides;
  const isArray = (now ?? old)?.isArray ?? false;
  const change = !old && now ? "added" : old && !now ? "removed" : "changed";
  const grids = [now, old].filter((each) => each?.isArray).map(({ document }) => ({ ...gridOf(document), shape: document.shape }));
  const chunks = { added: 0, removed: 0, changed: 0 };
  const [regions, keys] = [[], []];
  let [bytes_added, bytes_dropped] = [0, 0];
  const shape = isArray ? (now ?? old).document.shape : null;
  for (const each of changes) {
    bytes_added += each.now?.length ?? 0;
    bytes_dropped += each.old?.length ?? 0;
    const name = each.key.slice(prefix.length);
    const grid = grids.find(({ placeOf }) => placeOf(name)); // of an array that was made shorter, the old one has more places
    if (grid) {
      const place = grid.placeOf(name);
      chunks[each.old ? (each.now ? "changed" : "removed") : "added"] += 1;
      regions.push(place.map((at, i) => [at * grid.lengths[i], Math.min((at + 1) * grid.lengths[i], grid.shape[i])]));
    } else if (!DOCUMENTS.has(name)) keys.push(name);
  }
  const without = ({ attributes: _, ...document }) => document;
  return {
    path, change, kind: isArray ? "array" : "group", moved_from: null,
    shape, shape_before: old?.isArray ? old.document.shape : null,
    fields: old && now ? unequal(without(old.document), without(now.document)) : [],
    attributes: unequal(old?.attributes ?? {}, now?.attributes ?? {}),
    chunks: isArray ? chunks : null, regions: joined(regions).slice(0, REGIONS), keys: keys.slice(0, REGIONS), bytes_added, bytes_dropped,
    truncated: keys.length > REGIONS || joined(regions).length > REGIONS,
  };
}

/** Regions that touch along the last axis, as one. They come in the order of their keys, which is not that of their places. */
function joined(regions) {
  const found = [];
  const inOrder = [...regions].sort((one, other) => {
    for (let i = 0; i < one.length; i++) if (one[i][0] !== other[i][0]) return one[i][0] - other[i][0];
    return 0;
  });
  for (const region of inOrder) {
    const last = found.at(-1);
    const isNext = last?.length && last.at(-1)[1] === region.at(-1)[0] && last.slice(0, -1).every((each, i) => each[0] === region[i][0] && each[1] === region[i][1]);
    if (isNext) last[last.length - 1] = [last.at(-1)[0], region.at(-1)[1]];
    else found.push(region);
  }
  return found;
}

const unequal = (one, other) =>
  [...new Set([...Object.keys(one), ...Object.keys(other)])].sort()
    .filter((name) => JSON.stringify(one[name]) !== JSON.stringify(other[name]))
    .map((name) => ({ name, before: one[name], after: other[name] }));
