/** Decodes commit files: footer, header, and what other commits a file tells of. See format.md, "Packs". */

import { Reader, checked, hex } from "./bytes.js";
import { blake2b128, crc32c } from "./checksums.js";
import { UnsupportedError } from "./errors.js";

const VERSION = 1;
const HEAD = 64;
export const FOOTER = 64;
const MAX_HEADER = 64 << 20;
const MAX_LISTED = 1024;
const MAX_TIME = 253402300799999999; // microseconds, of the year 9999: more than JavaScript counts exactly
const KNOWN = 1; // required features 0 to 31 are of readers; this one knows: 0, foreign values
export const SECTION_CARRIED = 2;
export const SECTION_GROUP_COMMIT = 3;

/** @typedef {{ kind: number, offset: number, length: number }} Section */
/** @typedef {{ path: string, base: number, id: string }} Place a file that values or runs lie in, where in it their offsets begin, and the id of the pack that it has to be */
/**
 * A run as a header lists it.
 * @typedef {object} RunName
 * @property {Place | null} pack null: the file of the commit
 * @property {number} seq of the commit that has made it, which its own entries do not repeat; 0: they name theirs
 * @property {number} offset @property {number} length @property {number} entries
 */

/** Constraints, views, or cursors of feeds, by their names, as they hold at the commit. @typedef {Record<string, any>} Declared */
/**
 * @typedef {object} Header
 * @property {string} repository @property {string} id @property {string} parent @property {string} parentHash
 * @property {number} version @property {number} seq @property {number} oldestKept
 * @property {number} time microseconds since 1970, UTC
 * @property {boolean} synced whether all commits below were durable, but for the names of those that are pending
 * @property {number} pending
 * @property {string} branch the id of its branch
 * @property {string} author @property {string} message
 * @property {Record<string, unknown>} properties
 * @property {number[]} statistics keys set, keys deleted, prefixes deleted, bytes of the values set, arrays touched
 * @property {Section[]} sections @property {RunName[]} runs
 * @property {string | undefined} fork the id of its parent's branch, if that is another
 * @property {{ id: string, version: number, branch: string } | undefined} merged the other parent
 * @property {{ place: number, length: number } | undefined} group
 * @property {{ constraints: Declared, views: Declared, cursors: Declared }} declared
 */

/** @typedef {{ headerLength: number, headerOffset: number, fileLength: number, id: string, headerChecksum: number }} Footer */

/**
 * A commit, and where its bytes lie: in a group commit, a part of the leader's file.
 * @typedef {object} Stored
 * @property {Header} header
 * @property {string | undefined} hash of its header; undefined: not known
 * @property {string} path @property {number} base where in that file the commit's own begins
 * @property {string} id of the pack that the file is
 */

/** @param {string} branch @param {number} version */
export const commitPath = (branch, version) => `commits/${branch}/${String(version).padStart(10, "0")}`;

/** @param {string} id */
export const isBranchId = (id) => id === "main" || /^[0-9a-f]{32}$/.test(id);

/** @param {string} path @param {string} what */
export function newer(path, what) {
  return new UnsupportedError(`${path}: it has ${what}, which this reader does not know: use a newer one`);
}

/** @param {string} path @param {number} required bits */
export function checkFeatures(path, required) {
  const unknown = required & ~KNOWN;
  if (unknown) throw newer(path, `required feature ${31 - Math.clz32(unknown & -unknown)}`);
}

/** Read the format version of a footer or head. @param {Reader} reader */
export function checkVersion(reader) {
  const version = reader.u32();
  if (version !== VERSION) throw newer(reader.path, `format version ${version}`);
}

/** @param {Uint8Array} bytes the last ones of a file @param {string} path @returns {Footer} */
export function decodeFooter(bytes, path) {
  if (bytes.length < FOOTER) new Reader(bytes, path).fail("it is too short for a commit");
  const reader = checked(bytes.subarray(-FOOTER), path);
  reader.magic("TXSTFOOT");
  checkVersion(reader);
  const footer = { headerLength: reader.u32(), headerOffset: reader.u64(), fileLength: reader.u64(), id: reader.id(), headerChecksum: reader.u32() };
  if (footer.headerLength > MAX_HEADER || footer.headerOffset + footer.headerLength + FOOTER !== footer.fileLength) reader.fail("its footer has wrong lengths");
  return footer;
}

