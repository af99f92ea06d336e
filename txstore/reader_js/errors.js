/** What can go wrong. Each message says what to do. A missing key is no error: `get` returns undefined. */

/** The base of all errors of this reader. */
export class TxStoreError extends Error {
  /** @param {string} message @param {ErrorOptions} [options] */
  constructor(message, options) {
    super(message, options);
    this.name = new.target.name;
  }
}

/** Bytes are damaged, or a file is missing that a commit needs. */
export class CorruptionError extends TxStoreError {}

/** The repository has a feature that this reader does not know: use a newer reader. */
export class UnsupportedError extends TxStoreError {}

/** There is no repository, branch, tag or commit of this name. */
export class NotFoundError extends TxStoreError {}

/** The value was erased on purpose: it is neither there nor missing. */
export class ErasedError extends TxStoreError {}

/** The value lies in a file outside of the repository, which this reader may not or can't read. */
export class ForeignError extends TxStoreError {}

/** The server does not answer, or refuses to. */
export class RequestError extends TxStoreError {
  /** @param {string} message @param {number} [status] @param {ErrorOptions} [options] */
  constructor(message, status, options) {
    super(message, options);
    this.status = status;
  }
}

/** @param {string} key */
export const erased = (key) => new ErasedError(`${key.replace(/^\//, "")}: this value was erased`);
