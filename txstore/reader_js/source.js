/** Reads files of a repository over HTTP: small ones, and ranges. Near ranges of one file are read by one request. */

import { joined } from "./bytes.js";
import { CorruptionError, RequestError } from "./errors.js";

/**
 * What the reader needs to know of where the files lie. What reads a file returns undefined if there is none.
 * @typedef {Pick<HttpSource, "url" | "small" | "range" | "tail" | "list"> & Hints} Source
 *
 * @typedef {object} Hints
 * @property {typeof fetch} [fetch] what makes requests, if that is not the global one
 * @property {Map<string, string>} [tags] of which version each file was when it was read last, as its host says
 * @property {() => Promise<number>} [place] where head caches were written that tell of these files, if that is known
 */

/** @typedef {object} Reading @property {AbortSignal} [signal] @property {boolean} [isMutable] whether the file may be replaced: no cache may answer for the server */

/** @typedef {{ bytes: Uint8Array, size: number }} End the end of a file, and the length of the whole file */

/**
 * @typedef {object} HttpOptions
 * @property {typeof fetch} [fetch] called instead of `fetch`: to sign requests, say
 * @property {number} [retries] how often a request is made again that the server could not answer; by default 4
 * @property {RequestInit} [init] of each request
 * @property {boolean} [listsPages] whether the server is known to list names by pages: else that is found out
 */

const GAP = 16 << 10; // ranges of one file with less than this between them are read by one request
const JOINED = 8 << 20; // no request for several ranges is longer
export const MAX_SMALL = 4 << 20; // no small file is longer
const MAX_RANGE = 1 << 30; // no more is read of a file at once, whatever a header or an entry declares
const MAX_WHOLE = 256 << 20; // no more is read of a file that a server sends whole, as it knows no ranges
const MAX_LIST = 64 << 20; // no page of a list is longer
const FEW = 100; // pages of a list, and names of one: longer lists have more on each page
const MAX_NAMES = 4_000_000;
export const MAX_TAGS = 10_000; // files of which the version is remembered
export const FORMAT = "format.json";
const FIRST_PAUSE = 100;
const ADVICE = ": give credentials by the option `fetch` or `init`, or open the bucket to readers";
const MISSING = new Set([404, 410]);
const PASSING = new Set([408, 425, 429, 500, 502, 503, 504]);

/** @typedef {{ begin: number, end: number, resolve: (bytes: Uint8Array | undefined) => void, reject: (error: unknown) => void }} Wanted */
/** Lists a directory. undefined: there is none, or this is no list. @typedef {(path: string, options: Reading, retries?: number) => Promise<string[] | undefined>} Way */
/**
 * A part of a file: from one offset to another, or at most `tail` of the last bytes. With `isWhole`, the reader refuses a part that the file ends before, and reads none of it.
 * @typedef {{ begin: number, end: number, isWhole?: boolean } | { tail: number }} Part
 */

export class HttpSource {
  /** @param {string} url @param {HttpOptions} options */
  constructor(url, options = {}) {
    this.url = url.replace(/\/+$/, "");
    this.retries = options.retries ?? 4;
    this.init = options.init ?? {};
    this.fetch = options.fetch ?? ((input, init) => fetch(input, init));
    /** @type {Map<string, Wanted[]>} the ranges of each file that were asked for since the last requests */
    this.wanted = new Map();
    /** @type {Map<string, string>} of which version each file is */
    this.tags = new Map();
    /** @type {Promise<Way | undefined> | undefined} how the server lists names, if that was found out */
    this.way = options.listsPages ? Promise.resolve(this.listPage.bind(this)) : undefined;
  }

  /** Read a small file. By a range, too: for ranges, browsers ask the server not to compress. @param {string} path @param {Reading} [options] */
  async small(path, options = {}) {
    const found = await this.file(path, { begin: 0, end: MAX_SMALL }, options);
    if (found && found.size > MAX_SMALL) throw new CorruptionError(`${path}: it has ${found.size} bytes, and at most ${MAX_SMALL} are possible`);
    return found?.bytes;
  }

  /** Read at most `length` of the last bytes. @param {string} path @param {number} length @param {Reading} [options] */
  async tail(path, length, options = {}) {
    return this.file(path, { tail: length }, options);
  }

