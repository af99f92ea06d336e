// Blosc, LZ4, Zstandard, gzip and zlib for zarrita. Its own decoders of the first three are more than a megabyte of
// WebAssembly, and none of its decoders has a limit: a hostile chunk could decode to gigabytes.
// Formats: c-blosc's README_CHUNK_FORMAT.rst; lz4_Block_format.md; RFC 8878; BloscLZ is a descendant of FastLZ.

import { joined } from "./reader/bytes.js";
import { crc32c } from "./reader/checksums.js";
import { registry, unzlib, unzstd } from "./vendor/zarrita.js";

const MAX_SPLITS = 16;
const MIN_SPLIT = 128;
const BLOSCLZ_FAR = 8191;
const ZSTD_MAGIC = 0xfd2fb528;
const ZSTD_BLOCK = 128 << 10; // most bytes that a block decodes to
const FED = 8 << 10; // bytes that DecompressionStream is given at a time: it hands on all that these decode to
const SLACK = 64 << 10;
const VARIABLE = 64 << 20; // most bytes of a decoded chunk of texts or objects: its document gives no size

/** What a chunk may decode to, in bytes: what it has in memory, and a bit for checksums and for what doesn't get smaller. */
export function limitOf({ dataType, shape }) {
  const [, kind, digits] = /^(?:v2:)?([a-zA-Z]+?)(\d*)$/.exec(dataType) ?? [];
  const itemsize = kind === "bool" ? 1 : kind === "S" ? Number(digits) : kind === "U" ? 4 * Number(digits) : Number(digits) / 8;
  const size = itemsize ? shape.reduce((all, each) => all * each, itemsize) : VARIABLE;
  return size + Math.ceil(size / 8) + SLACK;
}

function check(length, most) {
  if (!(length <= most)) throw new Error(`it would decode to ${length} bytes, and at most ${most} are expected`);
}

/** Copy a match: source and destination may overlap, and then bytes that were just written are read again. */
function copyMatch(out, to, from, length) {
  if (from < 0 || to + length > out.length) throw new Error("damaged: a match lies outside of the data");
  if (from + length <= to) out.copyWithin(to, from, from + length);
  else for (let end = to + length; to < end; ) out[to++] = out[from++];
}

function copyLiterals(out, to, input, from, length) {
  if (from + length > input.length || to + length > out.length) throw new Error("damaged: literals end too early");
  out.set(input.subarray(from, from + length), to);
}

/** Decode one LZ4 block. */
export function decodeLz4Block(input, out) {
  let read = 0;
  let written = 0;
  while (read < input.length) {
    const token = input[read++];
    let length = token >> 4;
    if (length === 15) for (let more = 255; more === 255; length += more) more = input[read++] ?? 0;
    copyLiterals(out, written, input, read, length);
    read += length;
    written += length;
    if (read >= input.length) break; // the last sequence has no match
    const distance = input[read] | (input[read + 1] << 8);
    read += 2;
    length = token & 15;
    if (length === 15) for (let more = 255; more === 255; length += more) more = input[read++] ?? 0;
    length += 4;
    if (distance === 0) throw new Error("damaged: a match of distance 0");
    copyMatch(out, written, written - distance, length);
    written += length;
  }
  return written;
}

function decodeBloscLz(input, out) {
  let read = 1;
  let written = 0;
  let control = input[0] & 31;
  for (;;) {
    if (control >= 32) {
      let length = (control >> 5) - 1;
      const high = (control & 31) << 8;
      if (length === 6) for (let more = 255; more === 255; length += more) more = input[read++] ?? 0;
      const code = input[read++];
      let from = written - high - code;
      if (code === 255 && high === 31 << 8) {
        from = written - ((input[read] << 8) | input[read + 1]) - BLOSCLZ_FAR;
        read += 2;
      }
      length += 3;
      copyMatch(out, written, from - 1, length);
      written += length;
    } else {
      copyLiterals(out, written, input, read, control + 1);
      read += control + 1;
      written += control + 1;
    }
    if (read >= input.length) return written;
    control = input[read++];
  }
}

