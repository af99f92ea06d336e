/** One commit as a store for zarrita: keys and values. Nothing of it changes. */

import { Reader, compare, encode, utf8 } from "./bytes.js";
import { crc32c } from "./checksums.js";
import { CorruptionError, ForeignError, erased } from "./errors.js";
import { ERASED, FOREIGN, MAX_KEY, Run, TOMBSTONE, isKey } from "./run.js";
import { HttpSource, checkRange, withSignal } from "./source.js";

/** @typedef {import("./run.js").Entry} Entry */
/** @typedef {{ signal?: AbortSignal }} Reading */
/** @typedef {{ offset: number, length: number } | { suffixLength: number }} Range */

const STRETCH = 10; // milliseconds

/** Return what lets others run for a moment where that was long ago: a page has to be drawn meanwhile. */
export function rests() {
  let last = performance.now();
  return async () => {
    if (performance.now() - last < STRETCH) return;
    await new Promise((resolve) => setTimeout(resolve, 0));
    last = performance.now();
  };
}

export class Store {
  /** @param {import("./repository.js").Repository} repository @param {import("./header.js").Stored | undefined} stored @param {import("./repository.js").Commit | undefined} commit */
  constructor(repository, stored, commit) {
    this.repository = repository;
    this.stored = stored;
    /** The commit that this shows; undefined: none was made yet. */
    this.commit = commit;
  }

  /**
   * Return a value; undefined if there is no such key.
   * @param {string} key with or without a slash before it @param {Reading} [reading]
   */
  async get(key, reading = {}) {
    return withSignal(this.entry(key).then((entry) => entry && this.whole(entry, key, reading)), reading.signal);
  }

  /**
   * Return a part of a value; undefined if there is no such key. The checksum of the whole value is not compared.
   * @param {string} key @param {Range} range @param {Reading} [reading]
   */
  async getRange(key, range, reading = {}) {
    return withSignal(this.part(key, range, reading), reading.signal);
  }

  /**
   * Yield the keys that begin so, in the order of their bytes.
   * @param {string} [prefix] @param {Reading} [reading] @param {string} [start] the first one to look at
   */
  async *keys(prefix = "", reading = {}, start = prefix) {
    for await (const page of this.pages(prefix, start, reading)) for (const [key] of page) yield key;
  }

