// What this page keeps in the browser. Another page of this address, an earlier release, or the reader may have written
// there, so each value is checked for its shape, and whoever owns it hears when it had to be reset.

/**
 * A value kept under a key, as JSON.
 * @template T
 */
export class Stored {
  /**
   * @param {string} key
   * @param {(value: unknown) => T | null} accept the value if its shape is right, what of it can be used, or null
   * @param {T} empty what there is when nothing was kept
   * @param {() => Storage} place
   */
  constructor(key, accept, empty, place = () => localStorage) {
    /** @type {string} */ this.key = key;
    /** @type {(value: unknown) => T | null} */ this.accept = accept;
    /** @type {T} */ this.empty = empty;
    /** @type {() => Storage} */ this.place = place;
    this.reset = false; // whether something was there that could not be used
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
      return null; // a browser that keeps nothing
    }
  }

  /**
   * @param {T} value
   * @returns {boolean} whether there was room
   */
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

/**
 * @param {unknown} value
 * @returns {value is Record<string, unknown>}
 */
export const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
