/** Reads numbers and texts out of bytes, and checks each length against what is there. */

import { CorruptionError } from "./errors.js";
import { crc32c } from "./checksums.js";

const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
const encoder = new TextEncoder();

/** @param {string} text */
export const encode = (text) => encoder.encode(text);

/** Reads one part of a file after the other. Numbers are little-endian. */
export class Reader {
  /** @param {Uint8Array} bytes @param {string} path the file, for errors */
  constructor(bytes, path) {
    this.bytes = bytes;
    this.path = path;
    this.at = 0;
    this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  }

  get left() {
    return this.bytes.length - this.at;
  }

  /** @param {string} reason @returns {never} */
  fail(reason) {
    throw new CorruptionError(`${this.path}: ${reason}. Run \`txstore verify\`, or restore the file from a backup`);
  }

  /** @param {number} count */
  take(count) {
    if (!(count <= this.left)) this.fail("it ends too early");
    this.at += count;
    return this.bytes.subarray(this.at - count, this.at);
  }

  /** @param {string} magic */
  magic(magic) {
    const found = this.take(magic.length);
    for (let each = 0; each < magic.length; each++) {
      if (found[each] !== magic.charCodeAt(each)) this.fail(`it has no ${magic} where that has to be`);
    }
  }

  u8() {
    return this.take(1)[0];
  }

  u16() {
    this.take(2);
    return this.view.getUint16(this.at - 2, true);
  }

  u32() {
    this.take(4);
    return this.view.getUint32(this.at - 4, true);
  }

  /** A number of 64 bits: a larger one than JavaScript can hold exactly is none that a file can have. */
  u64() {
    const low = this.u32();
    return this.whole(this.u32() * 2 ** 32 + low);
  }

  varint() {
    let value = 0;
    let scale = 1;
    for (let count = 1; ; count++) {
      const byte = this.u8();
      if (count === 10 && byte > 1) this.fail("a number in it is too long");
      if (byte === 0 && count > 1) this.fail("a number in it is longer than it needs to be");
      value += (byte & 127) * scale;
      if (byte < 128) return this.whole(value);
      scale *= 128;
    }
  }

  /** @param {number} value */
  whole(value) {
    if (value > Number.MAX_SAFE_INTEGER) this.fail("a number in it is too large");
    return value;
  }

  /** @param {number} length */
  text(length) {
    try {
      return utf8.decode(this.take(length));
    } catch (error) {
      if (error instanceof CorruptionError) throw error;
      return this.fail("a text in it is not UTF-8");
    }
  }

  id() {
    return hex(this.take(16));
  }

  /** @returns {Record<string, any>} @param {number} length */
  json(length) {
    const text = this.text(length);
    try {
      const value = JSON.parse(text);
      if (value !== null && typeof value === "object" && !Array.isArray(value)) return value;
    } catch (error) {
      if (!(error instanceof SyntaxError)) throw error;
    }
    return this.fail("the JSON in it is no object");
  }
}

/**
 * Return a reader of bytes without the checksum at their end, after comparing it.
 * @param {Uint8Array} bytes @param {string} path
 */
export function checked(bytes, path) {
  const reader = new Reader(bytes, path);
  if (bytes.length < 4) reader.fail("it ends too early");
  const content = bytes.subarray(0, bytes.length - 4);
  if (reader.view.getUint32(content.length, true) !== crc32c(content)) reader.fail("it has a wrong checksum");
  return new Reader(content, path);
}

/** @param {Uint8Array} bytes */
export function hex(bytes) {
  let text = "";
  for (const byte of bytes) text += (byte < 16 ? "0" : "") + byte.toString(16);
  return text;
}

/**
 * Compare texts as their UTF-8 bytes are compared.
 * @param {Uint8Array} one @param {Uint8Array} other
 */
export function compare(one, other) {
  const shorter = Math.min(one.length, other.length);
  for (let at = 0; at < shorter; at++) {
    if (one[at] !== other[at]) return one[at] - other[at];
  }
  return one.length - other.length;
}

/** @param {Uint8Array} bytes @param {Uint8Array} prefix */
export function startsWith(bytes, prefix) {
  return bytes.length >= prefix.length && compare(bytes.subarray(0, prefix.length), prefix) === 0;
}