  /** Read from `begin` to `end`, which both lie in the file. @param {string} path @param {number} begin @param {number} end @param {Reading} [options] */
  async range(path, begin, end, options = {}) {
    if (begin === end) return new Uint8Array(0);
    /** @type {Promise<Uint8Array | undefined>} */
    const found = new Promise((resolve, reject) => {
      const wanted = this.wanted.get(path) ?? [];
      wanted.push({ begin, end, resolve, reject });
      if (wanted.length === 1) {
        this.wanted.set(path, wanted);
        setTimeout(() => this.send(path), 0); // callers that go on in the same turn ask first
      }
    });
    return withSignal(found, options.signal);
  }

  /** @param {string} path */
  send(path) {
    const wanted = (this.wanted.get(path) ?? []).sort((one, other) => one.begin - other.begin);
    this.wanted.delete(path);
    let group = /** @type {Wanted[]} */ ([]);
    let end = 0;
    for (const each of wanted) {
      if (group.length && (each.begin > end + GAP || Math.max(end, each.end) - group[0].begin > JOINED)) {
        void this.sendGroup(path, group, end);
        group = [];
      }
      end = group.length ? Math.max(end, each.end) : each.end;
      group.push(each);
    }
    if (group.length) void this.sendGroup(path, group, end);
  }

  /** @param {string} path @param {Wanted[]} group @param {number} end */
  async sendGroup(path, group, end) {
    const begin = group[0].begin;
    try {
      const isWhole = end - begin > JOINED; // a part of what others want, too, is not refused to them
      const answer = await this.file(path, { begin, end, isWhole }, {});
      for (const each of group) each.resolve(answer?.bytes.subarray(each.begin - begin, each.end - begin));
    } catch (error) {
      for (const each of group) each.reject(error);
    }
  }

  /**
   * As `answer`; undefined also if the server answers 403 and lets `format.json` be read: so do buckets for what is missing, if readers may not list.
   * @param {string} path @param {Part} part @param {Reading} options
   */
  async file(path, part, options) {
    try {
      return await this.answer(path, part, options);
    } catch (error) {
      const isDenied = error instanceof RequestError && error.status === 403 && path !== FORMAT;
      if (isDenied && (await this.answer(FORMAT, { begin: 0, end: MAX_SMALL }, { ...options, isMutable: true }).catch(() => undefined))) return undefined;
      throw error;
    }
  }

  /**
   * Return a part of a file, with the length of the file. undefined: there is no such file.
   * @param {string} path @param {Part} part @param {Reading} options @param {string} [target]
   */
  async answer(path, part, options, target = this.target(path)) {
    const range = "tail" in part ? `-${part.tail}` : `${part.begin}-${part.end - 1}`;
    return this.request(target, { headers: { ...this.init.headers, Range: `bytes=${range}` } }, options, async (response) => {
      if (response.status === 416) throw new CorruptionError(`${path}: it is shorter than it was written`);
      const end = await answered(response, target, part);
      if (this.tags.size >= MAX_TAGS) this.tags.clear();
      this.tags.set(path, `${response.headers.get("ETag")} ${response.headers.get("Last-Modified")}`);
      return end;
    });
  }

  /**
   * Make a request, and make it again if there was no answer. undefined: there is no such file.
   * @template T
   * @param {string} target @param {RequestInit} init @param {Reading} options @param {(response: Response) => Promise<T>} read @param {number} [retries]
   */
  async request(target, init, options, read, retries = this.retries) {
    for (let attempt = 0; ; attempt++) {
      options.signal?.throwIfAborted();
      let last;
      try {
        const response = await this.fetch(target, {
          ...this.init,
          ...(options.signal && { signal: options.signal }),
          ...(options.isMutable && { cache: /** @type {RequestCache} */ ("no-store") }),
          ...init,
        });
        if (MISSING.has(response.status)) return undefined;
        if (response.ok || response.status === 416) return await read(response);
        const advice = [401, 403].includes(response.status) ? ADVICE : "";
        last = new RequestError(`${target}: the server answers ${response.status}${advice}`, response.status);
        if (!PASSING.has(response.status)) throw last;
      } catch (error) {
        // fetch throws TypeError when there is no answer, or when one was cut
        if (!(error instanceof TypeError) && !(error instanceof CutError)) throw error;
        const reason = error instanceof CutError ? error.message : `no answer (${error.message}). In a browser, the server has to allow this page by CORS`;
        last = new RequestError(`${target}: ${reason}`, undefined, { cause: error });
      }
      if (attempt >= retries) throw last;
      const pause = FIRST_PAUSE * 2 ** attempt * (0.5 + Math.random());
      await withSignal(new Promise((resolve) => setTimeout(resolve, pause)), options.signal);
    }
  }

