/** A sorted run: finds keys in it, and lists them. See format.md, "Runs". */

import { Reader, compare, countBefore, joined, startsWith } from "./bytes.js";
import { crc32c } from "./checksums.js";
import { newer, packOf } from "./header.js";

/** @import { Cache } from "./cache.js" */
/** @import { Place, RunName } from "./header.js" */

export const TOMBSTONE = 0;
export const VALUE = 1;
export const FOREIGN = 3;
export const ERASED = 5;

const TRAILER = 64;
const RECORD = 32;
const MAX_BLOCK = 16384;
export const MAX_KEY = 4096;
const INDEX_PART = 0.016; // the part of a run that its index takes
const LEAST = 8192; // the least of its end that is read at first
const AT_ONCE = 128; // blocks that are read at once

/**
 * An entry: what a run says of a key.
 * @typedef {object} Entry
 * @property {Uint8Array} key @property {number} kind @property {number} seq which commit has set it, counted from 1 along its history
 * @property {Place} place where the value lies @property {number} offset @property {number} length @property {number} checksum
 */

/** Reads the bytes of a file from one offset to another. @typedef {(begin: number, end: number) => Promise<Uint8Array>} Read */

/** One run whose index has been read. Its blocks are read when a key is looked up, and kept by `blocks`. */
export class Run {
  /** @param {Index} index @param {Read} read @param {number} seq of entries that name none @param {Cache<Entry[]>} blocks */
  constructor(index, read, seq, blocks) {
    this.index = index;
    this.read = read;
    this.seq = seq;
    this.blocks = blocks;
  }

  /** Read the index of a run. @param {Read} read @param {Place} lies the file @param {RunName} name @param {Cache<Entry[]>} blocks */
  static async open(read, lies, { offset, length, entries, seq }, blocks) {
    const within = /** @type {Read} */ ((begin, end) => read(offset + begin, offset + end));
    const guess = Math.max(0, length - LEAST - Math.ceil(length * INDEX_PART));
    const end = await within(guess, length);
    const begins = beginOfIndex(end, length, lies.path);
    const rest = begins < guess ? await within(begins, guess) : new Uint8Array(0);
    const index = new Index(begins < guess ? joined([rest, end]) : end.slice(begins - guess), begins, lies);
    if (index.entries !== entries || (index.isOwn && !seq)) index.fail("a run is not the one that the header lists");
    return new Run(index, within, seq, blocks);
  }

  /** Return the entry of a key; undefined if there is none. @param {Uint8Array} key */
  async find(key) {
    const block = this.index.blockOf(key);
    if (block < 0) return undefined;
    const entries = await this.block(block);
    const found = entries[placeOf(entries, key)];
    return found && compare(found.key, key) === 0 ? found : undefined;
  }

  /**
   * Yield the entries whose keys begin so, in order, block by block. The longer that goes on, the more blocks are read at once.
   * @param {Uint8Array} prefix @param {Uint8Array} [start] the first key to look at @param {number} [since] only entries with a higher seq, or with none
   */
  async *below(prefix, start = prefix, since = 0) {
    const { index } = this;
    const isWanted = (/** @type {number} */ block) => !since || !index.highest(block) || index.highest(block) > since;
    const isWithin = (/** @type {number} */ block) => index.mayHold(block, prefix);
    let asked = Math.max(0, index.blockOf(start));
    let many = 1;
    for (let block = asked; isWithin(block); block++) {
      if (block + (many >> 2) >= asked) {
        for (const end = asked + many; asked < end && isWithin(asked); asked++) if (isWanted(asked)) void this.block(asked);
        many = Math.min(AT_ONCE, many * 2);
      }
      if (!isWanted(block)) continue;
      const all = await this.block(block);
      const entries = all.slice(placeOf(all, start)).filter(({ key, seq }) => !(since && seq <= since) && startsWith(key, prefix));
      if (entries.length) yield entries;
    }
  }

  /** Return the first entry from a key on, if that begins so. @param {Uint8Array} prefix @param {Uint8Array} start */
  async first(prefix, start) {
    for (let block = Math.max(0, this.index.blockOf(start)); this.index.mayHold(block, prefix); block++) {
      const entries = await this.block(block);
      const found = entries[placeOf(entries, start)];
      if (found) return startsWith(found.key, prefix) ? found : undefined;
    }
    return undefined;
  }

