// Groups and arrays, from the keys of a commit: the members of a group, one node, their bytes, and who has written each chunk.

import { NotFoundError } from "../reader/errors.js";
import { IMPOSSIBLE, cut, parse, parseExactly, size } from "../words.js";

const COUNTED = 100; // members of a group, before all of its keys are counted
const DOCUMENTS = ["zarr.json", ".zarray", ".zgroup", ".zattrs"];
const MOST_DOCUMENT = 16 << 20; // bytes that are read of one
const LARGE = 1 << 20; // documents of more are read one after the other, and their numbers as JavaScript has them
const MOST_OF_ARRAY = 64 << 10; // characters of what the document of an array says of its values
const LISTED = 200; // arrays, by their size
const MOST_CELLS = 1 << 16;
const MOST_CHUNKS = 2 ** 24; // of the part of a grid that a map is of
const MOST_DIMENSIONS = 64; // as of numpy
const MOST_NAME = 1000; // characters of the name of a dimension, or of a data type
const NAMED = 64; // commits of a map that are looked for at once

export const prefixOf = (path) => (path ? `${path}/` : "");
const product = (lengths) => lengths.reduce((a, b) => a * b, 1);
/** What lies right above a key, and its name there. */
export const aboveOf = (key) => [key.slice(0, Math.max(0, key.lastIndexOf("/"))), key.slice(key.lastIndexOf("/") + 1)];
export const isDocument = (name) => DOCUMENTS.includes(name);

export class Nodes {
  constructor() {
    this.last = Promise.resolve(); // the large document that is being read
  }

  /** The text of a document. */
  async text(store, key) {
    const { length = 0 } = (await store.entry(key)) ?? {};
    if (length > MOST_DOCUMENT) throw new Error(`Its document has ${size(length)}, and this page reads at most ${size(MOST_DOCUMENT)}.`);
    const read = () => store.get(key);
    const bytes = await (length > LARGE ? (this.last = this.last.then(read, read)) : read());
    return bytes && new TextDecoder().decode(bytes);
  }

  /** The node at a path: its document, and what it says; `exactly` returns both to be compared and shown; null: nothing is there. */
  async described(store, path) {
    const read = (name) => this.text(store, prefixOf(path) + name);
    const three = await read("zarr.json");
    const [array, group, attributes] = three === undefined ? await Promise.all([".zarray", ".zgroup", ".zattrs"].map(read)) : [];
    const own = three ?? array ?? group;
    if (own === undefined) return null;
    const told = (parsed) => {
      const document = objectOf(own, parsed);
      return { document, attributes: three === undefined ? objectOf(attributes ?? "{}", parsed) : isObject(document.attributes) ? document.attributes : {} };
    };
    const found = told(parse);
    const kind = three === undefined ? (array === undefined ? "group" : "array") : (["array", "group"].find((each) => each === found.document.node_type) ?? "unknown");
    const length = own.length + (attributes?.length ?? 0);
    return { ...found, kind, length, exactly: () => (length > LARGE ? found : told(parseExactly)) };
  }

  async members(store, { path = "", after, limit }, signal) {
    const names = [];
    const prefix = prefixOf(path);
    for await (const name of store.names(prefix, after ? `${prefix}${after}0` : prefix, limit)) { // "0" comes after "/"
      signal?.throwIfAborted();
      if (names.push(name) > limit) break;
    }
    const nodes = await Promise.all(names.slice(0, limit).map(async (name) => {
      const each = prefixOf(path) + name;
      try {
        const { attributes, codecs, fill_value, ...told } = await this.told(store, each, await this.described(store, each));
        return told;
      } catch (error) {
        return { path: each, kind: "unknown", fault: error.message }; // the others are shown
      }
    }));
    signal?.throwIfAborted();
    return { commit: store.stored.header.id, nodes, next: names.length > limit ? names[limit - 1] : null };
  }

  async node(store, path) {
    const described = await this.described(store, path);
    if (!described && path && !(await hasKeys(store.pages(prefixOf(path))))) throw missing(path);
    const { document, attributes } = described?.exactly() ?? {};
    const exact = { attributes: cut(attributes ?? {}), fill_value: cut(document?.fill_value) };
    return { commit: store.stored.header.id, ...(await this.told(store, path, described)), document: ofValues(described?.document ?? {}), exact };
  }