const BLOSC_CODECS = [
  decodeBloscLz,
  decodeLz4Block,
  null, // Snappy
  (input, out) => unzlib(input, { out }).length,
  (input, out) => {
    const decoded = decodeZstd(input, out.length + SLACK);
    out.set(decoded);
    return decoded.length;
  },
];

function unshuffle(block, typesize) {
  const count = Math.floor(block.length / typesize);
  const out = block.slice(); // what is left over at the end lies where it did
  for (let byte = 0; byte < typesize; byte++)
    for (let i = 0, at = byte, from = byte * count; i < count; i++, at += typesize) out[at] = block[from + i];
  return out;
}

function unshuffleBits(block, typesize) {
  const count = Math.floor(block.length / typesize);
  if (count % 8) return block; // c-blosc leaves such a block as it is
  const out = block.slice();
  out.fill(0, 0, count * typesize);
  const row = count / 8;
  for (let byte = 0; byte < typesize; byte++)
    for (let bit = 0; bit < 8; bit++) {
      const from = (byte * 8 + bit) * row;
      for (let i = 0; i < count; i++)
        if (block[from + (i >> 3)] & (1 << (i & 7))) out[i * typesize + byte] |= 1 << bit;
    }
  return out;
}

/** Decode a Zstandard frame: into as many bytes as it says; if it doesn't say that, each of its blocks counts in full. */
export function decodeZstd(input, most) {
  const view = new DataView(input.buffer, input.byteOffset, input.byteLength);
  if (view.getUint32(0, true) !== ZSTD_MAGIC) throw new Error("this is no frame of Zstandard");
  const flags = input[4];
  const isSingle = (flags >> 5) & 1;
  let at = 5;
  let expected = 0;
  if (!isSingle) {
    const base = 2 ** (10 + (input[at] >> 3)); // the window, which is allocated
    expected = base + (base / 8) * (input[at++] & 7);
  }
  at += [0, 1, 2, 4][flags & 3];
  const sized = flags >> 6 ? 1 << (flags >> 6) : isSingle;
  let said = sized === 2 ? 256 : 0;
  for (let i = 0; i < sized; i++) said += view.getUint8(at++) * 2 ** (8 * i);
  check(sized ? said : expected, sized ? most : Math.max(most, 8 << 20));
  let length = 0;
  let last = at;
  for (let isLast = 0; !isLast; ) {
    const header = view.getUint8(at) | (view.getUint8(at + 1) << 8) | (view.getUint8(at + 2) << 16);
    const [kind, size] = [(header >> 1) & 3, header >> 3];
    isLast = header & 1;
    length += kind === 2 ? ZSTD_BLOCK : size;
    if (!sized) check(length, most + ZSTD_BLOCK);
    last = at;
    at += 3 + (kind === 1 ? 1 : size);
  }
  const end = at + (flags & 4); // a checksum
  if (end !== input.length) throw new Error("there is more than one frame of Zstandard");
  if (!sized) return unzstd(input);
  // The decoder does not tell how many bytes it has decoded: a block of ours behind the others shows where these end.
  const mark = crypto.getRandomValues(new Uint8Array(8));
  const marked = joined([input.subarray(0, at), Uint8Array.of((mark.length << 3) | 1, 0, 0), mark]);
  marked[4] &= ~4;
  marked[last] &= ~1;
  const out = unzstd(marked, new Uint8Array(said + mark.length));
  if (mark.some((byte, i) => out[said + i] !== byte)) throw new Error("damaged: it is shorter than it says");
  return out.subarray(0, said);
}

