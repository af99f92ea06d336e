// Blosc, LZ4 and Zstandard for zarrita, whose own decoders are WebAssembly of more than a megabyte.
// Formats: c-blosc's README_CHUNK_FORMAT.rst; lz4_Block_format.md; BloscLZ is a descendant of FastLZ.

import { registry, unzlib, unzstd } from "./vendor/zarrita.js";

const MAX_SPLITS = 16;
const MIN_SPLIT = 128;
const BLOSCLZ_FAR = 8191;

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
      let code;
      if (length === 6) {
        do {
          code = input[read++] ?? 0;
          length += code;
        } while (code === 255);
      }
      code = input[read++];
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
    const decoded = unzstd(input);
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

/** Decode a Blosc buffer of the first format. */
export function decodeBlosc(input) {
  const view = new DataView(input.buffer, input.byteOffset, input.byteLength);
  const flags = input[2];
  const typesize = input[3];
  const total = view.getUint32(4, true);
  const blocksize = view.getUint32(8, true);
  if (input[0] > 2) throw new Error("Blosc of a later format");
  if (flags & 2) return input.slice(16, 16 + total);
  const decode = BLOSC_CODECS[flags >> 5];
  if (!decode) throw new Error("Blosc with a codec that is not known here");
  if (blocksize === 0 && total > 0) throw new Error("damaged: blocks of no length");
  const out = new Uint8Array(total);
  for (let block = 0, start = 0; start < total; block++, start += blocksize) {
    const length = Math.min(blocksize, total - start);
    const splits =
      !(flags & 16) && length === blocksize && typesize <= MAX_SPLITS && blocksize / typesize >= MIN_SPLIT
        ? typesize
        : 1;
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
export function decodeLz4(input) {
  const out = new Uint8Array(new DataView(input.buffer, input.byteOffset).getUint32(0, true));
  decodeLz4Block(input.subarray(4), out);
  return out;
}

function register(name, decode) {
  const encode = () => {
    throw new Error("read only");
  };
  const codec = { kind: "bytes_to_bytes", fromConfig: () => ({ kind: "bytes_to_bytes", decode, encode }) };
  for (const each of [name, `numcodecs.${name}`]) registry.set(each, () => Promise.resolve(codec));
}

register("blosc", decodeBlosc);
register("lz4", decodeLz4);
// A buffer of its own: zarrita reads text from the beginning of the buffer below what it is given.
register("zstd", (input) => unzstd(input).slice());
