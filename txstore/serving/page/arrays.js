// Reads arrays: chunk by chunk through zarrita, from plain Zarr over HTTP or from the files of the repository; or as a
// small picture from the server.

import { api, files, zarrAddress } from "./api.js";
import { EVERYTHING, part } from "./words.js";

export const AT_ONCE = 32; // requests
export const MANY_CHUNKS = 256;
export const MANY_BYTES = 16 << 20;
const MOST_CHUNKS = 20_000;
const MOST_BYTES = 512 << 20;
const MOST_ALONG = 1 << 17; // chunks along an axis, of a picture that the server makes
const ALONE = 4; // most chunks of a shard that are requested one by one

// --- requests, at most AT_ONCE at the same time

let running = 0;
const queue = [];

async function slot() {
  if (running >= AT_ONCE) await new Promise((resolve) => queue.push(resolve));
  else running += 1;
}

function release() {
  const next = queue.shift();
  if (next) next();
  else running -= 1;
}

/**
 * A store of zarrita: the keys below one address. zarrita passes the options of a call on unchanged: `found` in them
 * tells afterwards whether the chunk had a value. (The index of a shard does not count as one.)
 */
class Below {
  bytes = 0;
  #whole = null; // shards that were fetched whole, by key; null: the store requests ranges of them

  /** Fetch each shard once and whole: most of its chunks are wanted. */
  readWhole() {
    this.#whole = new Map();
  }

  /** @param read takes a key and a range: undefined, {offset, length} or {suffixLength}; returns the bytes, or undefined */
  constructor(read) {
    this.read = read;
  }

  get = (key, options) => this.#fetch(key, options);

  getRange = async (key, range, options) => {
    const { offset, length, suffixLength } = range;
    if (this.#whole) {
      if (!this.#whole.has(key)) this.#whole.set(key, this.#fetch(key, { signal: options?.signal }));
      const shard = await this.#whole.get(key);
      if (shard && options && suffixLength === undefined) options.found = true;
      return shard?.slice(suffixLength === undefined ? offset : -suffixLength, suffixLength === undefined ? offset + length : undefined);
    }
    return this.#fetch(key, options, range);
  };

  async #fetch(key, options, range) {
    options?.signal?.throwIfAborted();
    await slot();
    try {
      if (this.bytes > MOST_BYTES) throw new Error(`more than ${MOST_BYTES} bytes would be read`);
      const value = await this.read(key, range, options?.signal);
      if (!value) return undefined;
      this.bytes += value.length;
      if (options && range?.suffixLength === undefined) options.found = true;
      return value;
    } finally {
      release();
    }
  }
}

/** Reads the keys below an address, over HTTP. */
function overHttp(base) {
  return async (key, range, signal) => {
    const headers = range && { Range: range.suffixLength === undefined ? `bytes=${range.offset}-${range.offset + range.length - 1}` : `bytes=-${range.suffixLength}` };
    const response = await fetch(base + key.slice(1), { signal, headers, credentials: "same-origin" });
    if (response.status === 404) return undefined;
    if (!response.ok || (range && response.status !== 206)) throw new Error(`the server answered ${response.status} for ${key}`);
    const length = Number(response.headers.get("Content-Length"));
    if (length > MOST_BYTES) throw new Error(`more than ${MOST_BYTES} bytes would be read`);
    return new Uint8Array(await response.arrayBuffer());
  };
}

/** Reads the keys below a path of a commit, from the files of the repository. */
async function fromFiles(commit, path) {
  const store = await api.store(commit);
  const below = path ? `${path}/` : "";
  return (key, range, signal) => (range ? store.getRange(below + key.slice(1), range, { signal }) : store.get(below + key.slice(1), { signal }));
}

let zarrita = null;

/** Open an array at a commit. Raises if zarrita does not support its data type or codecs. */
export async function openArray(commit, node, signal) {
  zarrita ??= Promise.all([import("./vendor/zarrita.js"), import("./codecs.js")]);
  const [{ open, root }] = await zarrita;
  const store = new Below(files === null ? overHttp(zarrAddress(commit, node.path)) : await fromFiles(commit, node.path));
  const array = await (node.zarr_format === 2 ? open.v2 : open.v3)(root(store), { kind: "array", signal });
  const lengths = [...array.shape, ...array.chunks, ...(node.shards ?? [])];
  if (!lengths.every((each) => Number.isSafeInteger(each) && each > 0) || String(array.chunks) !== String(node.chunks)) throw new Error("its document has impossible lengths");
  return { array, store };
}

