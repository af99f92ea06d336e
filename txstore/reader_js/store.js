/** One commit as a store for zarrita: keys and values. Nothing of it changes. */

import { Reader, compare, encode, utf8 } from "./bytes.js";
import { crc32c } from "./checksums.js";
import { CorruptionError, ForeignError, erased } from "./errors.js";
import { ERASED, FOREIGN, Run, TOMBSTONE, isKey } from "./run.js";
import { HttpSource, withSignal } from "./source.js";

/** @typedef {import("./run.js").Entry} Entry */
/** @typedef {{ signal?: AbortSignal }} Reading */
/** @typedef {{ offset: number, length: number } | { suffixLength: number }} Range */

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
   * @returns {Promise<Uint8Array | undefined>}
   */
  async get(key, reading = {}) {
    return withSignal(this.value(key, reading), reading.signal);
  }

  /**
   * Return a part of a value; undefined if there is no such key. The checksum of the whole value is not compared.
   * @param {string} key @param {Range} range @param {Reading} [reading]
   * @returns {Promise<Uint8Array | undefined>}
   */
  async getRange(key, range, reading = {}) {
    return withSignal(this.part(key, range, reading), reading.signal);
  }

  /**
   * Yield the keys that begin so, in the order of their bytes.
   * @param {string} [prefix] @param {Reading} [reading]
   * @returns {AsyncGenerator<string>}
   */
  async *keys(prefix = "", reading = {}) {
    for await (const page of this.pages(prefix, prefix, reading)) for (const [key] of page) yield key;
  }

  /**
   * Yield the keys that begin so, from one on, with their entries, which name the commits that have set them: many at a time.
   * @param {string} [prefix] @param {string} [start] @param {Reading} [reading]
   * @returns {AsyncGenerator<[string, Entry][]>}
   */
  async *pages(prefix = "", start = prefix, reading = {}) {
    const [wanted, first] = [prefix, start].map((each) => encode(each.replace(/^\//, "")));
    const names = this.stored?.header.runs ?? [];
    const runs = await Promise.all(names.map((name) => this.run(name)));
    const sources = runs.map((run) => ({ pages: run.below(wanted, first), page: /** @type {Entry[]} */ ([]), at: 0, isDone: false }));
    while (!sources.every(({ isDone }) => isDone)) {
      reading.signal?.throwIfAborted();
      await Promise.all(sources.filter(({ page, at, isDone }) => !isDone && at === page.length).map(async (source) => {
        const { value, done } = await source.pages.next();
        Object.assign(source, { page: value ?? [], at: 0, isDone: Boolean(done) });
      }));
      /** @type {[string, Entry][]} */
      const found = [];
      while (sources.every(({ page, at, isDone }) => isDone || at < page.length)) {
        /** @type {Entry | undefined} */
        let least;
        let newest = -1;
        sources.forEach(({ page, at }, run) => {
          if (at < page.length && (!least || compare(page[at].key, least.key) < 0)) [least, newest] = [page[at], run];
        });
        if (!least) break;
        const { key, kind } = least;
        const text = this.textOf(key, least);
        for (const source of sources) if (source.at < source.page.length && compare(source.page[source.at].key, key) === 0) source.at++;
        const isHidden = runs.slice(0, newest).some((run) => run.hides(text));
        if (!isHidden && kind !== TOMBSTONE && kind !== ERASED) found.push([text, least.seq ? least : { ...least, seq: names[newest].seq }]);
      }
      yield found;
    }
  }

  /** Begin to read what tells the first names right below a prefix. @param {string} prefix @param {string} start @param {number} most */
  async readAhead(prefix, start, most) {
    for (const name of this.stored?.header.runs ?? []) (await this.run(name)).readAhead(encode(prefix), encode(start), most);
  }

  /** @param {Uint8Array} key @param {Entry} entry */
  textOf(key, entry) {
    try {
      const text = utf8.decode(key);
      if (isKey(text)) return text;
    } catch (error) {
      if (!(error instanceof TypeError)) throw error;
    }
    throw new CorruptionError(`${entry.place.path}: a run has an impossible key`);
  }

  // --- look-ups

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
    if (!this.stored || !isKey(wanted)) return undefined;
    const encoded = encode(wanted);
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

  /** @param {string} key @param {Reading} reading */
  async value(key, reading) {
    const entry = await this.entry(key);
    return entry && this.whole(entry, key, reading);
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

  /**
   * Return a value that lies in a file outside of the repository.
   * @param {Uint8Array} record @param {string} path @param {Reading} reading
   */
  async foreign(record, path, reading) {
    const reader = new Reader(record, path);
    reader.magic("TXSTFORN");
    if (reader.u32() !== 1) reader.fail("a foreign value has a record of another version");
    const urlLength = reader.u32();
    const [offset, length, size] = [reader.u64(), reader.u64(), reader.u64()];
    const url = reader.text(urlLength);
    const version = reader.text(reader.left);
    if (!/^https?:/.test(url)) throw new ForeignError(`${url}: a value lies in this file, which this reader can't open: it reads http and https only`);
    if (!this.repository.options.allowForeign?.(url)) {
      throw new ForeignError(`${url}: a value lies in this file, outside of the repository. Allow it by \`allowForeign: (url) => ...\``);
    }
    if (!length) return new Uint8Array(0);
    /** @type {string | null} */
    let etag = null;
    const { fetch } = /** @type {HttpSource} */ (this.repository.source);
    const source = new HttpSource(url, {
      fetch: async (input, init) => {
        const response = await (fetch ?? globalThis.fetch)(input, init);
        if (response.redirected && !this.repository.options.allowForeign?.(response.url)) {
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

/** @param {string} etag */
const bare = (etag) => etag.replace(/^W\/|"/g, "");

/** @param {Range} range @param {number} length @returns {[number, number]} */
function borders(range, length) {
  if ("suffixLength" in range) return [Math.max(0, length - range.suffixLength), length];
  return [Math.min(range.offset, length), Math.min(range.offset + range.length, length)];
}
