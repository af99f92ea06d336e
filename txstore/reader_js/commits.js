/** Reads the commits of a repository: in their versions, in group commits, and above the head cache. See format.md, "Finding the head". */

import { checked } from "./bytes.js";
import { Cache } from "./cache.js";
import { CorruptionError, RequestError } from "./errors.js";
import { SECTION_CARRIED, SECTION_GROUP_COMMIT, carriedBy, checkVersion, commitPath, decidedBy, decodeFooter, decodeHeader } from "./header.js";
import { checkRange } from "./source.js";

/** @import { Place, Stored } from "./header.js" */
/** @import { Reading, Source } from "./source.js" */
/** Which commit a branch's newest one was, or is: what a head cache says. @typedef {{ version: number, id: string, isDurable: boolean, isHere: boolean }} HeadCache */

const HEAD_CACHE = 64;
const HEAD = 64; // the first part of each pack
const TAIL = 16 << 10; // enough of a commit file's end for its header, and for the index of a small commit
const ENDS = 16 << 20; // bytes of the ends of commit files that are kept
const KNOWN_PACKS = 1 << 20; // bytes of memory for which packs are the ones that they were named as
const MAX_GROUP = 128; // commits of a group commit, at most
const SEARCHES = 5; // searches for a head, if a vacuum overtakes each

export class Commits {
  /** @param {Source} source @param {string} id of the repository */
  constructor(source, id) {
    this.source = source;
    this.id = id;
    /** @type {Cache<{ begin: number, bytes: Uint8Array }>} the ends of commit files, by path and id: after a restore, another commit may be in a version */
    this.ends = new Cache(ENDS);
    /** @type {Cache<void>} by path, id, and version of the file */
    this.packs = new Cache(KNOWN_PACKS);
    /** @type {Promise<boolean> | undefined} whether the server lists names, as far as that was found out */
    this.lists = undefined;
  }

  /**
   * Return the newest of a branch's own commits; undefined if it has none. See format.md, "Finding the head".
   * @param {string} id @param {number} [first] its first version, if it is known
   */
  async newest(id, first) {
    const lists = this.findLists(); // while the others are read: requests one after the other take longer
    let cache = await this.headCache(id);
    let above = cache ? this.stored(id, cache.version + 1) : undefined;
    above?.catch(() => undefined);
    let known = cache && (await this.named(id, cache));
    if (cache && !known) {
      above = undefined;
      cache = await this.headCache(id); // a vacuum may have deleted the commit meanwhile
      known = cache && (await this.named(id, cache));
    }
    if (cache && known && !cache.isHere && (await this.breakBelow(known, 0, first, await this.versions(`commits/${id}`))) !== undefined) known = undefined;
    let found = known && (await this.walkUp(known, above));
    for (let search = 0; search < SEARCHES; search++) {
      // Below the oldest kept version there are gaps: the head cache was written late, or a vacuum runs.
      if (found && (!(await lists) || found.header.version >= (await this.oldestKept(id)))) return found;
      found = await this.search(id, cache, first);
      if (!found) {
        this.lists = undefined; // a repository without commits has no directory of them
        return undefined;
      }
    }
    throw new CorruptionError(`oldest_kept/${id}: it names a version that is above all commits`);
  }

  /** Return what the head cache says now; null if it is damaged, undefined if there is none. @param {string} branch @returns {Promise<HeadCache | null | undefined>} */
  async headCache(branch) {
    const path = `heads/${branch}`;
    try {
      const bytes = await this.source.small(path, { isMutable: true });
      if (!bytes) return undefined;
      const reader = checked(bytes.subarray(0, HEAD_CACHE), path);
      reader.magic("TXSTHEAD");
      const [version, id] = [reader.u64(), reader.id()];
      reader.take(20);
      const place = reader.u32();
      // A reader that can't tell a copy takes it for the original.
      const isHere = !this.source.place || (place & ~1) >>> 0 === (await this.source.place());
      return { version, id, isDurable: (place & 1) === 1, isHere };
    } catch (error) {
      if (error instanceof CorruptionError) return null; // it is only a cache
      throw error;
    }
  }

  /** Return the commit that a head cache names, if it is there. @param {string} branch @param {HeadCache} cache */
  async named(branch, { version, id }) {
    const stored = await this.stored(branch, version);
    return stored?.header.id === id ? stored : undefined;
  }

