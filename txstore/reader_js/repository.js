/** A repository: its branches, tags and history. See format.md, "Files" and "Names, history, and reading without lists". */

import { Cache } from "./cache.js";
import { Commits, follows } from "./commits.js";
import { Reader, checked, checkedJson } from "./bytes.js";
import { CorruptionError, NotFoundError, RequestError, UnsupportedError, erased } from "./errors.js";
import { branchOf, checkFeatures, commitPath, newer } from "./header.js";
import { Store } from "./store.js";
import { FORMAT, withSignal } from "./source.js";

/** @import { Stored } from "./header.js" */
/** @import { Reading, Source } from "./source.js" */

/**
 * @typedef {object} Options
 * @property {(url: string) => boolean} [allowForeign] whether a file outside of the repository may be read; by default none
 * @property {number} [cacheBytes] for parts of the index that were read; by default 32 MiB
 */

/**
 * What is known of a commit.
 * @typedef {object} Commit
 * @property {string} id @property {number} version @property {string} branch its name, or its id if that is not known
 * @property {Date} time @property {string} author @property {string} message @property {Record<string, unknown>} properties
 * @property {string | undefined} parent @property {string | undefined} mergedParent
 */

/** A branch: its record. @typedef {{ id: string, name: string, fork: { id: string } | undefined, lineage: { id: string, upto: number }[] }} Branch */

/** @type {Branch} */
const MAIN = { id: "main", name: "main", fork: undefined, lineage: [] };
export const NONE = "0".repeat(32);
const VERSIONS = ["rename", "conditional", "lock", "single writer"];
const AT_ONCE = 8; // commits that are read at once for a log
const HEADER_TAIL = 1024; // enough of a commit file's end for most headers

/** Open a repository over a source. @param {Source} source @param {Options} options @param {Reading} reading */
export async function open(source, options, reading) {
  const bytes = await source.small(FORMAT, { ...reading, isMutable: true });
  if (!bytes) throw new NotFoundError(`${source.url}: there is no repository: it has no format.json. Look at the URL`);
  const reader = new Reader(bytes, FORMAT);
  const { members: { repository, versions }, texts, isRight } = checkedJson(bytes, FORMAT);
  const [version, required, optional] = ["txstore", "required", "optional"].map((name) => texts.get(name) ?? "");
  if (/^\d+$/.test(version) && version > "1") throw newer(FORMAT, `format version ${version}`);
  if (!isRight) reader.fail("it has a wrong checksum");
  const areFeatures = [required, optional].every((bits) => /^\d{1,20}$/.test(bits) && BigInt(bits) < 1n << 64n);
  if (version !== "1" || !/^[0-9a-f]{32}$/.test(repository) || !areFeatures) reader.fail("it names no repository");
  if (!VERSIONS.includes(versions)) throw newer(FORMAT, `versions taken by ${JSON.stringify(versions)}`);
  checkFeatures(FORMAT, Number(BigInt.asUintN(32, BigInt(required))));
  return new Repository(source, repository, options);
}

export class Repository {
  /** @param {Source} source @param {string} id @param {Options} options */
  constructor(source, id, options) {
    this.source = source;
    this.id = id;
    this.options = options;
    this.commits = new Commits(source, id);
    /** @type {Cache<import("./run.js").Entry[]>} */
    this.blocks = new Cache(options.cacheBytes ?? 32 << 20);
    /** @type {Cache<import("./run.js").Run>} */
    this.runs = new Cache(options.cacheBytes ?? 32 << 20);
    /** @type {Map<string, string>} names of branches by their ids, as far as they are known */
    this.names = new Map([["main", "main"]]);
  }

  /**
   * Return a store for zarrita: the repository as one commit has it.
   * @param {string | number} [at] a branch, a tag, the id of a commit, or a version of the branch `main`
   * @param {{ signal?: AbortSignal }} [reading]
   */
  async at(at = "main", reading = {}) {
    return withSignal(this.find(at).then((stored) => this.storeOf(stored)), reading.signal);
  }

  /** Return the commits of a branch, the newest first. @param {{ branch?: string, limit?: number, signal?: AbortSignal }} [options] @returns {Promise<Commit[]>} */
  async log({ branch = "main", limit = Infinity, signal } = {}) {
    const read = async () => {
      const record = await this.branch(branch);
      if (!record) throw new NotFoundError(`${this.source.url}: there is no branch ${JSON.stringify(branch)}`);
      const found = [];
      for await (const stored of this.walk(record, limit)) found.push(this.commitOf(stored));
      return found;
    };
    return withSignal(read(), signal);
  }

  /** Return the names of the branches. Needs a server that lists names. @param {Reading} [reading] @returns {Promise<string[]>} */
  async branches(reading = {}) {
    const records = await Promise.all((await this.list("branches", reading)).map((name) => this.recordOf(name)));
    return ["main", ...records.flatMap((record) => record?.name ?? []).sort()];
  }