  /**
   * Return the blocks in which one of the names right below a prefix ends, and the next begins, each with the former.
   * @param {Uint8Array} prefix @param {Uint8Array} start @param {number} most
   */
  borders(prefix, start, most) {
    const { index } = this;
    const nameIn = (/** @type {number} */ block) => {
      const key = index.firstKey(block);
      const end = key.indexOf(47, prefix.length);
      return end < 0 ? key : key.subarray(0, end);
    };
    const found = [];
    for (let block = Math.max(0, index.blockOf(start)); found.length < most && index.mayHold(block, prefix); block++) {
      const name = nameIn(block);
      if (block + 1 === index.count || compare(name, nameIn(block + 1)) !== 0) found.push({ run: this, block, name });
    }
    return found;
  }

  /** Tell whether this run deletes a key in older runs by a prefix. @param {string} key */
  hides(key) {
    const { prefixes } = this.index;
    if (!prefixes.size) return false;
    for (let at = key.indexOf("/"); at >= 0; at = key.indexOf("/", at + 1)) {
      if (prefixes.has(key.slice(0, at + 1))) return true;
    }
    return prefixes.has("");
  }

  /** @param {number} number */
  block(number) {
    const { lies } = this.index;
    const [begin, length, checksum] = this.index.record(number);
    return this.blocks.get(`${lies.path} ${lies.id} ${lies.base} ${checksum} ${begin}`, length * 4, async () => {
      const bytes = await this.read(begin, begin + length);
      if (crc32c(bytes) !== checksum) this.index.fail("a block has a wrong checksum");
      return entriesOf(bytes, this.index, number, this.seq);
    });
  }
}

/** Return the place of the first entry whose key is not below this one. @param {Entry[]} entries @param {Uint8Array} key */
const placeOf = (entries, key) => countBefore(entries.length, (each) => compare(entries[each].key, key) < 0);

/** Return where the index of a run begins. @param {Uint8Array} end of the run @param {number} length @param {string} path */
function beginOfIndex(end, length, path) {
  const reader = new Reader(end, path);
  if (end.length < TRAILER) reader.fail("a run in it is too short");
  reader.at = end.length - TRAILER;
  reader.magic("TXRN");
  const kind = reader.u16();
  const codec = reader.u16();
  if (kind !== 1 || codec !== 0) throw newer(path, `a run of kind ${kind} with block codec ${codec}`);
  reader.take(28);
  const begin = reader.u64();
  if (begin > length - TRAILER) reader.fail("a run in it has an impossible trailer");
  return begin;
}

/** What stands behind the blocks of a run. */
class Index {
  /** @param {Uint8Array} bytes from the index on @param {number} begins @param {Place} lies */
  constructor(bytes, begins, lies) {
    this.lies = lies;
    this.bytes = bytes;
    const reader = new Reader(bytes, lies.path);
    this.view = reader.view;
    reader.at = bytes.length - 4;
    if (reader.u32() !== crc32c(bytes.subarray(0, -4))) reader.fail("the index of a run has a wrong checksum");
    reader.at = bytes.length - TRAILER + 8;
    this.count = reader.u32();
    const prefixes = reader.u32();
    const packs = reader.u32();
    this.entries = reader.u64();
    this.isOwn = reader.u64() === 0 && this.entries + prefixes > 0; // else its entries name their commits
    reader.u64();
    const [prefixesAt, packsAt] = [reader.u64() - begins, reader.u64() - begins];
    this.keysAt = this.count * RECORD;
    if (!(this.keysAt <= prefixesAt && prefixesAt <= packsAt && packsAt <= bytes.length - TRAILER)) this.fail("a run has an impossible trailer");
    this.checkRecords(begins, prefixesAt);
    this.prefixes = this.prefixesOf(new Reader(bytes.subarray(prefixesAt, packsAt), lies.path), prefixes);
    const rest = new Reader(bytes.subarray(packsAt, bytes.length - TRAILER), lies.path);
    this.packs = [lies];
    for (let each = 0; each < packs; each++) this.packs.push(packOf(new Reader(rest.take(rest.varint()), lies.path)));
    if (rest.left) this.fail("a run has bytes behind its list of packs");
  }

  /** @param {string} reason @returns {never} */
  fail(reason) {
    return new Reader(new Uint8Array(0), this.lies.path).fail(reason);
  }

  /** @param {number} begins @param {number} end of the first keys */
  checkRecords(begins, end) {
    let [at, key] = [0, this.keysAt];
    for (let block = 0; block < this.count; block++) {
      const [begin, length, , keyAt, keyLength] = this.record(block);
      if (begin !== at || length > MAX_BLOCK || keyAt !== key || keyLength > MAX_KEY) this.fail("the index of a run is impossible");
      at += length;
      key += keyLength;
      if (block && compare(this.firstKey(block - 1), this.firstKey(block)) >= 0) this.fail("the blocks of a run are out of order");
    }
    if (at !== begins || key !== end) this.fail("the index of a run has gaps");
  }