// --- selections: for each dimension an index, or [start, stop]

export function parseSelection(text, shape) {
  if (!text) return null;
  const parts = text.split(",");
  if (parts.length !== shape.length) return null;
  const clip = (value, length) => Math.min(Math.max(0, value), length);
  const found = parts.map((each, i) => {
    if (each === EVERYTHING) return [0, shape[i]];
    const [start, stop] = each.split(":").map(Number);
    return stop === undefined ? clip(start, Math.max(0, shape[i] - 1)) : [clip(start, shape[i]), clip(stop, shape[i])];
  });
  const isGood = found.every((each) => (Array.isArray(each) ? Number.isInteger(each[0]) && each[0] < each[1] : Number.isInteger(each)));
  return isGood && found.filter(Array.isArray).length <= 2 ? found : null;
}

export const writeSelection = (selection) => selection.map(part).join(",");

/** The whole of the last two dimensions, or as much as the server makes pictures of, and the first of the others. */
export function firstSelection({ shape, chunks }) {
  return shape.map((length, i) => (i >= shape.length - 2 ? [0, Math.min(length, MOST_ALONG * Math.max(1, chunks?.[i] ?? length))] : 0));
}

/** As Python writes it. */
export const pythonSelection = (selection, shape) =>
  selection.map((each, i) => (Array.isArray(each) ? (each[0] === 0 && each[1] === shape[i] ? ":" : `${each[0]}:${each[1]}`) : each)).join(", ");

/** The number of chunks that a selection touches, and of their bytes. */
export function cost(node, selection) {
  const lengths = node.chunks ?? node.shape;
  let chunks = 1;
  let elements = 1;
  selection.forEach((each, i) => {
    const length = Math.max(1, lengths[i]);
    const [start, stop] = Array.isArray(each) ? each : [each, each + 1];
    chunks *= Math.floor((stop - 1) / length) - Math.floor(start / length) + 1;
    elements *= stop - start;
  });
  return { chunks, bytes: chunks * lengths.reduce((a, b) => a * Math.max(1, b), 1) * itemsize(node), elements };
}

/** Whether this browser can hold all that a selection touches. */
export function canReadAll(node, selection) {
  const { chunks, bytes } = cost(node, selection);
  return chunks <= MOST_CHUNKS && bytes <= MOST_BYTES;
}

const itemsize = (node) => Number(/^\D*(\d+)$/.exec(String(node.dtype))?.[1] ?? 64) / 8;

// --- reading

/** The chunks that a selection touches, as places in the grid. */
function* chunksOf(selection, lengths, at = []) {
  const i = at.length;
  if (i === selection.length) {
    yield at;
    return;
  }
  const [start, stop] = Array.isArray(selection[i]) ? selection[i] : [selection[i], selection[i] + 1];
  for (let place = Math.floor(start / lengths[i]); place * lengths[i] < stop; place++) yield* chunksOf(selection, lengths, [...at, place]);
}

/** Copy the selected part of a chunk to its place. Returns the place: for each kept dimension [start, stop]. */
function copyChunk(chunk, at, lengths, selection, shape, out, convert) {
  const { data, stride } = chunk;
  const get = typeof data.get === "function" ? (i) => data.get(i) : (i) => data[i];
  let base = 0;
  const kept = []; // [first in the chunk, how many, stride in the chunk, first in the output]
  selection.forEach((each, i) => {
    const begins = at[i] * lengths[i];
    if (!Array.isArray(each)) {
      base += (each - begins) * stride[i];
      return;
    }
    const first = Math.max(each[0], begins);
    const last = Math.min(each[1], begins + lengths[i]);
    kept.push([first - begins, last - first, stride[i], first - each[0]]);
  });
  while (kept.length < 2) kept.unshift([0, 1, 0, 0]);
  const [[row0, rows, rowStride, toRow], [column0, columns, columnStride, toColumn]] = kept;
  const width = shape.length ? shape[shape.length - 1] : 1;
  for (let row = 0; row < rows; row++) {
    let from = base + (row0 + row) * rowStride + column0 * columnStride;
    let to = (toRow + row) * width + toColumn;
    for (let column = 0; column < columns; column++, from += columnStride) out[to++] = convert(get(from));
  }
  return [[toRow, toRow + rows], [toColumn, toColumn + columns]];
}

