/** A repository: finds commits, branches and tags. See format.md, "Files" and "Finding the head". */

import { Cache } from "./cache.js";
import { Reader, checked } from "./bytes.js";
import { crc32c } from "./checksums.js";
import { CorruptionError, NotFoundError, RequestError } from "./errors.js";
import {
  FOOTER, SECTION_CARRIED, SECTION_GROUP_COMMIT, branchOf, carriedBy, commitPath, decidedBy, decodeFooter, decodeHeader, newer,
} from "./header.js";
import { Store } from "./store.js";
import { withSignal } from "./source.js";

/** @typedef {import("./header.js").Stored} Stored */
/** @typedef {import("./source.js").Reading} Reading */
/** @typedef {import("./source.js").Source} Source */

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
const NONE = "0".repeat(32);
const HEAD_CACHE = 64;
/** Enough of a commit file's end for its header, and for the index of a small commit. */
const TAIL = 16 << 10;
/** Bytes of the ends of commit files that are kept. */
const ENDS = 16 << 20;
/** Commits of a group commit, at most. */
const MAX_GROUP = 128;
/** Commits that are read at once for a log. */
const AT_ONCE = 8;
const MAX_SMALL = 4 << 20;

/** Open a repository over a source. @param {Source} source @param {Options} options @param {Reading} reading */
export async function open(source, options, reading) {
  const [format, head] = await Promise.all([
    source.whole("format.json", { ...reading, isMutable: true }),
    // it is needed next, as a rule
    source.whole("heads/main", { ...reading, isMutable: true }).catch(() => undefined),
  ]);
  if (!format) throw new NotFoundError(`${source.url}: there is no repository: it has no format.json. Look at the URL`);
  return new Repository(source, repositoryOf(format), options, head);
}

/** @param {Uint8Array} bytes of `format.json` */
function repositoryOf(bytes) {
  const path = "format.json";
  const reader = new Reader(bytes, path);
  if (bytes.length > MAX_SMALL) reader.fail("it is too long");
  const members = reader.json(bytes.length);
  const { txstore: version, repository, required, checksum } = members;
  if (Number.isInteger(version) && version > 1) throw newer(path, `format version ${version}`);
  delete members.checksum;
  if (checksum !== checksumOf(members)) reader.fail("it has a wrong checksum");
  if (version !== 1 || !/^[0-9a-f]{32}$/.test(repository) || !Number.isInteger(required)) reader.fail("it names no repository");
  const unknown = (required >>> 0) & ~1;
  if (unknown) throw newer(path, `required feature ${31 - Math.clz32(unknown & -unknown)}`);
  return /** @type {string} */ (repository);
}

/** The CRC-32C of an object as JSON: sorted names, no white space, ASCII. @param {Record<string, unknown>} members */
function checksumOf(members) {
  /** @param {unknown} value @returns {string} */
  const written = (value) => {
    if (Array.isArray(value)) return `[${value.map(written).join(",")}]`;
    if (value === null || typeof value !== "object") return JSON.stringify(value);
    const inOrder = Object.entries(value).sort(([one], [other]) => (one < other ? -1 : 1));
    return `{${inOrder.map(([name, each]) => `${JSON.stringify(name)}:${written(each)}`).join(",")}}`;
  };
  const ascii = written(members).replace(/[\u007f-\uffff]/g, (sign) => `\\u${sign.charCodeAt(0).toString(16).padStart(4, "0")}`);
  return crc32c(new TextEncoder().encode(ascii)).toString(16).padStart(8, "0");
}

export class Repository {
  /** @param {Source} source @param {string} id @param {Options} options @param {Uint8Array | undefined} head the head cache of `main`, as it was a moment ago */
  constructor(source, id, options, head) {
    this.source = source;
    this.id = id;
    this.options = options;
    this.expected = head;
    /** @type {Cache<{ begin: number, bytes: Uint8Array }>} the ends of commit files, by path */
    this.ends = new Cache(ENDS);
    /** @type {Cache<import("./run.js").Entry[]>} */
    this.blocks = new Cache(options.cacheBytes ?? 32 << 20);
    /** @type {Cache<import("./run.js").Run>} */
    this.runs = new Cache(options.cacheBytes ?? 32 << 20);
    /** @type {Map<string, string>} names of branches by their ids, as far as they are known */
    this.names = new Map([["main", "main"]]);
  }

  // --- what a user calls