  /** @param {string} path */
  target(path) {
    const [location, query] = this.url.split("?", 2);
    const target = `${location}/${path.split("/").map(encodeURIComponent).join("/")}`;
    return query ? `${target}?${query}` : target;
  }

  /** HTTP has no lists of names: this understands the pages that servers make of directories, and S3's answers. @param {string} path @param {Reading} [options] */
  async list(path, options = {}) {
    const found = (this.way ??= this.findWay());
    const forget = () => (this.way = undefined);
    found.then((way) => way ?? forget(), forget); // there may be no commit yet
    const way = await withSignal(found, options.signal);
    return way && ((await way(path, options)) ?? []);
  }

  /** Find out how the server lists names, by a directory that each repository with commits has. @returns {Promise<Way | undefined>} */
  async findWay() {
    const parts = new URL(this.url).pathname.split("/").filter(Boolean).map(decodeURIComponent);
    /** @type {Way[]} */
    const ofBuckets = [this.listBucket.bind(this, "", parts), this.listBucket.bind(this, `/${parts[0]}`, parts.slice(1))];
    const tried = (/** @type {Way} */ way) => way("commits", {}, 1).catch(unlessBusy);
    if ((await tried(this.listPage.bind(this)))?.length) return this.listPage.bind(this);
    const found = await Promise.all(ofBuckets.map(tried));
    return ofBuckets.find((_, each) => found[each]?.length) ?? ofBuckets.find((_, each) => found[each]);
  }

