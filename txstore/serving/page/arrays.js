// Reads arrays: what is selected of them, or some of its values. The worker of `api.js` decodes it.

import { api } from "./api.js";
import { IMPOSSIBLE } from "./words.js";

const MANY_CHUNKS = 256; // that are read without being asked for: of more, the page shows some values
const MANY_BYTES = 16 << 20;
const POINTS = 512; // values of an overview, along each of two dimensions
const POINTS_OF_LINE = 4096;
const OVERVIEW = [4096, 64 << 20]; // chunks that an overview is made of, and bytes of them
const GLANCE = [1024, 16 << 20]; // and one that comes first, so that there is something to see
const MOST_CHUNKS = 10_000;
const MOST_BYTES = 256 << 20; // read, and decoded
const MOST_OF_CHUNK = 64 << 20;
const MOST_VALUES = 4 << 20; // shown: each takes sixteen bytes, those of its pixel among them
const MOST_ALONG = 1 << 17; // chunks along a dimension
export const TEXTS = 200; // values that are shown where they are no numbers

// --- selections: for each dimension an index, or [start, stop]

export function parseSelection(text, shape) {
  if (!text) return null;
  const parts = text.split(",");
  if (parts.length !== shape.length) return null;
  const clip = (value, length) => Math.min(Math.max(0, value), length);
  const found = parts.map((each, i) => {
    if (each === ":") return [0, shape[i]];
    const [start, stop] = each.split(":").map(Number);
    return stop === undefined ? clip(start, Math.max(0, shape[i] - 1)) : [clip(start, shape[i]), clip(stop, shape[i])];
  });
  const isGood = found.every((each) => (Array.isArray(each) ? Number.isInteger(each[0]) && each[0] < each[1] : Number.isInteger(each)));
  return isGood && found.filter(Array.isArray).length <= 2 ? found : null;
}

export const writeSelection = (selection) => selection.map((each) => [each].flat().join(":")).join(",");

/** The whole of the last two dimensions, or as much as an overview can be of, and the first of the others. */
export function firstSelection({ shape, chunks }) {
  return shape.map((length, i) => (i >= shape.length - 2 ? [0, Math.min(length, MOST_ALONG * Math.max(1, chunks?.[i] ?? length))] : 0));
}

/** As Python writes it. */
export const pythonSelection = (selection, shape) =>
  selection.map((each, i) => (Array.isArray(each) ? (each[0] === 0 && each[1] === shape[i] ? ":" : `${each[0]}:${each[1]}`) : each)).join(", ");

/** The chunks that a selection touches where steps are taken, and bytes of them. */
function cost(node, selection, steps = []) {
  const along = selection.map((each, i) => {
    if (!Array.isArray(each)) return 1;
    const [start, stop] = each;
    return Math.min(Math.floor((stop - 1) / node.chunks[i]) - Math.floor(start / node.chunks[i]) + 1, Math.ceil((stop - start) / (steps[i] ?? 1)));
  });
  const chunks = along.reduce((a, b) => a * b, 1);
  return { chunks, bytes: chunks * node.chunks.reduce((a, b) => a * b, node.itemsize ?? 8) };
}

/** How many values are selected. */
export const total = (selection) => selection.reduce((all, each) => all * (Array.isArray(each) ? each[1] - each[0] : 1), 1);

/** Whether this browser can hold all that a selection touches, and the picture of it. */
export function canReadAll(node, selection) {
  const { chunks, bytes } = cost(node, selection);
  return chunks <= MOST_CHUNKS && bytes <= MOST_BYTES && total(selection) <= MOST_VALUES;
}

/** The steps along each dimension by which few chunks are read, and as many values as a screen shows. */
function stepsOf(node, selection, [mostChunks, mostBytes]) {
  const ranges = selection.filter(Array.isArray).length;
  for (let points = ranges > 1 ? POINTS : POINTS_OF_LINE; ; points = Math.floor(points / 2)) {
    const steps = selection.map((each) => (Array.isArray(each) ? Math.ceil((each[1] - each[0]) / points) : 1));
    const { chunks, bytes } = cost(node, selection, steps);
    if (points === 1 || (chunks <= mostChunks && bytes <= mostBytes)) return steps;
  }
}

const isNumeric = ({ dtype }) => /^(bool|u?int\d+|float\d+|complex\d+|numpy\.(datetime|timedelta)64|[<>|][biufcmM]\d.*)$/.test(dtype);

/** The first values of a selection: of texts no more are shown. */
function firstOf(selection) {
  let left = TEXTS;
  return selection.toReversed().map((each) => {
    if (!Array.isArray(each)) return each;
    const [start, stop] = [each[0], Math.min(each[1], each[0] + Math.max(1, left))];
    left = Math.floor(left / (each[1] - each[0]));
    return [start, stop];
  }).reverse();
}

/**
 * Read a selection, or an overview of it: {values, shape, step, missing, ...}. Values come in the order of C, as floats, or as they are where they are no
 * numbers. `missing` are the places that no chunk is stored for. At a glance, an overview is coarser; null: it would not be.
 */
export async function read(commit, node, given, { signal, progress, everything = false, isGlance = false }) {
  const [lengths, dimensions] = [[...node.shape, ...(node.chunks ?? []), ...(node.shards ?? [])], node.shape.length];
  if (!lengths.every((each) => Number.isSafeInteger(each) && each > 0) || lengths.length !== dimensions * (node.shards ? 3 : 2)) throw new Error(IMPOSSIBLE);
  if (!node.document) throw new Error("Its document says more of its values than a picture needs.");
  const selection = isNumeric(node) ? given : firstOf(given);
  const { chunks, bytes } = cost(node, selection);
  const ofChunk = bytes / chunks;
  if (ofChunk > MOST_OF_CHUNK) throw new Error(`A chunk has ${ofChunk} bytes: that is too large for a picture.`);
  const isOverview = !canReadAll(node, selection) || (!everything && (chunks > MANY_CHUNKS || bytes > MANY_BYTES));
  const steps = isOverview ? stepsOf(node, selection, isGlance ? GLANCE : OVERVIEW) : selection.map(() => 1);
  if (isGlance && (!isOverview || String(steps) === String(stepsOf(node, selection, OVERVIEW)))) return null;
  const question = { document: node.document, chunkShape: node.chunks, selection: selection.map((each, i) => (Array.isArray(each) ? [...each, steps[i]] : each)), most: MOST_VALUES };
  const found = await api.read(commit, node.path, question, MOST_BYTES, signal, progress);
  return { ...found, step: steps.filter((_, i) => Array.isArray(selection[i])), missingChunks: found.missing.length, isOverview, isGlance };
}
