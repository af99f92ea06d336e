// Groups and arrays, from the keys of a commit: the members of a group, one node, and which commit has written each chunk.

const MEMBERS = 50; // in an answer: each takes requests
const COUNTED = 100; // members of a member
const DOCUMENTS = ["zarr.json", ".zarray", ".zgroup"];
const MOST_CELLS = 1 << 16;
const MOST_CHUNKS = 1 << 20; // whose entries are read for a map
const NAMED = 64; // commits of a map that are looked for

const text = (bytes) => (bytes ? new TextDecoder().decode(bytes) : null);
const prefixOf = (path) => (path ? `${path}/` : "");

const missing = (path) => Object.assign(new Error(`there is no node ${JSON.stringify(path || "/")} in this commit`), { name: "NotFoundError" });

export class Nodes {
  constructor(repository) {
    this.repository = repository;
  }

  /** The first names below a path from one on, as directories of keys. */
  async *children(store, path, after) {
    const prefix = prefixOf(path);
    let start = after ? `${prefix}${after}0` : prefix; // "0" comes after "/"
    for (;;) {
      const { value, done } = await store.entries(prefix, start).next();
      if (done) return;
      const [name, ...rest] = value[0].slice(prefix.length).split("/");
      if (rest.length) yield name;
      // Keys between `name` and `name/` begin with that name and a sign before the slash.
      start = rest.length ? `${prefix}${name}0` : `${prefix}${name}\0`;
    }
  }

  /** The node at a path: its document, and what it says; null: nothing is there. */
  async described(store, path) {
    const prefix = prefixOf(path);
    const [three, array, group] = await Promise.all(DOCUMENTS.map(async (name) => text(await store.get(prefix + name))));
    if (three !== null) {
      const document = JSON.parse(three);
      return { document, attributes: document.attributes ?? {}, kind: document.node_type === "array" ? "array" : "group" };
    }
    if (array === null && group === null) return null;
    const attributes = JSON.parse(text(await store.get(`${prefix}.zattrs`)) ?? "{}");
    return { document: JSON.parse(array ?? group), attributes, kind: array === null ? "group" : "array" };
  }

  async members(stored, { path = "", after, limit = MEMBERS }, signal) {
    const store = this.repository.storeOf(stored);
    const own = await this.described(store, path);
    if (own?.kind === "array") throw missing(path);
    const most = Math.min(limit, MEMBERS);
    const names = [];
    for await (const name of this.children(store, path, after)) {
      signal?.throwIfAborted();
      if (names.push(name) > most) break;
    }
    const nodes = await Promise.all(names.slice(0, most).map(async (name) => {
      const each = prefixOf(path) + name;
      return this.told(store, each, await this.described(store, each));
    }));
    return { commit: stored.header.id, nodes, next: names.length > most ? names[most - 1] : null };
  }

  async node(stored, path) {
    const store = this.repository.storeOf(stored);
    const described = await this.described(store, path);
    if (!described && path && (await store.entries(prefixOf(path), prefixOf(path)).next()).done) throw missing(path);
    const told = await this.told(store, path, described);
    return { commit: stored.header.id, ...told, document: described?.document ?? null, constraints: [], views: [] };
  }

  async told(store, path, described) {
    const document = described?.document ?? {};
    const node = { path, name: path.split("/").at(-1), kind: described?.kind ?? "group", zarr_format: document.zarr_format, attributes: described?.attributes ?? {} };
    if (node.kind !== "array") {
      let children = 0;
      for await (const _ of this.children(store, path)) if (++children >= COUNTED) break;
      return { ...node, children };
    }
    const { chunks, shards, dtype, codecs } = layoutOf(document);
    const itemsize = sizeOf(dtype);
    const count = document.shape.reduce((a, b) => a * b, 1);
    return {
      ...node, shape: document.shape, chunks, shards, dtype, codecs, fill_value: document.fill_value,
      dimension_names: document.dimension_names ?? node.attributes._ARRAY_DIMENSIONS ?? null,
      logical_bytes: itemsize === null ? null : itemsize * count,
    };
  }

  /** The number of keys and bytes at and below a path. */
  async measured(stored, path, signal) {
    const store = this.repository.storeOf(stored);
    const described = await this.described(store, path);
    const grid = described?.kind === "array" ? gridOf(described.document) : null;
    let [stored_bytes, keys, present] = [0, 0, 0];
    for await (const [key, entry] of store.entries(prefixOf(path), prefixOf(path), { signal })) {
      stored_bytes += entry.length;
      keys += 1;
      if (grid && grid.placeOf(key.slice(prefixOf(path).length))) present += 1;
    }
    return { stored_bytes, keys, ...(grid && { chunks_stored: { present, total: grid.counts.reduce((a, b) => a * b, 1) } }) };
  }