  /**
   * Return a store for zarrita: the repository as one commit has it.
   * @param {string | number} [at] a branch, a tag, the id of a commit, or a version of the branch `main`
   * @param {{ signal?: AbortSignal }} [reading]
   * @returns {Promise<Store>}
   */
  async at(at = "main", reading = {}) {
    return withSignal(this.storeAt(at), reading.signal);
  }

  /**
   * Return the commits of a branch, the newest first.
   * @param {{ branch?: string, limit?: number, signal?: AbortSignal }} [options]
   * @returns {Promise<Commit[]>}
   */
  async log({ branch = "main", limit = Infinity, signal } = {}) {
    return withSignal(this.logOf(branch, limit), signal);
  }

  /** Return the names of the branches. Needs a server that lists names. @param {Reading} [reading] @returns {Promise<string[]>} */
  async branches(reading = {}) {
    const records = await Promise.all((await this.list("branches", reading)).map((name) => this.recordOf(name)));
    const names = records.filter((record) => record !== undefined).map((record) => record.name);
    return ["main", ...names.sort()];
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

  // --- names

  /** @param {string} directory @param {Reading} reading */
  async list(directory, reading) {
    const names = await this.source.list(directory, reading);
    // A server that lists the commits has no such directory; another one may have it and not say so.
    if (!names && !(await this.source.list("commits", reading))) {
      throw new RequestError(`${this.source.url}: this server lists no names. Ask for a branch or a tag by its name, or let the server list directories`);
    }
    return (names ?? []).filter(isName);
  }

  /** @param {string} name @returns {Promise<Branch | undefined>} */
  async recordOf(name) {
    const path = `branches/${name.toLowerCase()}`;
    const bytes = await this.source.whole(path, { isMutable: true });
    if (!bytes) return undefined;
    const reader = checked(bytes, path);
    reader.magic("TXSTBRN1");
    const [id, fork] = [reader.id(), reader.id()];
    reader.take(16);
    const given = reader.text(reader.u8());
    /** @type {{ id: string, upto: number }[]} */
    const lineage = [];
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

  /** @param {string} name */
  async tagged(name) {
    const path = `tags/${name}`;
    const bytes = isName(name) ? await this.source.whole(path, { isMutable: true }) : undefined;
    if (!bytes) return undefined;
    const reader = checked(bytes, path);
    reader.magic("TXSTTAG1");
    const [version, id] = [reader.u64(), reader.id()];
    const branch = branchOf(reader, reader.left);
    const stored = await this.stored(branch, version);
    if (stored?.header.id !== id) {
      throw new CorruptionError(`${path}: the commit ${id} that it names is gone. Restore the repository from a backup`);
    }
    return stored;
  }

  // --- commits

  /** @param {string | number} at */
  async storeAt(at) {
    const stored = await this.find(at);
    return new Store(this, stored, stored ? this.commitOf(stored) : undefined);
  }

  /** @param {string | number} at @returns {Promise<Stored | undefined>} undefined: no commit was made yet */
  async find(at) {
    if (typeof at === "number") return this.version(at);
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

  /** @param {number} version */
  async version(version) {
    const head = await this.head(MAIN);
    const stored = Number.isInteger(version) && version >= 0 && head && version <= head.header.version ? await this.made("main", version) : undefined;
    if (stored && version >= /** @type {Stored} */ (head).header.oldestKept) return stored;
    throw new NotFoundError(`${this.source.url}: there is no version ${version}${head ? `: those that are kept are ${head.header.oldestKept} to ${head.header.version}` : ""}`);
  }

  /** @param {Branch} branch @returns {Promise<Stored | undefined>} */
  async head(branch) {
    const [below] = branch.lineage;
    const found = await this.newest(branch.id, below ? below.upto + 1 : 0);
    if (found) return found;
    if (!below) return undefined;
    const fork = await this.stored(below.id, below.upto);
    if (fork?.header.id !== branch.fork?.id) throw new CorruptionError(`branches/${branch.name}: the commit that it begins at is gone`);
    return fork;
  }

  /** Return the commit that the head cache names; it may be some commits behind. @param {string} branch */
  async cachedHead(branch) {
    const expected = branch === "main" ? this.expected : undefined;
    this.expected = undefined; // the next caller wants a newer one
    const path = `heads/${branch}`;
    const bytes = expected ?? (await this.source.whole(path, { isMutable: true }));
    try {
      if (!bytes || bytes.length < HEAD_CACHE) return undefined;
      const reader = checked(bytes.subarray(0, HEAD_CACHE), path);
      reader.magic("TXSTHEAD");
      const version = reader.u64();
      const [id, length, offset, headerLength] = [reader.id(), reader.u64(), reader.u64(), reader.u32()];
      const tail = bytes.subarray(HEAD_CACHE);
      const end = offset + headerLength + FOOTER === length && tail.length > headerLength + FOOTER ? tail : undefined;
      const stored = await (end ? this.decode(branch, version, end, length) : this.stored(branch, version));
      return stored?.header.id === id ? stored : undefined;
    } catch (error) {
      if (error instanceof CorruptionError) return undefined; // it is only a cache
      throw error;
    }
  }

  /** Return the newest commit from one on. @param {Stored} known @returns {Promise<Stored>} */
  async walkUp(known) {
    let last = known;
    for (;;) {
      last = (await this.decided(last)).at(-1) ?? last;
      const above = await this.next(last.header.branch, last.header.version + 1);
      if (!above || !follows(above, last)) return last;
      last = above;
    }
  }

  /** As `stored`, of a version that may not be there: S3 answers 403 then to those who may not list. @param {string} branch @param {number} version */
  async next(branch, version) {
    try {
      return await this.stored(branch, version);
    } catch (error) {
      if (error instanceof RequestError && error.status === 403) return undefined;
      throw error;
    }
  }

  /** Return the commits that a group commit has decided behind this one. @param {Stored} stored */
  async decided(stored) {
    const section = stored.header.sections.find(({ kind }) => kind === SECTION_GROUP_COMMIT);
    if (!section || !stored.header.group) return [];
    const bytes = await this.read(stored, section.offset, section.offset + section.length);
    return decidedBy(bytes, section.offset, stored);
  }

  /** As `stored`, of a version at or below a head: a group commit may have decided it, and its own file may not exist yet. @param {string} branch @param {number} version */
  async made(branch, version) {
    const stored = await this.stored(branch, version);
    for (let below = version - 1; !stored && below >= Math.max(0, version - MAX_GROUP); below--) {
      const leader = await this.stored(branch, below);
      if (leader) return (await this.decided(leader)).find(({ header }) => header.version === version);
    }
    return stored;
  }

  /** Return the commit in a version of a branch's own; undefined if there is none. @param {string} branch @param {number} version @returns {Promise<Stored | undefined>} */
  async stored(branch, version) {
    const path = commitPath(branch, version);
    const end = await this.source.tail(path, TAIL);
    if (!end) return undefined;
    return this.decode(branch, version, end.bytes, end.size);
  }

  /** @param {string} branch @param {number} version @param {Uint8Array} tail @param {number} size @returns {Stored | Promise<Stored>} */
  decode(branch, version, tail, size) {
    const path = commitPath(branch, version);
    const footer = decodeFooter(tail, path);
    if (footer.fileLength !== size) throw new CorruptionError(`${path}: it has ${size} bytes instead of ${footer.fileLength}`);
    const begin = size - tail.length;
    void this.ends.get(path, tail.length, async () => ({ begin, bytes: tail }));
    const made = (/** @type {Uint8Array} */ encoded) => {
      const { header, hash } = decodeHeader(encoded, footer, path);
      if (header.repository !== this.id || header.branch !== branch || header.version !== version) {
        throw new CorruptionError(`${path}: this commit belongs to another repository, branch or version`);
      }
      return { header, hash, path, base: 0 };
    };
    if (footer.headerOffset >= begin) {
      return made(tail.subarray(footer.headerOffset - begin, footer.headerOffset - begin + footer.headerLength));
    }
    return this.bytes(path, footer.headerOffset, footer.headerOffset + footer.headerLength).then(made);
  }

  /** Read bytes of a commit. @param {import("./header.js").Place} place @param {number} begin @param {number} end @param {Reading} [reading] */
  read(place, begin, end, reading) {
    return this.bytes(place.path, place.base + begin, place.base + end, reading);
  }

  /** @param {string} path @param {number} begin @param {number} end @param {Reading} [reading] */
  async bytes(path, begin, end, reading) {
    const known = await this.ends.kept.get(path)?.value;
    if (known && begin >= known.begin && end <= known.begin + known.bytes.length) {
      return known.bytes.subarray(begin - known.begin, end - known.begin);
    }
    const bytes = await this.source.range(path, begin, end, reading);
    if (!bytes) throw new CorruptionError(`${path}: the file is missing. If a vacuum has deleted it since this commit was opened, open the repository again; else restore it from a backup`);
    if (bytes.length !== end - begin) throw new CorruptionError(`${path}: it ends before byte ${end}`);
    return bytes;
  }

  // --- history

  /** @param {string} name @param {number} limit */
  async logOf(name, limit) {
    const branch = await this.branch(name);
    if (!branch) throw new NotFoundError(`${this.source.url}: there is no branch ${JSON.stringify(name)}`);
    const found = [];
    for await (const stored of this.walk(branch, limit)) found.push(this.commitOf(stored));
    return found;
  }

  /** Yield the commits of a branch, the newest first, down to the oldest that is kept. @param {Branch} branch @param {number} [limit] @returns {AsyncGenerator<Stored>} */
  async *walk(branch, limit = Infinity) {
    let last = await this.head(branch);
    if (!last || limit <= 0) return;
    let floor = last.header.oldestKept;
    if (last.header.branch !== branch.id) floor = (await this.newest(last.header.branch))?.header.oldestKept ?? floor;
    yield last;
    /** @type {Map<string, Promise<Stored | undefined>>} commits that are being read */
    const ahead = new Map();
    for (let left = limit - 1; left > 0 && last.header.version > floor && last.header.parent !== NONE; ) {
      for (const told of await this.carried(last)) {
        if (left-- <= 0 || told.header.version < floor) return;
        yield (last = told);
      }
      const { fork, branch: own, version, parent } = last.header;
      if (left <= 0 || version <= floor || parent === NONE) return;
      const lowest = fork === undefined ? Math.max(floor, version - Math.min(AT_ONCE, left)) : version - 1;
      for (let below = version - 1; below >= lowest; below--) {
        const path = commitPath(fork ?? own, below);
        if (ahead.has(path)) continue;
        const found = this.made(fork ?? own, below);
        found.catch(() => undefined); // whoever comes to it is told
        ahead.set(path, found);
      }
      const path = commitPath(fork ?? own, version - 1);
      const below = await ahead.get(path);
      ahead.delete(path);
      // A vacuum deletes what only a deleted branch has kept.
      if (!below && (fork !== undefined || !(await this.isLiving(own)))) return;
      if (!below || !follows(last, below)) {
        throw new CorruptionError(`${path}: the parent of version ${version} is gone. Run \`txstore verify\``);
      }
      left--;
      yield (last = below);
      if (fork !== undefined) floor = await this.floor(last.header);
    }
  }

  /** Return the oldest kept version of the branch that a commit lies in. Of a deleted branch, only that commit is kept. @param {import("./header.js").Header} header */
  async floor({ branch, version }) {
    const newest = (await this.isLiving(branch)) ? await this.newest(branch) : undefined;
    return newest?.header.oldestKept ?? version;
  }

  /** Tell whether a branch has a record. Where the server lists none, it may have. @param {string} id */
  async isLiving(id) {
    if (id === "main") return true;
    const names = await this.source.list("branches");
    if (!names) return true;
    const records = await Promise.all(names.filter(isName).map((name) => this.recordOf(name)));
    return records.some((record) => record?.id === id);
  }

  /** Return the newest of a branch's own commits. @param {string} id @param {number} [first] its first version, if it is known */
  async newest(id, first) {
    const known = await this.cachedHead(id);
    if (known) return this.walkUp(known);
    const names = await this.source.list(`commits/${id}`);
    const versions = (names ?? []).filter((name) => /^\d{10,19}$/.test(name)).map(Number);
    for (const version of versions.sort((one, other) => other - one)) {
      const stored = await this.stored(id, version);
      if (stored) return this.walkUp(stored);
    }
    const lowest = names || first === undefined ? undefined : await this.next(id, first);
    return lowest && this.walkUp(lowest);
  }

  /** @param {Stored} stored */
  async carried(stored) {
    const section = stored.header.sections.find(({ kind }) => kind === SECTION_CARRIED);
    return section ? carriedBy(await this.read(stored, section.offset, section.offset + section.length), stored) : [];
  }
}

/** Tell whether a text may be the name of a branch or a tag. @param {string} name */
const isName = (name) => /^[A-Za-z0-9_][A-Za-z0-9._-]{0,99}$/.test(name);

/** Tell whether a commit has another as its parent. @param {Stored} above @param {Stored} below */
function follows({ header }, below) {
  return header.parent === below.header.id && (below.hash === undefined || header.parentHash === "" || header.parentHash === below.hash);
}