const shapeOf = (selection) => selection.filter(Array.isArray).map(([start, stop]) => stop - start);

/**
 * Read a selection in this browser. Returns {values, shape, step, missing, ...}: values in the order of C, as floats, or
 * as they are where they are no numbers. `missing` are the places that no chunk is stored for: the fill value.
 */
export async function readHere(commit, node, selection, signal, progress) {
  const { array, store } = await openArray(commit, node, signal);
  const shape = shapeOf(selection);
  const total = shape.reduce((a, b) => a * b, 1);
  const isNumeric = /^(bool|u?int\d+|float\d+)$/.test(array.dtype);
  const values = isNumeric ? new Float64Array(total) : new Array(total);
  const missing = [];
  const wanted = [...chunksOf(selection, array.chunks)];
  if (node.shards && wanted.length > ALONE * [...chunksOf(selection, node.shards)].length) store.readWhole();
  let done = 0;
  await Promise.all(wanted.map(async (at) => {
    const options = { signal, found: false };
    const chunk = await array.getChunk(at, options);
    const place = copyChunk(chunk, at, array.chunks, selection, shape, values, isNumeric ? Number : (value) => value);
    if (!options.found) missing.push(place);
    progress?.(++done, wanted.length);
  }));
  return { values, shape, step: shape.map(() => 1), missing, missingChunks: missing.length, chunks: wanted.length, bytes: store.bytes, isNumeric, by: "browser" };
}

/** Have the server read a selection: a picture of it that is as small as a screen needs. */
export async function readThere(commit, node, selection, signal) {
  const response = await api.preview(commit, node.path, writeSelection(selection), signal);
  const { chunks } = cost(node, selection);
  if (response.headers.get("Content-Type") === "application/json") {
    const told = await response.json(); // no numbers: the first values as texts
    return { ...told, step: told.shape.map(() => 1), missing: [], missingChunks: null, chunks, bytes: told.values.join("").length, isNumeric: false, by: "server" };
  }
  const numbers = (name, mark = ",") => (response.headers.get(name) || "").split(mark).filter(Boolean).map(Number);
  const values = new Float32Array(await response.arrayBuffer());
  const [missingChunks = null, looked = chunks] = numbers("X-Missing-Chunks", "/"); // `looked`: the number of chunks that the server checked
  return {
    values, shape: numbers("X-Shape"), step: numbers("X-Step"), missing: [], missingChunks, looked,
    chunks, bytes: values.byteLength, isNumeric: true, by: "server",
  };
}

/** Read a selection in the way that suits it: `{values, ...}`, with `why` where the server had to help. */
export async function read(commit, node, selection, { signal, progress, everything = false }) {
  const { chunks, bytes } = cost(node, selection);
  const isLarge = chunks > MANY_CHUNKS || bytes > MANY_BYTES;
  if (!everything && isLarge && (files === null || !canReadAll(node, selection))) {
    const found = await readThere(commit, node, selection, signal);
    return { ...found, why: "large" };
  }
  try {
    return await readHere(commit, node, selection, signal, progress);
  } catch (error) {
    if (error.name === "AbortError" || signal?.aborted) throw error;
    const found = await readThere(commit, node, selection, signal);
    return { ...found, why: "codec", error };
  }
}

/** Figures of what was read. */
export function statistics(values, bins = 48) {
  let min = Infinity;
  let max = -Infinity;
  let sum = 0;
  let finite = 0;
  let nan = 0;
  for (const value of values) {
    if (Number.isFinite(value)) {
      if (value < min) min = value;
      if (value > max) max = value;
      sum += value;
      finite += 1;
    } else if (Number.isNaN(value)) nan += 1;
  }
  const histogram = new Array(bins).fill(0);
  const scale = max > min ? bins / (max - min) : 0;
  if (finite) for (const value of values) if (Number.isFinite(value)) histogram[Math.min(bins - 1, Math.floor((value - min) * scale))] += 1;
  return finite ? { min, max, mean: sum / finite, finite, nan, infinite: values.length - finite - nan, histogram } : { finite, nan, infinite: values.length - nan, histogram };
}