/** @param {Uint8Array} bytes @param {Footer} footer @param {string} path @returns {{ header: Header, hash: string }} */
export function decodeHeader(bytes, footer, path) {
  const reader = new Reader(bytes, path);
  if (crc32c(bytes) !== footer.headerChecksum) reader.fail("its header has a wrong checksum");
  const header = headerOf(reader);
  if (header.id !== footer.id) reader.fail("header and footer name different commits");
  for (const { offset, length } of header.sections) {
    if (offset < HEAD || offset + length > footer.headerOffset) reader.fail("a section lies outside of the file");
  }
  return { header, hash: hex(blake2b128(bytes)) };
}

/** @param {Reader} reader @returns {Header} */
function headerOf(reader) {
  const { path } = reader;
  reader.magic("TXHD");
  const kind = reader.u16();
  const checksum = reader.u16();
  const ofReaders = reader.u32();
  reader.u32(); // those of processes that commit
  checkFeatures(path, ofReaders);
  if (kind !== 1 || checksum !== 1) throw newer(path, `a header of kind ${kind} with checksums of kind ${checksum}`);
  const synced = (reader.u32() & 1) === 0;
  reader.u32(); // other optional features
  /** @type {Header} */
  const header = {
    repository: reader.id(), id: reader.id(), parent: reader.id(), parentHash: reader.id(),
    version: reader.u64(), seq: reader.u64(), oldestKept: reader.u64(), time: reader.u64(MAX_TIME),
    synced, pending: 0, branch: "", author: "", message: "", properties: {}, statistics: [], sections: [], runs: [],
    fork: undefined, merged: undefined, group: undefined, declared: { constraints: {}, views: {}, cursors: {} },
  };
  if (header.seq <= header.version || header.oldestKept > header.version) reader.fail("its header has impossible numbers");
  let before = -1;
  while (reader.left) {
    const type = reader.u16();
    if (type <= before) reader.fail("the fields of its header are out of order");
    before = type;
    field(header, type, new Reader(reader.take(reader.u32()), path));
  }
  if (!isBranchId(header.branch)) reader.fail("its branch has an impossible id");
  if (header.pending > header.version) reader.fail("its header has impossible numbers");
  return header;
}

/** @param {Header} header @param {number} type @param {Reader} reader */
function field(header, type, reader) {
  const { left } = reader;
  if (type === 1) header.branch = reader.text(left);
  else if (type === 2) header.author = reader.text(left);
  else if (type === 3) header.message = reader.text(left);
  else if (type === 4) header.properties = reader.json(left);
  else if (type === 5) {
    while (reader.left && header.statistics.length < 5) header.statistics.push(reader.varint());
  } else if (type === 6) {
    while (reader.left) header.sections.push({ kind: reader.varint(), offset: reader.varint(), length: reader.varint() });
    if (header.sections.length > MAX_LISTED) reader.fail("its header lists too many sections");
  } else if (type === 7) header.runs = runsOf(reader);
  else if (type === 9) header.pending = reader.varint();
  else if (type === 10) header.declared.constraints = reader.json(left);
  else if (type === 11) header.fork = branchOf(reader, left);
  else if (type === 12) {
    const id = reader.id();
    reader.take(16);
    header.merged = { id, version: reader.varint(), branch: branchOf(reader, reader.left) };
  } else if (type === 14) {
    header.group = { place: reader.varint(), length: reader.varint() };
    if (header.group.place >= header.group.length || header.group.length > 128) reader.fail("its group commit is impossible");
  } else if (type === 15) header.declared.views = reader.json(left);
  else if (type === 16) header.declared.cursors = reader.json(left);
}