  async told(store, path, described) {
    const document = described?.document ?? {};
    const node = { path, name: path.split("/").at(-1), kind: described?.kind ?? "group", zarr_format: cut(document.zarr_format), attributes: cut(described?.attributes ?? {}) };
    if (node.kind !== "array") {
      let children = 0;
      for await (const _ of store.names(prefixOf(path), prefixOf(path), COUNTED)) if (++children > COUNTED) break;
      return { ...node, children: Math.min(children, COUNTED), hasMore: children > COUNTED };
    }
    const { shape, chunks, shards, dtype, codecs } = layoutOf(document);
    const itemsize = sizeOf(dtype, document.data_type?.configuration?.length_bytes);
    const dimensions = document.dimension_names ?? node.attributes._ARRAY_DIMENSIONS;
    const dimension_names = Array.isArray(dimensions) ? dimensions.slice(0, MOST_DIMENSIONS).map((each) => (typeof each === "string" ? each.slice(0, MOST_NAME) : null)) : null;
    return {
      ...node, shape, chunks, shards, dtype: dtype.slice(0, MOST_NAME), itemsize, codecs: cut(codecs), fill_value: cut(document.fill_value), dimension_names,
      logical_bytes: itemsize === null || !shape ? null : itemsize * product(shape),
    };
  }

  /** The number of keys, bytes, and chunks or members, at and below a path. */
  async measured(store, path, signal) {
    const described = await this.described(store, path);
    const grid = described?.kind === "array" ? gridOf(described.document) : null;
    const prefix = prefixOf(path);
    let [stored_bytes, keys, present, children, last] = [0, 0, 0, 0, ""];
    for await (const page of store.pages(prefix, prefix, { signal })) {
      keys += page.length;
      for (const [key, { length }] of page) {
        stored_bytes += length;
        if (grid) present += grid.placeOf(key.slice(prefix.length)) ? 1 : 0;
        else if (!key.startsWith(last) || !last) {
          last = key.slice(0, key.indexOf("/", prefix.length) + 1);
          if (last) children += 1;
        }
      }
    }
    return { stored_bytes, keys, ...(grid ? { chunks_stored: { present, total: product(grid.counts) } } : { children, hasMore: false }) };
  }

  /** The stored bytes and keys of each array, and of what belongs to none, the largest first. */
  async usage(store, signal) {
    const kinds = new Map(); // of paths
    const kindOf = (path) => kinds.get(path) ?? kinds.set(path, this.described(store, path).then((found) => found?.kind ?? null, () => "unknown")).get(path);
    const nodeOf = async (key) => {
      for (let end = key.lastIndexOf("/"); end > 0; end = key.lastIndexOf("/", end - 1)) if (await kindOf(key.slice(0, end))) return key.slice(0, end);
      return "";
    };
    const arrays = new Map();
    let [path, below] = ["", "\0"];
    for await (const page of store.pages("", "", { signal })) {
      const named = page.map(([key]) => aboveOf(key)).filter(([, name]) => isDocument(name));
      await Promise.all(named.map(([above]) => kindOf(above))); // which are asked for at once
      for (const [key, { length }] of page) {
        if (!key.startsWith(below)) {
          path = await nodeOf(key);
          below = (await kindOf(path)) === "array" ? prefixOf(path) : "\0";
        }
        if (!arrays.has(path)) arrays.set(path, { path, keys: 0, bytes: 0 });
        const one = arrays.get(path);
        one.keys += 1;
        one.bytes += length;
      }
    }
    const found = [...arrays.values()].sort((one, other) => other.bytes - one.bytes);
    return { commit: store.stored.header.id, total: found.reduce((sum, { bytes }) => sum + bytes, 0), arrays: found.slice(0, LISTED), many: found.length };
  }

  /** The commit that has written each chunk in a part of an array's grid. A cell may cover several: it names the last one. */
  async chunks(store, path, { from, shape }, history, signal) {
    const described = await this.described(store, path);
    if (described?.kind !== "array") throw missing(path);
    const grid = gridOf(described.document);
    if (!grid) throw new Error(IMPOSSIBLE);
    const low = (from ?? grid.counts.map(() => 0)).map((each, i) => Math.min(each, grid.counts[i]));
    const size = (shape ?? grid.counts).map((each, i) => Math.min(each, grid.counts[i] - low[i]));
    if (product(size) > MOST_CHUNKS) throw new Error(`There are more than ${MOST_CHUNKS} chunks: a map shows fewer`);
    const step = size.map(() => 1);
    const cellsOf = () => size.map((each, i) => Math.ceil(each / step[i]));
    while (product(cellsOf()) > MOST_CELLS) {
      const cells = cellsOf();
      step[cells.indexOf(Math.max(...cells))] *= 2;
    }
    const cells = cellsOf();
    const seqs = new Float64Array(product(cells));
    const prefix = prefixOf(path) + grid.prefixOf(low.slice(0, size.findIndex((each) => each !== 1)));
    for await (const page of store.pages(prefix, prefix, { signal })) {
      for (const [key, { seq }] of page) {
        const place = grid.placeOf(key.slice(prefixOf(path).length));
        if (!place || place.some((each, i) => each < low[i] || each >= low[i] + size[i])) continue;
        const at = place.reduce((sum, each, i) => sum * cells[i] + Math.floor((each - low[i]) / step[i]), 0);
        seqs[at] = Math.max(seqs[at], seq);
      }
    }
    const found = [...new Set(seqs)].filter(Boolean).sort((one, other) => other - one);
    const there = new Map(found.map((seq, at) => [seq, at]));
    const known = await Promise.all(found.slice(0, NAMED).map((seq) => history.bySeq(store.stored, seq)));
    return {
      commit: store.stored.header.id, grid: grid.counts, from: low, shape: cells, step, seqs: found,
      commits: known.map((each) => each && history.told(each)), // null: no longer kept
      cells: Int32Array.from(seqs, (seq) => there.get(seq) ?? -1), this: there.get(store.stored.header.seq) ?? -1,
    };
  }
}

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