  /** Return the names of the tags. Needs a server that lists names. @param {Reading} [reading] @returns {Promise<string[]>} */
  async tags(reading = {}) {
    return (await this.list("tags", reading)).sort();
  }

  /** @param {Stored} stored @returns {Commit} */
  commitOf({ header }) {
    return {
      id: header.id, version: header.version, branch: this.names.get(header.branch) ?? header.branch,
      time: new Date(header.time / 1000), author: header.author, message: header.message, properties: header.properties,
      parent: header.parent === NONE ? undefined : header.parent, mergedParent: header.merged?.id,
    };
  }

  /** @param {string} directory @param {Reading} reading */
  async list(directory, reading) {
    const names = await this.source.list(directory, reading);
    if (!names) throw new RequestError(`${this.source.url}: this server lists no names. Ask for a branch or a tag by its name, or let the server list directories`);
    return names.filter(isName);
  }

  /** Return what reads the record of a branch or a tag, behind its magic. @param {string} path @param {string} magic */
  async named(path, magic) {
    const bytes = await this.source.small(path, { isMutable: true });
    const reader = bytes && checked(bytes, path);
    reader?.magic(magic);
    return reader;
  }

  /** @param {string} name @returns {Promise<Branch | undefined>} */
  async recordOf(name) {
    const reader = await this.named(`branches/${name.toLowerCase()}`, "TXSTBRN1");
    if (!reader) return undefined;
    const [id, fork] = [reader.id(), reader.id()];
    reader.take(16);
    const given = reader.text(reader.u8());
    const lineage = /** @type {Branch["lineage"]} */ ([]);
    while (reader.left) {
      const upto = reader.varint();
      lineage.push({ upto, id: branchOf(reader, reader.varint()) });
    }
    if (!lineage.length || given.toLowerCase() !== name.toLowerCase()) reader.fail("it is the record of another branch");
    this.names.set(id, given);
    return { id, name: given, fork: { id: fork }, lineage };
  }

  /** @param {string} name @returns {Promise<Branch | undefined>} */
  async branch(name) {
    if (name === "main") return MAIN;
    const record = isName(name) ? await this.recordOf(name) : undefined;
    return record?.name === name ? record : undefined;
  }

  /** Return what a tag names. @param {string} name @returns {Promise<{ id: string, version: number, branch: string } | undefined>} */
  async tag(name) {
    const reader = isName(name) ? await this.named(`tags/${name}`, "TXSTTAG1") : undefined;
    if (!reader) return undefined;
    const [version, id] = [reader.u64(), reader.id()];
    return { id, version, branch: branchOf(reader, reader.left) };
  }

  /** @param {string} name */
  async tagged(name) {
    const tag = await this.tag(name);
    const stored = tag && (await this.commits.stored(tag.branch, tag.version));
    if (stored?.header.id !== tag?.id) throw new CorruptionError(`tags/${name}: the commit ${tag?.id} that it names is gone. Restore the repository from a backup`);
    return stored;
  }

  /** @param {Stored | undefined} stored */
  storeOf(stored) {
    return new Store(this, stored, stored ? this.commitOf(stored) : undefined);
  }

  /** @param {string | number} at @returns {Promise<Stored | undefined>} undefined: no commit was made yet */
  async find(at) {
    if (typeof at === "number") {
      const head = await this.head(MAIN);
      const { oldestKept, version } = head?.header ?? { oldestKept: 0, version: -1 };
      const isKept = Number.isInteger(at) && at >= oldestKept && at <= version;
      const stored = isKept ? await this.commits.made("main", at) : undefined;
      if (stored) return stored;
      const kept = head ? `: those that are kept are ${oldestKept} to ${version}` : "";
      throw new NotFoundError(`${this.source.url}: there is no version ${at}${kept}`);
    }
    const branch = await this.branch(at);
    if (branch) return this.head(branch);
    const tagged = await this.tagged(at);
    if (tagged) return tagged;
    if (/^[0-9a-f]{32}$/.test(at)) {
      for await (const stored of this.walk(MAIN)) if (stored.header.id === at) return stored;
      for (const name of await this.branches()) {
        const other = name === "main" ? undefined : await this.branch(name);
        if (other) for await (const stored of this.walk(other)) if (stored.header.id === at) return stored;
      }
    }
    throw new NotFoundError(`${this.source.url}: ${JSON.stringify(at)} is no branch, tag or commit here`);
  }

  /** @param {Branch} branch @returns {Promise<Stored | undefined>} */
  async head(branch) {
    const [below] = branch.lineage;
    const found = await this.commits.newest(branch.id, below ? below.upto + 1 : 0);
    if (found) return found;
    if (!below) return undefined;
    const fork = await this.commits.stored(below.id, below.upto);
    if (fork?.header.id !== branch.fork?.id) throw new CorruptionError(`branches/${branch.name}: the commit that it begins at is gone`);
    return fork;
  }