/** @param {Reader} reader @param {number} length */
export function branchOf(reader, length) {
  const id = reader.text(length);
  if (!isBranchId(id)) reader.fail("a branch in it has an impossible id");
  return id;
}

/** @param {Reader} reader @returns {RunName[]} */
function runsOf(reader) {
  const runs = /** @type {RunName[]} */ ([]);
  const places = new Set();
  while (reader.left) {
    const length = reader.varint();
    const pack = length ? packOf(new Reader(reader.take(length), reader.path)) : null;
    const run = { pack, seq: reader.varint(), offset: reader.varint(), length: reader.varint(), entries: reader.varint() };
    reader.varint(); // highest seq
    places.add(`${pack?.path} ${run.offset}`);
    runs.push(run);
  }
  if (runs.length > MAX_LISTED || places.size !== runs.length) reader.fail("its header lists impossible runs");
  return runs;
}

/** Decode a pack entry, to its end. @param {Reader} reader @returns {Place} */
export function packOf(reader) {
  const kind = reader.u8();
  if (kind !== 1 && kind !== 2) throw newer(reader.path, `a pack of kind ${kind}`);
  const id = reader.id();
  if (kind === 2) {
    if (reader.left) reader.fail("a pack in it has a wrong name");
    return { path: `packs/${id.slice(0, 2)}/${id}`, base: 0, id };
  }
  const version = reader.varint();
  return { path: commitPath(branchOf(reader, reader.left), version), base: 0, id };
}

/**
 * Return the commits that a commit carries: those right before it on its branch, the newest first.
 * @param {Uint8Array} bytes of the section @param {Stored} stored
 */
export function carriedBy(bytes, stored) {
  const found = [];
  let last = stored;
  const reader = checked(bytes, stored.path);
  reader.magic("TXCH");
  while (reader.left) {
    const encoded = reader.take(reader.u32());
    const footer = decodeFooter(reader.take(FOOTER), reader.path);
    const path = commitPath(last.header.branch, last.header.version - 1);
    const { header, hash } = decodeHeader(encoded, footer, path);
    if (hash !== last.header.parentHash || header.id !== last.header.parent || last.header.fork || commitPath(header.branch, header.version) !== path) break;
    last = { header, hash, path, base: 0, id: header.id };
    found.push(last);
  }
  return found;
}

/**
 * Return the commits that a group commit has decided besides its leader, in order. Their own files may not exist yet.
 * @param {Uint8Array} bytes of the section @param {number} offset of the section in the file @param {Stored} leader
 */
export function decidedBy(bytes, offset, leader) {
  const { path, header: { group } } = leader;
  if (bytes.every((byte) => byte === 0)) return []; // an erasure has filled it: the commits are in their versions
  const reader = new Reader(bytes, path);
  const count = reader.varint();
  if (!group || group.place !== 0 || count !== group.length - 1) reader.fail("its group commit has another length");
  const found = [];
  let last = leader;
  for (let place = 1; place <= count; place++) {
    const length = reader.varint();
    const base = offset + reader.at;
    const file = reader.take(length);
    const footer = decodeFooter(file, path);
    if (footer.fileLength !== length) reader.fail("a proposal in it has a wrong length");
    const { header } = decodeHeader(file.subarray(footer.headerOffset, footer.headerOffset + footer.headerLength), footer, path);
    const own = header.sections[0];
    if (!own || own.kind !== 1) reader.fail("a proposal in it has no run of its own");
    const parent = last.header;
    const lies = { path: last.path, base: last.base, id: leader.id };
    last = {
      header: {
        ...header,
        parent: parent.id, parentHash: last.hash ?? "", version: parent.version + 1, seq: parent.seq + 1,
        oldestKept: parent.oldestKept, time: Math.max(header.time, parent.time + 1), sections: [own],
        runs: [{ ...header.runs[0], seq: parent.seq + 1 }, ...parent.runs.map((run) => ({ ...run, pack: run.pack ?? lies }))],
        group: { place, length: count + 1 },
      },
      hash: undefined, path, base, id: leader.id,
    };
    found.push(last);
  }
  return found;
}
