// Reads and decodes chunks. The worker loads this when values are asked for first.

import "./codecs.js";
import { statistics } from "./statistics.js";
import { open, root } from "./vendor/zarrita.js";
import { cut } from "./words.js";

const BATCH = 256; // chunks, and bytes of them, that are asked for at once, so that they come in few requests
const BATCH_BYTES = 8 << 20;
const MOST_TEXT = 200_000; // characters of all values that are no numbers
const NAT = -(2n ** 63n);

const listOf = (codecs) => (Array.isArray(codecs) ? codecs : []);
const shardingOf = ({ codecs }) => listOf(codecs).find((each) => each?.name === "sharding_indexed")?.configuration;

/** zarrita passes the options of a call on unchanged: `found` in them tells afterwards whether the chunk had a value. (The index of a shard does not count as one.) */
const storeOf = (document, valueOf) => {
  const isAtStart = shardingOf(document)?.index_location === "start";
  const get = async (key, options, range) => {
    if (key === `/${document.zarr_format === 2 ? ".zarray" : "zarr.json"}`) return new TextEncoder().encode(JSON.stringify(document));
    const index = range?.suffixLength;
    const bytes = await valueOf(key.slice(1), isAtStart && index !== undefined ? { offset: 0, length: index } : range);
    if (bytes && options && index === undefined) options.found = true;
    return bytes;
  };
  return { get, getRange: (key, range, options) => get(key, options, range) };
};

/** Refuse what zarrita would read as something else. */
function check(document, name) {
  const [sharding, outer] = [shardingOf(document), listOf(document.codecs)];
  if (sharding && outer.length > 1) throw new Error("its shards have codecs of their own");
  const both = [outer, listOf(sharding?.codecs)];
  if (both.some((codecs) => codecs.filter((each) => each?.name === "transpose").length > 1)) throw new Error("it is transposed twice");
  if (listOf(document.storage_transformers).length) throw new Error("it has storage transformers");
  for (const { id, dtype, astype = dtype } of [...listOf(document.filters), ...both.flat().map((each) => ({ id: each?.name, ...each?.configuration }))]) {
    const isSwapped = /^[<>]/.test(astype) && (astype[0] === ">") !== (document.dtype?.[0] === ">");
    if (isSwapped || (/delta$/.test(id) && astype !== dtype)) throw new Error(`its filter ${id} makes ${astype} of its values`);
  }
  const isBig = both.flat().some((each) => each?.configuration?.endian === "big");
  if (name === "complex128" && isBig) throw new Error("its byte order is big-endian");
  if (String(name).includes("v2:")) throw new Error("this is no data type"); // but a name of zarrita's own
}

/** The fill value as zarrita takes it: it knows no bits in hexadecimal digits, no text where there is none, and the largest integers are beyond their types when JSON was read. */
function fillOf(name, value) {
  if (!value && /^\|O$|^[<>|]U/.test(name)) return "";
  const [bits] = /(?<=^float)(16|32|64)$/.exec(name) ?? [];
  if (bits && typeof value === "string" && /^0x[0-9a-f]{1,16}$/i.test(value)) {
    const view = new DataView(new ArrayBuffer(8));
    view.setBigUint64(0, BigInt(value) << BigInt(64 - bits));
    const number = view[`getFloat${bits}`](0);
    return Number.isFinite(number) ? number : String(number);
  }
  if (/^int64$|^[<>|]i8$/.test(name) && value >= 2 ** 63) return String(2n ** 63n - 1n);
  if (/^uint64$|^[<>|]u8$/.test(name) && value >= 2 ** 64) return String(2n ** 64n - 1n);
  return value;
}

/** Data types that zarrita does not know, as others of the same bytes; what makes a number of an element, or null: it is a text, say; and what there is where no chunk is. */
function typed(document) {
  const name = document.zarr_format === 2 ? document.dtype : (document.data_type?.name ?? document.data_type);
  check(document, name);
  const bytes = document.data_type?.configuration?.length_bytes;
  const as = (v3, v2) => ({ ...document, attributes: {}, ...(document.zarr_format === 2 ? { dtype: v2 } : { data_type: v3 }) });
  const complex = /^complex(64|128)$|^[<|]c(8|16)$/.exec(name);
  if (complex) {
    const size = complex[1] ? complex[1] / 8 : Number(complex[2]);
    const parts = Array.isArray(document.fill_value) ? document.fill_value : [document.fill_value ?? 0];
    return { document: { ...as(`v2:S${size}`, `|S${size}`), fill_value: "" }, size, fill: Math.hypot(...parts.map((each) => fillOf(`float${4 * size}`, each))) };
  }
  if (/^numpy\.(datetime|timedelta)64$|^[<>][mM]8/.test(name)) {
    const fill_value = (document.fill_value ?? "NaT") === "NaT" ? Number(NAT) : document.fill_value;
    return { document: { ...as("int64", `${name[0]}i8`), fill_value }, number: (value) => (value === NAT ? NaN : Number(value)) };
  }
  if (/^\|S\d/.test(name) || (name === "null_terminated_bytes" && bytes > 0)) {
    const fill = Uint8Array.from(atob(document.fill_value ?? ""), (each) => each.charCodeAt(0));
    return { document: { ...as(`v2:S${bytes}`, name), fill_value: "" }, fill: new TextDecoder().decode(fill).replaceAll("\0", "") };
  }
  if (name === "fixed_length_utf32" && bytes > 0) return { document: as(`v2:U${bytes / 4}`) };
  return { document: { ...as(document.data_type, document.dtype), fill_value: fillOf(name, document.fill_value) } };
}