  /** @param {Reader} reader @param {number} count */
  prefixesOf(reader, count) {
    const records = new Reader(reader.take(count * 16), reader.path);
    /** @type {Map<string, number>} with the seqs that have deleted them; 0: that of the run */
    const found = new Map();
    for (let each = 0; each < count; each++) {
      const [offset, length, seq] = [records.u32(), records.u32(), records.u64()];
      if (offset !== reader.at - count * 16 || length > MAX_KEY) reader.fail("the prefixes of a run have gaps");
      found.set(reader.text(length), seq);
    }
    if (reader.left || found.size !== count) reader.fail("the prefixes of a run are impossible");
    return found;
  }

  /** Offset, length, checksum, and where the first key lies. @param {number} block */
  record(block) {
    const at = block * RECORD;
    const [view, high] = [this.view, this.view.getUint32(at + 4, true)];
    return [
      view.getUint32(at, true) + high * 2 ** 32, view.getUint32(at + 8, true), view.getUint32(at + 12, true),
      this.keysAt + view.getUint32(at + 24, true), view.getUint32(at + 28, true),
    ];
  }

  /** Tell whether a block, or one behind it, may have keys that begin so. @param {number} block @param {Uint8Array} prefix */
  mayHold(block, prefix) {
    return block < this.count && (compare(this.firstKey(block), prefix) <= 0 || startsWith(this.firstKey(block), prefix));
  }

  /** The highest seq in a block; 0: it is not told. @param {number} block */
  highest(block) {
    const at = block * RECORD + 16;
    return this.view.getUint32(at, true) + this.view.getUint32(at + 4, true) * 2 ** 32;
  }

  /** @param {number} block */
  firstKey(block) {
    const [, , , at, length] = this.record(block);
    return this.bytes.subarray(at, at + length);
  }

  /** Return the block that a key would be in; -1: it is before all. @param {Uint8Array} key */
  blockOf(key) {
    return countBefore(this.count, (block) => compare(this.firstKey(block), key) <= 0) - 1;
  }
}

/** @param {Uint8Array} bytes @param {Index} index @param {number} block @param {number} seq of the run @returns {Entry[]} */
function entriesOf(bytes, index, block, seq) {
  const { path } = index.lies;
  const whole = new Reader(bytes, path);
  if (bytes.length < 8) whole.fail("a block is too short");
  const restarts = whole.view.getUint32(bytes.length - 4, true);
  const end = bytes.length - 4 - 4 * restarts;
  if (restarts < 1 || end <= 0) whole.fail("a block has an impossible end");
  const reader = new Reader(bytes.subarray(0, end), path);
  const entries = /** @type {Entry[]} */ ([]);
  let key = new Uint8Array(0);
  let row = 0;
  while (reader.left) {
    const [shared, unshared] = [reader.varint(), reader.varint()];
    row = shared ? row + 1 : 0;
    if (shared > key.length || row > 15 || shared + unshared > MAX_KEY) reader.fail("a block has an impossible key");
    const before = key;
    const rest = reader.pass(unshared) - shared;
    key = new Uint8Array(shared + unshared);
    for (let each = 0; each < key.length; each++) key[each] = each < shared ? before[each] : reader.bytes[rest + each]; // faster than parts of arrays
    if (entries.length ? compare(before, key) >= 0 : compare(key, index.firstKey(block)) !== 0) reader.fail("the keys of a block are out of order");
    const [kind, own] = [reader.u8(), reader.varint() || seq];
    if (![TOMBSTONE, VALUE, FOREIGN, ERASED].includes(kind)) throw newer(path, `a ref of kind ${kind}`);
    const place = kind === TOMBSTONE ? index.lies : index.packs[reader.varint()];
    if (!place) reader.fail("an entry names a pack that its run does not");
    const [offset, length] = kind === TOMBSTONE ? [0, 0] : [reader.varint(), reader.varint()];
    entries.push({ key, kind, seq: own, place, offset, length, checksum: kind === TOMBSTONE ? 0 : reader.u32() });
  }
  return entries;
}

/** Tell whether a text may be a key, but for its length. @param {string} key */
export const isKey = (key) => !/(?:^|\/)\.{0,2}(?:\/|$)/.test(key);
