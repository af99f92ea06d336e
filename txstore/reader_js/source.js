/** Reads files of a repository over HTTP: whole ones, and ranges. Near ranges of one file are read by one request. */

import { CorruptionError, RequestError } from "./errors.js";

/**
 * What the reader needs to know of where the files lie.
 * @typedef {object} Source
 * @property {string} url
 * @property {(path: string, options?: Reading) => Promise<Uint8Array | undefined>} whole undefined: there is no such file
 * @property {(path: string, begin: number, end: number, options?: Reading) => Promise<Uint8Array | undefined>} range
 *   from `begin` to `end`, which both lie in the file
 * @property {(path: string, length: number, options?: Reading) => Promise<End | undefined>} tail at most so many of the
 *   last bytes
 * @property {(path: string, options?: Reading) => Promise<string[] | undefined>} list the names in a directory.
 *   undefined: the server tells no names
 */

/**
 * @typedef {object} Reading
 * @property {AbortSignal} [signal]
 * @property {boolean} [isMutable] whether the file may be replaced: no cache may answer for the server
 */

/** @typedef {{ bytes: Uint8Array, size: number }} End the end of a file, and the length of the whole file */

/**
 * @typedef {object} HttpOptions
 * @property {typeof fetch} [fetch] called instead of `fetch`: to sign requests, say
 * @property {number} [retries] how often a request is made again that the server could not answer; by default 4
 * @property {RequestInit} [init] of each request
 */

/** Ranges of one file with less than this between them are read by one request. */
const GAP = 16 << 10;
/** No request for several ranges is longer. */
const JOINED = 8 << 20;
const FIRST_PAUSE = 100;
const MISSING = new Set([404, 410]);
const PASSING = new Set([408, 425, 429, 500, 502, 503, 504]);

/** @typedef {{ begin: number, end: number, resolve: (bytes: Uint8Array | undefined) => void, reject: (error: unknown) => void }} Wanted */

/** @implements {Source} */
export class HttpSource {
  /** @param {string} url @param {HttpOptions} options */
  constructor(url, options = {}) {
    this.url = url.replace(/\/+$/, "");
    this.retries = options.retries ?? 4;
    this.init = options.init ?? {};
    this.fetch = options.fetch ?? ((input, init) => fetch(input, init));
    /** @type {Map<string, Wanted[]>} the ranges of each file that were asked for since the last requests */
    this.wanted = new Map();
  }

  /** @param {string} path @param {Reading} [options] */
  async whole(path, options = {}) {
    return (await this.answer(path, undefined, options))?.bytes;
  }

  /** @param {string} path @param {number} length @param {Reading} [options] */
  async tail(path, length, options = {}) {
    return this.answer(path, `bytes=-${length}`, options);
  }