  /** The commit that has written each chunk in a part of an array's grid. A cell may cover several: it names the last one. */
  async chunks(stored, path, { from, shape }, history, signal) {
    const store = this.repository.storeOf(stored);
    const described = await this.described(store, path);
    if (described?.kind !== "array") throw missing(path);
    const grid = gridOf(described.document);
    const { counts } = grid;
    if (counts.reduce((a, b) => a * b, 1) > MOST_CHUNKS) throw new Error(`${path} has more than ${MOST_CHUNKS} chunks: \`txstore serve\` draws a map of them`);
    const given = (list, otherwise) => (list ? list.split(",").map(Number) : otherwise);
    const low = given(from, counts.map(() => 0)).map((each, i) => Math.min(each, counts[i]));
    const size = given(shape, counts).map((each, i) => Math.min(each, counts[i] - low[i]));
    const step = counts.map(() => 1);
    const cellsOf = () => size.map((each, i) => Math.ceil(each / step[i]));
    while (cellsOf().reduce((a, b) => a * b, 1) > MOST_CELLS) {
      const cells = cellsOf();
      step[cells.indexOf(Math.max(...cells))] *= 2;
    }
    const cells = cellsOf();
    const seqs = new Float64Array(cells.reduce((a, b) => a * b, 1));
    for await (const [key, entry] of store.entries(prefixOf(path), prefixOf(path), { signal })) {
      const place = grid.placeOf(key.slice(prefixOf(path).length));
      if (!place || place.some((each, i) => each < low[i] || each >= low[i] + size[i])) continue;
      const at = place.reduce((sum, each, i) => sum * cells[i] + Math.floor((each - low[i]) / step[i]), 0);
      seqs[at] = Math.max(seqs[at], entry.seq);
    }
    const found = [...new Set(seqs)].filter(Boolean).sort((one, other) => other - one);
    const known = await history.bySeq(stored, found.slice(0, NAMED));
    const there = new Map(found.map((seq, at) => [seq, at]));
    return {
      commit: stored.header.id, grid: counts, from: low, shape: cells, step,
      commits: found.map((seq) => {
        const each = known.get(seq);
        if (!each) return null;
        const { id, message, time } = this.repository.commitOf(history.note(each));
        return { id, message, time: time.toISOString() };
      }),
      cells: [...seqs].map((seq) => there.get(seq) ?? -1),
      this: there.get(stored.header.seq) ?? -1,
    };
  }
}

/** How an array is stored, by its document. */
function layoutOf(document) {
  if (document.zarr_format === 2 || "dtype" in document) {
    const codecs = [...(document.filters ?? []), ...(document.compressor ? [document.compressor] : [])];
    return { chunks: document.chunks, shards: null, dtype: Array.isArray(document.dtype) ? "structured" : document.dtype, codecs };
  }
  const outer = document.chunk_grid?.configuration?.chunk_shape;
  const chunks = Array.isArray(outer) ? outer : document.shape;
  const sharding = (document.codecs ?? []).find(({ name }) => name === "sharding_indexed")?.configuration;
  const dtype = typeof document.data_type === "string" ? document.data_type : document.data_type?.name ?? "unknown";
  return { chunks: sharding?.chunk_shape ?? chunks, shards: sharding ? chunks : null, dtype, codecs: document.codecs ?? [] };
}

function sizeOf(dtype) {
  if (dtype === "bool") return 1;
  const [, bits] = /^(?:u?int|float|complex|r)(\d+)$/.exec(dtype) ?? [];
  if (bits) return Number(bits) / 8;
  const [, kind, bytes] = /^[<>|]([a-zA-Z])(\d+)/.exec(dtype) ?? [];
  return bytes ? Number(bytes) * (kind === "U" ? 4 : 1) : null;
}

/** The grid of an array's stored chunks: how many there are along each axis, and the place that a key names. */
export function gridOf(document) {
  const { chunks, shards } = layoutOf(document);
  const lengths = shards ?? chunks;
  const counts = document.shape.map((length, i) => (lengths[i] ? Math.ceil(length / lengths[i]) : 0));
  const encoding = document.chunk_key_encoding ?? { name: "v2", configuration: { separator: document.dimension_separator ?? "." } };
  const separator = encoding.configuration?.separator ?? (encoding.name === "default" ? "/" : ".");
  const placeOf = (key) => {
    let parts = key.split(separator);
    if (encoding.name === "default") parts = parts[0] === "c" ? parts.slice(1) : [""];
    else if (!counts.length) parts = key === "0" ? [] : [""];
    return parts.length === counts.length && parts.every((part, i) => /^\d+$/.test(part) && Number(part) < counts[i]) ? parts.map(Number) : null;
  };
  return { counts, lengths, placeOf };
}