/** Decode gzip ("gzip") or zlib ("deflate"), a little of it at a time. */
export async function inflate(input, format, most) {
  let at = 0;
  const fed = new ReadableStream({ pull: (stream) => (at < input.length ? stream.enqueue(input.slice(at, (at += FED))) : stream.close()) });
  const reader = fed.pipeThrough(new DecompressionStream(format)).getReader();
  const parts = [];
  try {
    for (let [length, part] = [0, await reader.read()]; !part.done; part = await reader.read()) {
      parts.push(part.value);
      check((length += part.value.length), most);
    }
  } finally {
    await reader.cancel().catch(() => undefined); // if it is damaged, that was said
  }
  return joined(parts);
}

/** Decode a Blosc buffer of the first format. */
export function decodeBlosc(input, most) {
  const view = new DataView(input.buffer, input.byteOffset, input.byteLength);
  const flags = input[2];
  const typesize = input[3];
  const total = view.getUint32(4, true);
  const blocksize = view.getUint32(8, true);
  if (input[0] > 2) throw new Error("Blosc of a later format");
  check(total, most);
  if (flags & 2) return input.slice(16, 16 + total);
  const decode = BLOSC_CODECS[flags >> 5];
  if (!decode) throw new Error("Blosc with a codec that is not known here");
  if ((blocksize === 0 && total > 0) || typesize === 0) throw new Error("damaged: blocks or elements of no length");
  const out = new Uint8Array(total);
  for (let block = 0, start = 0; start < total; block++, start += blocksize) {
    const length = Math.min(blocksize, total - start);
    const isLong = length === blocksize && blocksize / typesize >= MIN_SPLIT;
    const splits = !(flags & 16) && isLong && typesize <= MAX_SPLITS ? typesize : 1;
    const part = length / splits;
    const raw = new Uint8Array(length);
    let at = view.getUint32(16 + 4 * block, true);
    for (let i = 0; i < splits; i++) {
      const size = view.getInt32(at, true);
      at += 4;
      const target = raw.subarray(i * part, (i + 1) * part);
      const source = input.subarray(at, at + size);
      if (size === part) target.set(source);
      else if (decode(source, target) !== part) throw new Error("damaged: a block of another length");
      at += size;
    }
    const plain =
      flags & 1 && typesize > 1 ? unshuffle(raw, typesize) : flags & 4 && blocksize >= typesize ? unshuffleBits(raw, typesize) : raw;
    out.set(plain, start);
  }
  return out;
}

/** Decode what numcodecs calls lz4: the length, then a block. */
export function decodeLz4(input, most) {
  const length = new DataView(input.buffer, input.byteOffset).getUint32(0, true);
  check(length, most);
  const out = new Uint8Array(length);
  if (decodeLz4Block(input.subarray(4), out) !== length) throw new Error("damaged: it is shorter than it says");
  return out;
}

/** Compare the checksum at the end, which zarrita only takes off: of a part of a value, such as the index of a shard, no other one is compared. */
export function withoutChecksum(input) {
  const content = input.subarray(0, -4);
  if (input.length < 4 || new DataView(input.buffer, input.byteOffset + content.length).getUint32(0, true) !== crc32c(content)) throw new Error("damaged: its checksum differs");
  return content;
}

function register(name, decode, more = {}) {
  const fromConfig = (configuration, meta) => {
    const most = limitOf(meta);
    return { kind: "bytes_to_bytes", decode: (input) => decode(input, most, configuration), ...more };
  };
  const codec = { kind: "bytes_to_bytes", fromConfig };
  for (const each of [name, `numcodecs.${name}`]) registry.set(each, async () => codec);
}

register("blosc", decodeBlosc);
register("lz4", decodeLz4);
// A buffer of its own: zarrita reads text from the beginning of the buffer below what it is given.
register("zstd", (input, most) => decodeZstd(input, most).slice());
register("gzip", (input, most) => inflate(input, "gzip", most));
register("zlib", (input, most) => inflate(input, "deflate", most));
register("shuffle", (input, _, { elementsize = 4 }) => unshuffle(input, elementsize)); // zarrita takes the size of the data type
register("crc32c", withoutChecksum, { computeEncodedSize: (length) => length + 4 });