  /** @param {string} path @param {number} begin @param {number} end @param {Reading} [options] */
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
    /** @type {Wanted[]} */
    let group = [];
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
      const answer = await this.answer(path, `bytes=${begin}-${end - 1}`, {}, begin);
      for (const each of group) {
        const bytes = answer?.bytes.subarray(each.begin - begin, each.end - begin);
        if (bytes && bytes.length !== each.end - each.begin) {
          each.reject(new CorruptionError(`${path}: it ends before byte ${each.end}`));
        } else {
          each.resolve(bytes);
        }
      }
    } catch (error) {
      for (const each of group) each.reject(error);
    }
  }

  /**
   * Return what the server answers, with the length of the file. undefined: there is no such file.
   * @param {string} path @param {string | undefined} range @param {Reading} options @param {number} [begin]
   * @returns {Promise<End | undefined>}
   */
  async answer(path, range, options, begin) {
    const target = this.target(path);
    for (let attempt = 0; ; attempt++) {
      options.signal?.throwIfAborted();
      let last;
      try {
        const response = await this.fetch(target, {
          ...this.init,
          ...(options.signal && { signal: options.signal }),
          ...(options.isMutable && { cache: /** @type {RequestCache} */ ("no-store") }),
          headers: { ...this.init.headers, ...(range && { Range: range }) },
        });
        if (MISSING.has(response.status)) return undefined;
        if (response.ok) return await answered(response, target, range, begin);
        if (response.status === 416) throw new CorruptionError(`${path}: it is shorter than it was written`);
        last = new RequestError(`${target}: the server answers ${response.status}${adviceFor(response.status)}`, response.status);
        if (!PASSING.has(response.status)) throw last;
      } catch (error) {
        // fetch throws TypeError when there is no answer, or when one was cut
        if (!(error instanceof TypeError) && !(error instanceof CutError) && error !== last) throw error;
        if (error === last && !PASSING.has(/** @type {RequestError} */ (error).status ?? 0)) throw error;
        last = error instanceof RequestError ? error : new RequestError(`${target}: no answer (${error instanceof Error ? error.message : error}). In a browser, the server has to allow this page by CORS`, undefined, { cause: error });
      }
      if (attempt >= this.retries) throw last;
      await pause(FIRST_PAUSE * 2 ** attempt * (0.5 + Math.random()), options.signal);
    }
  }

  /** @param {string} path */
  target(path) {
    const [location, query] = this.url.split("?", 2);
    const target = `${location}/${path.split("/").map(encodeURIComponent).join("/")}`;
    return query ? `${target}?${query}` : target;
  }

  /**
   * HTTP has no lists of names: this understands the pages that servers make of directories, and S3's answers.
   * @param {string} path @param {Reading} [options]
   */
  async list(path, options = {}) {
    for (const list of [this.listPage, this.listBucket]) {
      const names = await list.call(this, path, options);
      if (names) return names;
    }
    return undefined;
  }

  /** @param {string} path @param {Reading} options @returns {Promise<string[] | undefined>} */
  async listPage(path, options) {
    const text = await this.text(`${this.target(path)}/`, options);
    if (!text || !/<a\s[^>]*href=/i.test(text) || !/index of|directory listing/i.test(text)) return undefined;
    const names = [];
    for (const [, link] of text.matchAll(/<a\s[^>]*href="([^"?#]+)"/gi)) {
      const name = decodeURIComponent(link).replace(/\/$/, "").replace(/^\.\//, "");
      if (name && !name.includes("/") && name !== "..") names.push(name);
    }
    return names;
  }

  /** @param {string} path @param {Reading} options @returns {Promise<string[] | undefined>} */
  async listBucket(path, options) {
    const place = new URL(this.url);
    const parts = place.pathname.split("/").filter(Boolean);
    for (const [bucket, prefix] of [["", parts], [`/${parts[0]}`, parts.slice(1)]]) {
      const directory = `${[...prefix, path].map((part) => decodeURIComponent(part)).join("/")}/`;
      const names = [];
      let more = "";
      for (;;) {
        const query = `list-type=2&delimiter=/&prefix=${encodeURIComponent(directory)}${more}`;
        const text = await this.text(`${place.origin}${bucket}/?${query}`, options);
        if (!text?.includes("<ListBucketResult")) break;
        for (const [, key] of text.matchAll(/<(?:Key|Prefix)>([^<]*)<\/(?:Key|Prefix)>/g)) {
          const name = unescaped(key).slice(directory.length).replace(/\/$/, "");
          if (name && !name.includes("/")) names.push(name);
        }
        const next = /<NextContinuationToken>([^<]*)</.exec(text)?.[1];
        if (!next) return names;
        more = `&continuation-token=${encodeURIComponent(unescaped(next))}`;
      }
    }
    return undefined;
  }

  /** @param {string} target @param {Reading} options */
  async text(target, options) {
    const response = await this.fetch(target, {
      ...this.init, ...(options.signal && { signal: options.signal }), cache: "no-store",
    }).catch((error) => {
      if (error instanceof TypeError) return undefined; // no list, then
      throw error;
    });
    return response?.ok ? response.text() : undefined;
  }
}

/** An answer was shorter than the server said. */
class CutError extends Error {}

/**
 * @param {Response} response @param {string} target @param {string | undefined} range @param {number} [begin]
 * @returns {Promise<End>}
 */
async function answered(response, target, range, begin) {
  const body = new Uint8Array(await response.arrayBuffer());
  if (response.status === 206) {
    const said = /^bytes (\d+)-(\d+)\/(\d+)$/.exec(response.headers.get("Content-Range") ?? "");
    if (!said) {
      throw new RequestError(`${target}: the server does not say which bytes it sends; in a browser, it has to expose Content-Range by CORS`);
    }
    if (body.length !== Number(said[2]) - Number(said[1]) + 1) throw new CutError("the answer was cut");
    if (begin !== undefined && Number(said[1]) !== begin) throw new RequestError(`${target}: the server sends other bytes than it was asked for`);
    return { bytes: body, size: Number(said[3]) };
  }
  const length = response.headers.get("Content-Length");
  const isPlain = !response.headers.get("Content-Encoding");
  if (isPlain && length !== null && Number(length) !== body.length) throw new CutError("the answer was cut");
  if (!range) return { bytes: body, size: body.length };
  // The server does not know ranges, and sends all.
  if (begin !== undefined) return { bytes: body.subarray(begin), size: body.length };
  return { bytes: body.subarray(Math.max(0, body.length - Number(range.slice("bytes=-".length)))), size: body.length };
}

/** @param {number} status */
function adviceFor(status) {
  return status === 401 || status === 403 ? ": give credentials by the option `fetch` or `init`, or open the bucket to readers" : "";
}

/** @param {string} text */
function unescaped(text) {
  return text.replace(/&(amp|lt|gt|quot|apos|#(\d+)|#x([0-9a-f]+));/gi, (_, name, decimal, hexadecimal) =>
    decimal || hexadecimal
      ? String.fromCodePoint(decimal ? Number(decimal) : parseInt(hexadecimal, 16))
      : /** @type {Record<string, string>} */ ({ amp: "&", lt: "<", gt: ">", quot: '"', apos: "'" })[name.toLowerCase()],
  );
}

/** @param {number} milliseconds @param {AbortSignal} [signal] @returns {Promise<void>} */
function pause(milliseconds, signal) {
  return withSignal(new Promise((resolve) => setTimeout(resolve, milliseconds)), signal);
}

/**
 * Wait for a promise, or until a signal says to wait no more.
 * @template T
 * @param {Promise<T>} promise @param {AbortSignal} [signal]
 * @returns {Promise<T>}
 */
export function withSignal(promise, signal) {
  if (!signal) return promise;
  return new Promise((resolve, reject) => {
    const stop = () => reject(signal.reason);
    if (signal.aborted) stop();
    signal.addEventListener("abort", stop, { once: true });
    promise.then(resolve, reject).finally(() => signal.removeEventListener("abort", stop));
  });
}