/** A document that is no object says nothing. */
function objectOf(text, parsed) {
  try {
    const found = parsed(text);
    return isObject(found) ? found : {};
  } catch (error) {
    if (error instanceof SyntaxError) return {};
    throw error;
  }
}

const missing = (path) => new NotFoundError(`there is no node ${JSON.stringify(path || "/")} in this commit`);

export async function hasKeys(pages) {
  for await (const page of pages) if (page.length) return true;
  return false;
}

const areLengths = (list, least) => Array.isArray(list) && list.length <= MOST_DIMENSIONS && list.every((each) => Number.isSafeInteger(each) && each >= least);

/** What a document says of values; null: more than an array needs. */
function ofValues({ attributes, consolidated_metadata, ...document }) {
  return JSON.stringify(document).length <= MOST_OF_ARRAY ? document : null;
}

/** How an array is stored, by its document. A document may say anything: `shape` is null if no array has these lengths. */
function layoutOf(document) {
  const shape = areLengths(document.shape, 0) ? document.shape : null;
  const list = (each) => (Array.isArray(each) ? each.filter(Boolean) : []);
  const lengths = (each) => (Array.isArray(each) && each.length <= MOST_DIMENSIONS && each.every(Number.isFinite) ? each : null);
  if (document.zarr_format === 2 || "dtype" in document) {
    const codecs = [...list(document.filters), ...(document.compressor ? [document.compressor] : [])];
    return { shape, chunks: lengths(document.chunks), shards: null, dtype: typeof document.dtype === "string" ? document.dtype : "structured", codecs };
  }
  const chunks = lengths(document.chunk_grid?.configuration?.chunk_shape) ?? shape;
  const sharding = list(document.codecs).find((each) => each?.name === "sharding_indexed")?.configuration;
  const dtype = typeof document.data_type === "string" ? document.data_type : String(document.data_type?.name ?? "unknown");
  return { shape, chunks: sharding ? lengths(sharding.chunk_shape) : chunks, shards: sharding ? chunks : null, dtype, codecs: list(document.codecs) };
}

/** The bytes of an element; null: not known. What a document gives counts only where the type does not say it. */
function sizeOf(dtype, given) {
  if (dtype === "bool") return 1;
  const [, bits] = /^(?:u?int|float|complex|r)(\d+)$/.exec(dtype) ?? [];
  if (bits) return Number(bits) / 8;
  const [, kind, bytes] = /^[<>|]([a-zA-Z])(\d+)/.exec(dtype) ?? [];
  if (bytes) return Number(bytes) * (kind === "U" ? 4 : 1);
  if (/^numpy\.(datetime|timedelta)64$/.test(dtype)) return 8;
  return Number.isSafeInteger(given) && given >= 0 ? given : null;
}

/** The grid of an array's stored chunks: how many there are along each axis, and the place that a key names. null: no array has such a grid. */
export function gridOf(document) {
  const { shape, chunks, shards } = layoutOf(document);
  const lengths = shards ?? chunks;
  if (!shape || !areLengths(lengths, 1) || lengths.length !== shape.length) return null;
  const counts = shape.map((length, i) => Math.ceil(length / lengths[i]));
  const encoding = document.chunk_key_encoding ?? { name: "v2", configuration: { separator: document.dimension_separator ?? "." } };
  const isDefault = encoding.name === "default";
  const separator = encoding.configuration?.separator === "/" || encoding.configuration?.separator === "." ? encoding.configuration.separator : isDefault ? "/" : ".";
  const placeOf = (key) => {
    let parts = key.split(separator);
    if (isDefault) parts = parts[0] === "c" ? parts.slice(1) : [""];
    else if (!counts.length) parts = key === "0" ? [] : [""];
    return parts.length === counts.length && parts.every((part, i) => /^\d+$/.test(part) && Number(part) < counts[i]) ? parts.map(Number) : null;
  };
  /** What the keys of chunks begin with that have these first indices. */
  const prefixOf = (indices) => [...(isDefault && counts.length ? ["c"] : []), ...indices].map((each) => `${each}${separator}`).join("");
  return { shape, counts, lengths, placeOf, prefixOf };
}
