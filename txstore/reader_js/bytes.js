/** Reads numbers and texts out of bytes, and checks each length against what is there. */

import { CorruptionError } from "./errors.js";
import { crc32c } from "./checksums.js";

export const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
const encoder = new TextEncoder();
const MAX_DEPTH = 100; // lists and objects of JSON in one another, at most

/** @param {string} text */
export const encode = (text) => encoder.encode(text);

/** @param {Uint8Array[]} parts */
export function joined(parts) {
  const whole = new Uint8Array(parts.reduce((sum, { length }) => sum + length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

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

  /** Go on by so many bytes, and return where they begin. @param {number} count */
  pass(count) {
    if (!(count <= this.left)) this.fail("it ends too early");
    this.at += count;
    return this.at - count;
  }

  /** @param {number} count */
  take(count) {
    const begin = this.pass(count);
    return this.bytes.subarray(begin, this.at);
  }

  /** @param {string} magic */
  magic(magic) {
    if (String.fromCharCode(...this.take(magic.length)) !== magic) this.fail(`it has no ${magic} where that has to be`);
  }

  u8() {
    return this.bytes[this.pass(1)];
  }

  u16() {
    return this.view.getUint16(this.pass(2), true);
  }

  u32() {
    return this.view.getUint32(this.pass(4), true);
  }

  /** A number of 64 bits: mostly, a larger one than JavaScript can hold exactly is none that a file can have. */
  u64(most = Number.MAX_SAFE_INTEGER) {
    const low = this.u32();
    return this.whole(this.u32() * 2 ** 32 + low, most);
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

  /** @param {number} value @param {number} [most] */
  whole(value, most = Number.MAX_SAFE_INTEGER) {
    if (value > most) this.fail("a number in it is too large");
    return value;
  }

  /** @param {number} length */
  text(length) {
    const bytes = this.take(length);
    try {
      return utf8.decode(bytes);
    } catch {
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
      const value = JSON.parse(text.replace(TOKENS, (token) => NUMBERS[token] ?? token));
      if (value !== null && typeof value === "object" && !Array.isArray(value)) return value;
    } catch (error) {
      if (!(error instanceof SyntaxError)) throw error;
    }
    return this.fail("the JSON in it is no object");
  }
}

/** Return a reader of bytes without the checksum at their end, after comparing it. @param {Uint8Array} bytes @param {string} path */
export function checked(bytes, path) {
  const reader = new Reader(bytes, path);
  if (bytes.length < 4) reader.fail("it ends too early");
  const content = bytes.subarray(0, bytes.length - 4);
  if (reader.view.getUint32(content.length, true) !== crc32c(content)) reader.fail("it has a wrong checksum");
  return new Reader(content, path);
}

/** Return the members of a JSON object that has its checksum in it, and the canonical text of each. See format.md, "`format.json`". @param {Uint8Array} bytes @param {string} path */
export function checkedJson(bytes, path) {
  const reader = new Reader(bytes, path);
  const members = reader.json(bytes.length);
  // With a sign before each text, and before each number as a text: so numbers keep their digits.
  const marked = JSON.parse(utf8.decode(bytes).replace(TOKENS, (token) => (token.startsWith('"') ? `"T${token.slice(1)}` : `"N${token}"`)));
  if (/(?<!\\)(?:\\\\)*\\ud[89a-f]/.test(JSON.stringify(marked))) reader.fail("the JSON in it has half a surrogate pair");
  const texts = textsOf(marked, reader, 1);
  texts.delete("checksum");
  const isRight = members.checksum === crc32c(encode(objectOf(texts))).toString(16).padStart(8, "0");
  return { members, texts, isRight };
}

const TOKENS = /"[^"\\]*(?:\\.[^"\\]*)*"|-?(?:\d[\d.eE+-]*|NaN|Infinity)/g;
/** What JSON here may say, and `JSON.parse` does not understand. @type {Record<string, string>} */
const NUMBERS = { NaN: "null", Infinity: "1e999", "-Infinity": "-1e999" };

/** @param {Record<string, any>} marked @param {Reader} reader @param {number} depth @returns {Map<string, string>} */
const textsOf = (marked, reader, depth) => new Map(Object.entries(marked).map(([name, value]) => [name.slice(1), canonical(value, reader, depth + 1)]));

/** @param {any} value @param {Reader} reader @param {number} depth @returns {string} */
function canonical(value, reader, depth) {
  if (depth > MAX_DEPTH) reader.fail("the JSON in it is nested too deeply");
  if (typeof value === "string") return value.startsWith("N") ? numberOf(value.slice(1)) : textOf(value.slice(1));
  if (Array.isArray(value)) return `[${value.map((each) => canonical(each, reader, depth + 1)).join(",")}]`;
  return value === null || typeof value !== "object" ? String(value) : objectOf(textsOf(value, reader, depth));
}

/** @param {Map<string, string>} texts of the members of an object, by their names @returns {string} */
function objectOf(texts) {
  const inOrder = [...texts].map(([name, text]) => ({ name: encode(name), text: `${textOf(name)}:${text}` })).sort((one, other) => compare(one.name, other.name));
  return `{${inOrder.map(({ text }) => text).join(",")}}`;
}

/** A text in ASCII. @param {string} text */
const textOf = (text) => JSON.stringify(text).replace(/[\u007f-\uffff]/g, (sign) => `\\u${sign.charCodeAt(0).toString(16).padStart(4, "0")}`);

/** A number as it counts for a checksum: an integer in its digits, another one in the fewest digits that say the same 64-bit float. @param {string} token */
function numberOf(token) {
  if (/^-?\d+$/.test(token)) return token === "-0" ? "0" : token;
  const number = Number(token);
  if (!Number.isFinite(number)) return String(number);
  const [digits, exponent] = number.toExponential().split("e");
  const sign = Object.is(number, -0) ? "-" : "";
  if (Number(exponent) >= -4 && Number(exponent) < 16) return `${sign}${number}${Number.isInteger(number) ? ".0" : ""}`;
  return `${digits}e${exponent[0]}${exponent.slice(1).padStart(2, "0")}`;
}

/** @param {Uint8Array} bytes */
export const hex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");

/** Compare texts as their UTF-8 bytes are compared. @param {Uint8Array} one @param {Uint8Array} other */
export function compare(one, other) {
  const shorter = Math.min(one.length, other.length);
  for (let at = 0; at < shorter; at++) {
    if (one[at] !== other[at]) return one[at] - other[at];
  }
  return one.length - other.length;
}

/** Search by halves. @param {number} count @param {(each: number) => boolean} isBefore */
export function countBefore(count, isBefore) {
  let [low, high] = [0, count];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (isBefore(middle)) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** @param {Uint8Array} bytes @param {Uint8Array} prefix */
export function startsWith(bytes, prefix) {
  for (let at = 0; at < prefix.length; at++) if (bytes[at] !== prefix[at]) return false;
  return true;
}