/** The places that a selection takes along an axis, by chunk: [chunk, first place in it, how many, first in the output]. */
function* along([start, stop, step], length) {
  for (let at = start; at < stop; ) {
    const chunk = Math.floor(at / length);
    const many = Math.ceil((Math.min(stop, (chunk + 1) * length) - at) / step);
    yield [chunk, at - chunk * length, many, (at - start) / step];
    at += many * step;
  }
}

function* product(lists, found = []) {
  if (found.length === lists.length) yield found;
  else for (const each of lists[found.length]) yield* product(lists, [...found, each]);
}

/**
 * Read a selection: for each dimension an index, or [start, stop, step]; of at most `most` values. Values come in the order of C, as floats, or as they
 * are where they are no numbers. `missing` are the places, [first row, one behind the last, first column, ...], that no chunk is stored for: the fill value.
 */
export async function read(valueOf, { document: given, chunkShape, selection, most }, { signal, tell }) {
  const { document, size, fill, number } = typed(given);
  const array = await (document.zarr_format === 2 ? open.v2 : open.v3)(root(storeOf(document, valueOf)), { kind: "array", attrs: false });
  if (String(array.chunks) !== String(chunkShape)) throw new Error("its document has impossible lengths");
  const left = { size: MOST_TEXT };
  const isNumeric = Boolean(size) || /^(bool|u?int\d+|float\d+)$/.test(array.dtype);
  const convert = number ?? (isNumeric ? Number : (value) => cut(value, left));
  const wanted = [...product(selection.map((each, i) => [...along(Array.isArray(each) ? each : [each, each + 1, 1], chunkShape[i])]))];
  const kept = selection.flatMap((each, i) => (Array.isArray(each) ? [i] : []));
  const shape = kept.map((i) => Math.ceil((selection[i][1] - selection[i][0]) / selection[i][2]));
  const total = shape.reduce((a, b) => a * b, 1);
  if (total > most) throw new Error(`it has ${total} values, and at most ${most} are shown`);
  const values = isNumeric ? new Float64Array(total) : new Array(total);
  const missing = [];
  const width = shape.at(-1) ?? 1;
  let done = 0;

  /** Copy the selected part of a chunk to its place. */
  function copy({ data, stride }, places, isThere) {
    const parts = size && new (size === 8 ? Float32Array : Float64Array)(data.buffer.slice(data.byteOffset, data.byteOffset + data.byteLength));
    const get = !isThere && fill !== undefined ? () => fill : size ? (i) => Math.hypot(parts[2 * i], parts[2 * i + 1]) : typeof data.get === "function" ? (i) => data.get(i) : (i) => data[i];
    const base = places.reduce((sum, [, first], i) => sum + first * stride[i], 0);
    const axes = kept.map((i) => ({ many: places[i][2], to: places[i][3], by: stride[i] * selection[i][2] }));
    while (axes.length < 2) axes.unshift({ many: 1, to: 0, by: 0 });
    const [rows, columns] = axes;
    for (let row = 0; row < rows.many; row++) {
      let from = base + row * rows.by;
      let to = (rows.to + row) * width + columns.to;
      for (let column = 0; column < columns.many; column++, from += columns.by) values[to++] = convert(get(from));
    }
    if (!isThere) missing.push([rows.to, rows.to + rows.many, columns.to, columns.to + columns.many]);
    done += 1;
  }

  const length = chunkShape.reduce((a, b) => a * b, 1);
  const chunkBytes = 8 * length;
  const batch = Math.max(1, Math.min(BATCH, Math.floor(BATCH_BYTES / chunkBytes)));
  let next = 0;
  const lane = async () => {
    while (next < wanted.length) {
      signal.throwIfAborted();
      const own = wanted.slice(next, (next += batch));
      await Promise.all(own.map(async (places) => {
        const options = { found: false };
        const chunk = await array.getChunk(places.map(([chunk]) => chunk), options);
        if (chunk.data.length !== length) throw new Error(`a chunk has ${chunk.data.length} values instead of ${length}`);
        signal.throwIfAborted();
        copy(chunk, places, options.found);
      }));
      tell(done, wanted.length);
    }
  };
  await Promise.all(chunkBytes < BATCH_BYTES ? [lane(), lane()] : [lane()]); // two, so that bytes come while others are decoded
  return { values, shape, missing, chunks: wanted.length, isNumeric, statistics: isNumeric ? statistics(values) : null };
}
