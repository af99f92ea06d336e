/** Reads the commits of a repository: in their versions, in group commits, and above the head cache. See format.md, "Finding the head". */

import { checked } from "./bytes.js";
import { Cache } from "./cache.js";
import { CorruptionError, RequestError } from "./errors.js";
import { FOOTER, SECTION_CARRIED, SECTION_GROUP_COMMIT, carriedBy, commitPath, decidedBy, decodeFooter, decodeHeader } from "./header.js";

/** @typedef {import("./header.js").Stored} Stored */
/** @typedef {import("./source.js").Reading} Reading */
/** @typedef {import("./source.js").Source} Source */

const HEAD_CACHE = 64;
/** Enough of a commit file's end for its header, and for the index of a small commit. */
const TAIL = 16 << 10;
/** Bytes of the ends of commit files that are kept. */
const ENDS = 16 << 20;
/** Commits of a group commit, at most. */
const MAX_GROUP = 128;

export class Commits {
  /** @param {Source} source @param {string} id of the repository @param {Uint8Array | undefined} head the head cache of `main`, as it was a moment ago */
  constructor(source, id, head) {
    this.source = source;
    this.id = id;
    this.expected = head;
    /** @type {Cache<{ begin: number, bytes: Uint8Array }>} the ends of commit files, by path */
    this.ends = new Cache(ENDS);
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

  /** As `stored`, of a version at or below a head: a group commit may have decided it, and its own file may not exist yet. @param {string} branch @param {number} version @param {number} [tail] bytes to read at first */
  async made(branch, version, tail) {
    const stored = await this.stored(branch, version, tail);
    for (let below = version - 1; !stored && below >= Math.max(0, version - MAX_GROUP); below--) {
      const leader = await this.stored(branch, below);
      if (leader) return (await this.decided(leader)).find(({ header }) => header.version === version);
    }
    return stored;
  }

  /** Return the commit in a version of a branch's own; undefined if there is none. @param {string} branch @param {number} version @param {number} [tail] bytes to read at first @returns {Promise<Stored | undefined>} */
  async stored(branch, version, tail = TAIL) {
    const path = commitPath(branch, version);
    const end = await this.source.tail(path, tail);
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
}

/** Tell whether a commit has another as its parent. @param {Stored} above @param {Stored} below */
export function follows({ header }, below) {
  return header.parent === below.header.id && (below.hash === undefined || header.parentHash === "" || header.parentHash === below.hash);
}