  /** Tell whether the server lists names. @returns {Promise<boolean>} */
  findLists() {
    this.lists ??= this.source.list("commits").then((names) => names !== undefined);
    this.lists.catch(() => (this.lists = undefined));
    return this.lists;
  }

  /** Return the versions that files are named by, the highest first; undefined: no list. @param {string} directory */
  async versions(directory) {
    const names = await this.source.list(directory);
    const found = names?.filter((name) => /^(?:\d{10}|[1-9]\d{10,18})$/.test(name)).map(Number).sort((one, other) => other - one);
    if (found?.length && !Number.isSafeInteger(found[0])) throw new CorruptionError(`${directory}: it has a version that is too large`);
    return found;
  }

  /** Return the version below which commits may be gone, as far as a list tells. @param {string} branch */
  async oldestKept(branch) {
    return (await this.versions(`oldest_kept/${branch}`))?.[0] ?? 0;
  }

  /**
   * Return the newest whole commit that a list has; undefined if there is none, nor one that was lost.
   * @param {string} branch @param {HeadCache | null | undefined} cache @param {number} [first]
   */
  async search(branch, cache, first) {
    const kept = await this.oldestKept(branch);
    const versions = await this.versions(`commits/${branch}`);
    if (!versions) {
      // A branch without a head cache and without its first commit has none; `main` may have lost both.
      if (cache === undefined && (first === undefined || (first > 0 && !(await this.stored(branch, first))))) return undefined;
      const reason = cache ? "the commit that it names is gone" : cache === null ? "it is damaged" : "there is no such file";
      const advice = `${reason}, and this server lists no names: the newest commit can't be found. Try again in a moment, commit once more, or let the server list directories`;
      throw new (cache === undefined ? RequestError : CorruptionError)(`heads/${branch}: ${advice}`);
    }
    if (cache?.isDurable && cache.isHere && cache.version >= kept && !(await this.named(branch, cache))) {
      throw new CorruptionError(`${commitPath(branch, cache.version)}: the commit ${cache.id} was durable in this version and is not there. Run \`txstore verify\`, or copy again if this is a copy`);
    }
    const there = cache && !(this.source.place && cache.isHere) ? versions : undefined;
    let lowest = Infinity; // the lowest version whose chain of parents breaks at the same place
    for (const version of versions) {
      if (version < kept) break;
      if (version >= lowest) continue; // only commits above could vouch for it
      const stored = await this.stored(branch, version);
      const broken = stored && (await this.breakBelow(stored, kept, first, there));
      if (stored && broken === undefined) return this.walkUp(stored);
      lowest = broken ?? lowest;
    }
    for (const version of [...versions].reverse()) {
      const stored = await this.stored(branch, version);
      if (stored && (vouchedBy(stored) > (first ?? 0) || (there && version > (first ?? 0)))) missingBelow(stored);
    }
    return undefined;
  }

  /**
   * Return the version whose parent is missing; undefined if the commit is whole. One that a commit above vouches for is an error.
   * @param {Stored} stored @param {number} kept @param {number} [first] @param {number[]} [there] in a copy, where any may be missing, the versions that there are
   */
  async breakBelow(stored, kept, first, there) {
    const { version, oldestKept } = stored.header;
    const lowest = Math.max(oldestKept, kept, first ?? there?.at(-1) ?? 0);
    if (there) {
      let gap = lowest;
      for (const each of [...there].reverse()) if (each === gap) gap++;
      if (gap < version) return gap < vouchedBy(stored) ? missingBelow(stored) : version;
    }
    let vouched = 0; // below this version, commits were durable when one of the commits above was made
    let floor = kept;
    for (let last = stored; ; ) {
      const { header } = last;
      floor = Math.max(floor, header.oldestKept);
      if (header.version <= floor) return undefined;
      const below = await this.stored(header.fork ?? header.branch, header.version - 1);
      vouched = Math.max(vouched, vouchedBy(last));
      if (!below && header.fork === undefined && header.version <= vouched && (await this.oldestKept(header.branch)) < header.version) missingBelow(last);
      if (!below || !follows(last, below)) return header.version;
      if (header.fork !== undefined || below.header.version < vouched) return undefined;
      last = below;
    }
  }