  /** @param {string} path @param {Reading} options @param {number} [retries] @returns {Promise<string[] | undefined>} */
  async listPage(path, options, retries) {
    const target = `${this.target(path)}/`;
    const text = await this.text(target, options, retries);
    if (!text || !/index of|directory listing/i.test(text)) return undefined;
    const links = [...text.matchAll(/<a\s[^<>]*href="([^"?#<>]*)/gi)].map(([, link]) => pathOf(unescaped(link), target));
    const above = pathOf("", target);
    const names = links.flatMap((link) => (link.startsWith(above) ? [link.slice(above.length).replace(/\/$/, "")] : []));
    return links.length ? names.filter((name) => name && !name.includes("/")) : undefined;
  }

  /** @param {string} bucket @param {string[]} prefix @param {string} path @param {Reading} options @param {number} [retries] @returns {Promise<string[] | undefined>} */
  async listBucket(bucket, prefix, path, options, retries) {
    const { origin } = new URL(this.url);
    const directory = `${[...prefix, path].join("/")}/`;
    const names = [];
    let more = "";
    for (let page = 0; ; page++) {
      const query = `list-type=2&delimiter=/&prefix=${encodeURIComponent(directory)}${more}`;
      const text = await this.text(`${origin}${bucket}/?${query}`, options, retries);
      if (!text?.includes("<ListBucketResult")) {
        if (!more) return undefined;
        throw new RequestError(`${origin}${bucket}: the list of ${directory} breaks off. Try again`);
      }
      for (const [, key] of text.matchAll(/<(?:Key|Prefix)>([^<]*)<\/(?:Key|Prefix)>/g)) {
        const name = unescaped(key).slice(directory.length).replace(/\/$/, "");
        if (name && !name.includes("/")) names.push(name);
      }
      const token = /<NextContinuationToken>([^<]*)</.exec(text)?.[1];
      if (!token) return names;
      const next = `&continuation-token=${encodeURIComponent(unescaped(token))}`;
      if (next === more || names.length < FEW * (page - FEW) || names.length > MAX_NAMES) throw new RequestError(`${origin}${bucket}: the list of ${directory} does not end`);
      more = next;
    }
  }

  /** @param {string} target @param {Reading} options @param {number} [retries] */
  async text(target, options, retries) {
    const read = async (/** @type {Response} */ response) => new TextDecoder().decode(await bodyOf(response, target, MAX_LIST));
    return this.request(target, {}, { ...options, isMutable: true }, read, retries);
  }
}

/** Refuse to read more of a file than anybody can hold. @param {string} path @param {number} begin @param {number} end */
export function checkRange(path, begin, end) {
  if (end - begin > MAX_RANGE) throw new RequestError(`${path}: ${end - begin} bytes are declared there, and at most ${MAX_RANGE} are read at once. Run \`txstore verify\``);
}

/** Say that this is no list, unless the server was too busy to send one. @param {unknown} error @returns {undefined} */
function unlessBusy(error) {
  const isAnswer = error instanceof RequestError && error.status !== undefined && !PASSING.has(error.status);
  // A page of another origin may not be allowed to ask for a list.
  const isNone = error instanceof RequestError && error.cause instanceof TypeError;
  if (!isAnswer && !isNone) throw error;
  return undefined;
}

/** The path that a link of a page leads to. @param {string} link @param {string} page */
function pathOf(link, page) {
  try {
    return decodeURIComponent(new URL(link, page).pathname);
  } catch (error) {
    if (error instanceof URIError || error instanceof TypeError) return "";
    throw error;
  }
}

/** An answer has another length than the server said. */
class CutError extends Error {
  /** @param {number} length @param {string | number} said */
  constructor(length, said) {
    super(`the answer has ${length} bytes instead of ${said}: it was cut, or the server compresses it. Switch compression off for these files (gzip off), or expose Content-Encoding by CORS`);
  }
}

/** @param {Response} response @param {string} target @param {Part} part @returns {Promise<End>} */
async function answered(response, target, part) {
  const [begin, most] = "tail" in part ? [undefined, part.tail] : [part.begin, part.end - part.begin];
  if (response.status === 206) {
    const said = /^bytes (\d+)-(\d+)\/(\d+)$/.exec(response.headers.get("Content-Range") ?? "");
    if (!said) throw new RequestError(`${target}: the server does not say which bytes it sends; in a browser, it has to expose Content-Range by CORS`);
    const [first, last, size] = said.slice(1).map(Number);
    if ("isWhole" in part && part.isWhole && size < part.end) {
      await response.body?.cancel();
      throw new CorruptionError(`${target}: it ends before byte ${part.end}`);
    }
    if (first !== (begin ?? Math.max(0, size - most)) || last - first >= most) throw new RequestError(`${target}: the server sends other bytes than it was asked for`);
    const bytes = await bodyOf(response, target, most);
    if (bytes.length !== last - first + 1) throw new CutError(bytes.length, last - first + 1);
    return { bytes, size };
  }
  // The server does not know ranges, and sends all: of that, as much is read as is needed.
  const length = response.headers.get("Content-Length");
  const enough = begin === undefined ? Infinity : begin + most;
  const bytes = await bodyOf(response, target, MAX_WHOLE, enough);
  if (bytes.length > enough) return { bytes: bytes.slice(begin, enough), size: Math.max(bytes.length, Number(length)) };
  // Another origin's Content-Encoding may be hidden; then the length is that of what was compressed.
  if (length !== null && bytes.length < Number(length) && !response.headers.get("Content-Encoding")) throw new CutError(bytes.length, length);
  const from = begin ?? Math.max(0, bytes.length - most);
  return { bytes: bytes.slice(from, from + most), size: bytes.length };
}

/** Read an answer of at most so many bytes, or no more of it than is enough. @param {Response} response @param {string} target @param {number} most @param {number} [enough] */
async function bodyOf(response, target, most, enough = Infinity) {
  const reader = response.body?.getReader();
  const parts = /** @type {Uint8Array[]} */ ([]);
  const limit = Math.min(most, enough);
  const declared = Number(response.headers.get("Content-Length"));
  let length = limit === most && declared > most ? declared : 0; // then nothing of it is read
  while (length <= limit) {
    const part = await reader?.read();
    if (!part || part.done) break;
    parts.push(part.value);
    length += part.value.length;
  }
  if (length > limit) await reader?.cancel();
  if (length > most) throw new RequestError(`${target}: the server sends more than ${most} bytes. Let it answer ranges: see "Over plain HTTP" in the documents of TxStore`);
  return joined(parts);
}

/** @param {string} text */
function unescaped(text) {
  return text.replace(/&(amp|lt|gt|quot|apos|#(\d+)|#x([0-9a-f]+));/gi, (_, name, decimal, hexadecimal) =>
    decimal || hexadecimal
      ? String.fromCodePoint(decimal ? Number(decimal) : parseInt(hexadecimal, 16))
      : /** @type {Record<string, string>} */ ({ amp: "&", lt: "<", gt: ">", quot: '"', apos: "'" })[name.toLowerCase()],
  );
}

/** Wait for a promise, or until a signal says to wait no more. @template T @param {Promise<T>} promise @param {AbortSignal} [signal] @returns {Promise<T>} */
export function withSignal(promise, signal) {
  if (!signal) return promise;
  return new Promise((resolve, reject) => {
    const stop = () => reject(signal.reason);
    if (signal.aborted) stop();
    signal.addEventListener("abort", stop, { once: true });
    promise.then(resolve, reject).finally(() => signal.removeEventListener("abort", stop));
  });
}