  /** Yield the commits of a branch, the newest first, down to the oldest that is kept. @param {Branch} branch @param {number} [limit] @returns {AsyncGenerator<Stored>} */
  async *walk(branch, limit = Infinity) {
    const [head, kept] = await Promise.all([this.head(branch), this.commits.oldestKept(branch.id)]);
    if (head && limit > 0) yield* this.below(head, limit, head.header.branch === branch.id ? Math.max(head.header.oldestKept, kept) : undefined);
  }

  /**
   * Yield a commit and its ancestors by the first parent, the newest first, down to the oldest that is kept.
   * @param {Stored} newest @param {number} [limit] @param {number} [oldestKept] of its branch, if that is known
   */
  async *below(newest, limit = Infinity, oldestKept) {
    let last = newest;
    let floor = oldestKept ?? (await this.keptOf(last.header.branch)) ?? last.header.oldestKept;
    yield last;
    /** @type {Map<string, Promise<Stored | undefined>>} commits that are being read */
    const ahead = new Map();
    for (let left = limit - 1; left > 0 && last.header.version > floor && last.header.parent !== NONE; ) {
      for (const told of await this.commits.carried(last)) {
        if (left-- <= 0 || told.header.version < floor) return;
        yield (last = told);
      }
      const { fork, branch: own, version, parent } = last.header;
      if (left <= 0 || version <= floor || parent === NONE) return;
      const lowest = fork === undefined ? Math.max(floor, version - Math.min(AT_ONCE, left)) : version - 1;
      for (let below = version - 1; below >= lowest; below--) {
        const path = commitPath(fork ?? own, below);
        if (ahead.has(path)) continue;
        const found = this.commits.made(fork ?? own, below, HEADER_TAIL);
        found.catch(() => undefined); // whoever comes to it is told
        ahead.set(path, found);
      }
      const path = commitPath(fork ?? own, version - 1);
      const below = await ahead.get(path);
      ahead.delete(path);
      // A vacuum deletes what only a deleted branch has kept.
      if (!below && !(await this.isLiving(own))) return;
      if (!below || !follows(last, below)) throw new CorruptionError(`${path}: the parent of version ${version} is gone. Run \`txstore verify\``);
      left--;
      yield (last = below);
      if (fork === undefined) continue;
      const { branch: other, version: kept } = last.header; // all that is kept, if this branch was deleted
      floor = (await this.isLiving(other)) ? ((await this.keptOf(other)) ?? kept) : kept;
    }
  }

  /** Return the oldest kept version of a branch that history comes to from another one. @param {string} id */
  async keptOf(id) {
    const versions = await this.commits.versions(`oldest_kept/${id}`);
    return versions ? (versions[0] ?? 0) : (await this.commits.newest(id))?.header.oldestKept;
  }

  /** Tell whether a branch has a record. Where the server lists none, it may have. @param {string} id */
  async isLiving(id) {
    if (id === "main") return true;
    const names = await this.source.list("branches");
    if (!names) return true;
    const records = await Promise.all(names.filter(isName).map((name) => this.recordOf(name)));
    return records.some((record) => record?.id === id);
  }

  /** Say why a value is zeros, if a record of an erasure does. @param {string} key @param {number} checksum of the value, as its ref has it */
  async checkErasures(key, checksum) {
    const path = key.replace(/^\//, "");
    const names = await this.source.list("erased");
    if (!names) throw new CorruptionError(`${path}: this value is zeros: it was erased, or is damaged. This server lists no names, so that no record of an erasure is found`);
    const records = names.filter((each) => /^[0-9a-f]{32}(\.rows)?$/.test(each)).sort((one, other) => other.length - one.length);
    for (const name of records) { // those of rows first: after an array was erased, rows of another one in its place may be
      const file = `erased/${name}`;
      const bytes = await this.source.small(file, { isMutable: true });
      if (!bytes) continue;
      const { members: { paths }, isRight } = checkedJson(bytes, file);
      if (!isRight || !Array.isArray(paths)) throw new CorruptionError(`${file}: it has a wrong checksum, or says no paths. Run \`txstore verify\``);
      if (!paths.some((above) => above === "" || path.startsWith(`${above}/`))) continue;
      if (!name.endsWith(".rows")) throw erased(path);
      if (checksum === 0) throw new UnsupportedError(`${path}: rows of this value were erased, and what replaces it this reader does not find: read it by \`txstore serve\``);
    }
  }
}

/** Tell whether a text may be the name of a branch or a tag. @param {string} name */
const isName = (name) => /^[A-Za-z0-9_][A-Za-z0-9._-]{0,99}$/.test(name);