  /**
   * Yield the keys that begin so, from one on, with their entries, which name the commits that have set them: many at a time.
   * @param {string} [prefix] @param {string} [start] @param {Reading} [reading]
   */
  async *pages(prefix = "", start = prefix, reading = {}) {
    const [wanted, first] = [prefix, start].map((each) => encode(each.replace(/^\//, "")));
    const runs = await this.runs();
    const sources = runs.map((each, run) => ({ run, pages: each.below(wanted, first), page: /** @type {Entry[]} */ ([]), at: 0, isDone: false }));
    const hiding = runs.map(({ index }) => index.prefixes.size > 0);
    for (const rest = rests(); ; ) {
      reading.signal?.throwIfAborted();
      await rest();
      await Promise.all(sources.filter(({ page, at, isDone }) => !isDone && at === page.length).map(async (source) => {
        const { value, done } = await source.pages.next();
        Object.assign(source, { page: value ?? [], at: 0, isDone: Boolean(done) });
      }));
      const left = sources.filter(({ isDone }) => !isDone);
      if (!left.length) return;
      const found = /** @type {[string, Entry][]} */ ([]);
      while (left.every(({ page, at }) => at < page.length)) {
        // The one with the least key goes on up to the next one's. Of one key, the newest entry counts.
        const [first, ...others] = left.sort((one, other) => compare(one.page[one.at].key, other.page[other.at].key) || one.run - other.run);
        const end = others[0]?.page[others[0].at].key;
        do {
          const entry = first.page[first.at++];
          const text = this.textOf(entry);
          const isHidden = hiding.some((each, run) => each && run < first.run && runs[run].hides(text));
          if (!isHidden && isLive(entry)) found.push([text, entry]);
          for (const each of others) if (each.at < each.page.length && compare(each.page[each.at].key, entry.key) === 0) each.at++;
            else break;
        } while (first.at < first.page.length && (!end || compare(first.page[first.at].key, end) < 0));
      }
      yield found;
    }
  }

  /**
   * Yield the names right below a prefix of which there are keys, from a key on, in the order of their keys.
   * @param {string} prefix @param {string} start @param {number} most that are wanted, about
   */
  async *names(prefix, start, most) {
    const [runs, below] = [await this.runs(), encode(prefix)];
    const borders = runs.flatMap((run) => run.borders(below, encode(start), most)).sort((one, other) => compare(one.name, other.name));
    for (const { run, block } of borders.slice(0, most)) void run.block(block); // they are read together
    for (let from = start; ; ) {
      const firsts = await Promise.all(runs.map((run) => run.first(below, encode(from))));
      const newest = firsts.reduce((found, each, run) => (each && (found < 0 || compare(each.key, /** @type {Entry} */ (firsts[found]).key) < 0) ? run : found), -1);
      const first = firsts[newest];
      if (!first) return;
      let key = this.textOf(first);
      if (!isLive(first) || runs.slice(0, newest).some((run) => run.hides(key))) {
        const { value } = await this.keys(prefix, {}, from).next();
        if (!value) return;
        key = value;
      }
      const end = key.indexOf("/", prefix.length);
      if (end >= 0) yield key.slice(prefix.length, end);
      // Keys between `name` and `name/` begin with that name and a sign before the slash; "0" comes after it.
      from = end < 0 ? `${key}\0` : `${key.slice(0, end)}0`;
    }
  }

  /** @param {Entry} entry */
  textOf({ key, place }) {
    try {
      const text = utf8.decode(key);
      if (isKey(text)) return text;
    } catch (error) {
      if (!(error instanceof TypeError)) throw error;
    }
    throw new CorruptionError(`${place.path}: a run has an impossible key`);
  }

  /** @param {import("./header.js").RunName} name @returns {import("./header.js").Place} */
  fileOf({ pack }) {
    const { path, base, id } = /** @type {import("./header.js").Stored} */ (this.stored);
    return pack ?? { path, base, id };
  }

  /** What no other run has: where it lies. @param {import("./header.js").RunName} name */
  nameOf(name) {
    const { path, base, id } = this.fileOf(name);
    return `${path} ${id} ${base} ${name.offset} ${name.length}`;
  }

  /** All runs, the newest first. */
  runs() {
    return Promise.all((this.stored?.header.runs ?? []).map((name) => this.run(name)));
  }

  /** @param {import("./header.js").RunName} name @returns {Promise<Run>} */
  run(name) {
    const { repository } = this;
    const lies = this.fileOf(name);
    const read = (/** @type {number} */ begin, /** @type {number} */ end) => repository.commits.read(lies, begin, end);
    const size = Math.ceil(name.length * 0.02) + 1024;
    return repository.runs.get(this.nameOf(name), size, () => repository.commits.ofPack(lies, Run.open(read, lies, name, repository.blocks)));
  }

  /** @param {string} key @returns {Promise<Entry | undefined>} undefined: there is no such key */
  async entry(key) {
    const wanted = key.replace(/^\//, "");
    const encoded = encode(wanted);
    if (!this.stored || !isKey(wanted) || encoded.length > MAX_KEY) return undefined;
    // One after the other, the newest first: most keys are in the first runs, and each run takes requests.
    for (const name of this.stored.header.runs) {
      const run = await this.run(name);
      const found = await run.find(encoded);
      if (found?.kind === ERASED) throw erased(wanted);
      if (found) return found.kind === TOMBSTONE ? undefined : found;
      if (run.hides(wanted)) return undefined;
    }
    return undefined;
  }

  /** @param {Entry} entry @param {string} key @param {Reading} reading */
  async whole(entry, key, reading) {
    const { place, offset, length, checksum } = entry;
    const bytes = await this.repository.commits.read(place, offset, offset + length, reading);
    if (crc32c(bytes) !== checksum) {
      if (length && bytes.every((byte) => byte === 0)) await this.repository.checkErasures(key, checksum);
      throw new CorruptionError(`${place.path}: the value of ${key} at byte ${offset} has a wrong checksum. Run \`txstore verify\`, or restore the file from a backup`);
    }
    return entry.kind === FOREIGN ? this.foreign(bytes, place.path, reading) : bytes;
  }

  /** @param {string} key @param {Range} range @param {Reading} reading */
  async part(key, range, reading) {
    const entry = await this.entry(key);
    if (!entry) return undefined;
    if (entry.kind === FOREIGN) {
      const bytes = await this.whole(entry, key, reading);
      const [begin, end] = borders(range, bytes.length);
      return bytes.subarray(begin, end);
    }
    const [begin, end] = borders(range, entry.length);
    const { commits } = this.repository;
    const bytes = await commits.ofPack(entry.place, commits.read(entry.place, entry.offset + begin, entry.offset + end, reading));
    // Erased values are zeros, and so may others be: the checksum of the whole tells.
    return bytes.every((byte) => byte === 0) ? (await this.whole(entry, key, reading)).subarray(begin, end) : bytes;
  }

  /** Return a value that lies in a file outside of the repository. @param {Uint8Array} record @param {string} path @param {Reading} reading */
  async foreign(record, path, reading) {
    const reader = new Reader(record, path);
    reader.magic("TXSTFORN");
    if (reader.u32() !== 1) reader.fail("a foreign value has a record of another version");
    const urlLength = reader.u32();
    const [offset, length, size] = [reader.u64(), reader.u64(), reader.u64()];
    const url = reader.text(urlLength);
    const version = reader.text(reader.left);
    if (!/^https?:/.test(url)) throw new ForeignError(`${url}: a value lies in this file, which this reader can't open: it reads http and https only`);
    const { source: { fetch = globalThis.fetch }, options: { allowForeign } } = this.repository;
    if (!allowForeign?.(url)) throw new ForeignError(`${url}: a value lies in this file, outside of the repository. Allow it by \`allowForeign: (url) => ...\``);
    checkRange(url, offset, offset + length);
    if (!length) return new Uint8Array(0);
    let etag = /** @type {string | null} */ (null);
    const source = new HttpSource(url, {
      fetch: async (input, init) => {
        const response = await fetch(input, init);
        if (response.redirected && !allowForeign(response.url)) {
          throw new ForeignError(`${url}: a value lies in this file, whose server leads to another URL, at ${new URL(response.url).origin}. Allow that, too`);
        }
        etag = response.headers.get("ETag");
        return response;
      },
    });
    const found = await source.answer(url, { begin: offset, end: offset + length }, reading, url);
    if (!found) throw new ForeignError(`${url}: a value lies in this file, which is gone`);
    if (etag === null) throw new ForeignError(`${url}: a value lies in this file, whose server tells no ETag: it may have changed. In a browser, the server has to expose ETag by CORS`);
    if (found.size !== size || bare(etag) !== bare(version)) throw new ForeignError(`${url}: a value lies in this file, which has changed since`);
    return found.bytes.subarray(0, length);
  }
}

/** @param {Entry} entry */
const isLive = ({ kind }) => kind !== TOMBSTONE && kind !== ERASED;

/** @param {string} etag */
const bare = (etag) => etag.replace(/^W\/|"/g, "");

/** @param {Range} range @param {number} length @returns {[number, number]} */
function borders(range, length) {
  if ("suffixLength" in range) return [Math.max(0, length - range.suffixLength), length];
  return [Math.min(range.offset, length), Math.min(range.offset + range.length, length)];
}