  /** @param {Stored} stored */
  async carried(stored) {
    const section = stored.header.sections.find(({ kind }) => kind === SECTION_CARRIED);
    const bytes = section && (await this.read(stored, section.offset, section.offset + section.length));
    try {
      return bytes ? carriedBy(bytes, stored) : [];
    } catch (error) {
      if (error instanceof CorruptionError) return []; // they are in their own files, too
      throw error;
    }
  }

  /** Return the newest commit from one on. @param {Stored} known @param {Promise<Stored | undefined>} [ahead] what is in the version above it @returns {Promise<Stored>} */
  async walkUp(known, ahead) {
    let last = known;
    for (;;) {
      last = (await this.decided(last)).at(-1) ?? last;
      const { branch, version } = last.header;
      const above = await (ahead && version === known.header.version ? ahead : this.stored(branch, version + 1));
      if (!above || !follows(above, last)) return last;
      last = above;
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
    const { bytes, size } = end;
    const footer = decodeFooter(bytes, path);
    if (footer.fileLength !== size) throw new CorruptionError(`${path}: it has ${size} bytes instead of ${footer.fileLength}`);
    const lies = { path, base: 0, id: footer.id };
    const begin = size - bytes.length;
    void this.ends.get(`${path} ${lies.id}`, bytes.length, async () => ({ begin, bytes }));
    void this.notePack(lies);
    const [from, to] = [footer.headerOffset, footer.headerOffset + footer.headerLength];
    const encoded = from >= begin ? bytes.subarray(from - begin, to - begin) : await this.read(lies, from, to);
    const { header, hash } = decodeHeader(encoded, footer, path);
    if (header.repository !== this.id || header.branch !== branch || header.version !== version) {
      throw new CorruptionError(`${path}: this commit belongs to another repository, branch or version`);
    }
    return { header, hash, ...lies };
  }

  /**
   * Return what is read of a pack, if its file is the one that was named: checksums say so of whole values, and neither of parts nor of runs.
   * @template T
   * @param {Place} place @param {Promise<T>} reading @returns {Promise<T>}
   */
  async ofPack(place, reading) {
    const [found] = await Promise.all([reading, this.checkPack(place)]);
    await this.checkPack(place); // after a restore, say, another file may have answered than before
    return found;
  }

  /** @param {Place} place */
  async checkPack({ path, id }) {
    const check = async () => {
      const reader = checked(await this.read({ path, base: 0, id }, 0, HEAD), path);
      reader.magic("TXSTPACK");
      checkVersion(reader);
      reader.take(4);
      if (reader.id() !== id || reader.id() !== this.id) reader.fail("it is another pack than the one that was named, or of another repository");
      this.notePack({ path, id });
    };
    await this.notePack({ path, id }, check);
  }

  /** Remember which pack a file is. @param {{ path: string, id: string }} file @param {() => Promise<void>} [check] */
  notePack({ path, id }, check = async () => undefined) {
    return this.packs.get(`${path} ${id} ${this.source.tags?.get(path)}`, path.length * 2, check);
  }

  /** Read bytes of a commit. @param {Place} place @param {number} from @param {number} to @param {Reading} [reading] */
  async read({ path, base, id }, from, to, reading) {
    const [begin, end] = [base + from, base + to];
    checkRange(path, begin, end);
    const known = await this.ends.kept.get(`${path} ${id}`)?.value;
    if (known && begin >= known.begin && end <= known.begin + known.bytes.length) return known.bytes.subarray(begin - known.begin, end - known.begin);
    const bytes = await this.source.range(path, begin, end, reading);
    if (!bytes) throw new CorruptionError(`${path}: the file is missing. If a vacuum has deleted it since this commit was opened, open the repository again; else restore it from a backup`);
    if (bytes.length !== end - begin) throw new CorruptionError(`${path}: it ends before byte ${end}`);
    return bytes;
  }
}

/** Return the version below which all commits were durable when this one was made, as far as it says. @param {Stored} stored */
const vouchedBy = ({ header }) => (header.synced ? header.version - header.pending : 0);

/** @param {Stored} above @returns {never} */
function missingBelow({ header }) {
  throw new CorruptionError(`commits/${header.branch}: there is version ${header.version}, and a commit below it is missing. If this is a copy, copy again`);
}

/** Tell whether a commit has another as its parent. @param {Stored} above @param {Stored} below */
export function follows({ header }, below) {
  return header.parent === below.header.id && (below.hash === undefined || header.parentHash === "" || header.parentHash === below.hash);
}
