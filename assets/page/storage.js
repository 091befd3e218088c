// The page's values in the browser's storage. Another page of this address, an earlier version or the reader may have
// written there, so each value's shape is checked, and `reset` says whether a value had to be reset.

/**
 * A value kept under a key, as JSON.
 * @template T
 */
export class Stored {
  /**
   * @param {string} key
   * @param {(value: unknown) => T | null} accept returns the value, its usable part, or null if nothing is usable
   * @param {T} empty the value when nothing was kept
   * @param {() => Storage} place
   */
  constructor(key, accept, empty, place = () => localStorage) {
    /** @type {string} */ this.key = key;
    /** @type {(value: unknown) => T | null} */ this.accept = accept;
    /** @type {T} */ this.empty = empty;
    /** @type {() => Storage} */ this.place = place;
    this.reset = false; // whether an unusable value was found
  }

  /** @returns {T} */
  read() {
    const text = this.text();
    if (text === null) return this.empty;
    let value = null;
    try {
      const found = JSON.parse(text);
      value = this.accept(found);
      if (value !== null && JSON.stringify(value) === JSON.stringify(found)) return value;
    } catch {
      // not JSON
    }
    this.reset = true;
    this.write(value ?? this.empty);
    return value ?? this.empty;
  }

  text() {
    try {
      return this.place().getItem(this.key);
    } catch {
      return null; // the browser has no storage
    }
  }

  /** @param {T} value @returns {boolean} whether there was room */
  write(value) {
    try {
      if (value === null) this.place().removeItem(this.key);
      else this.place().setItem(this.key, JSON.stringify(value));
      return true;
    } catch {
      return false;
    }
  }
}

/** @param {unknown} value */
export const isText = (value) => typeof value === "string";

/** @param {unknown} value @returns {value is Record<string, unknown>} */
export const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
