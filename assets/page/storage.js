// Values in the browser's storage, as JSON. Another page of this address, an earlier version or the reader may have
// written them, so a value of the wrong shape is ignored.

/** @typedef {"localStorage" | "sessionStorage"} Place the browser's, or this tab's */

/** The value; null if there is none, or the browser has no storage. @param {string} key @param {Place} place @returns {unknown} */
export function restore(key, place = "localStorage") {
  try {
    return JSON.parse(globalThis[place].getItem(key) ?? "null");
  } catch {
    return null;
  }
}

/** Store a value; returns whether there was room. @param {string} key @param {unknown} value @param {Place} place */
export function store(key, value, place = "localStorage") {
  try {
    globalThis[place].setItem(key, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}

/** @param {unknown} value @returns {value is string} */
export const isText = (value) => typeof value === "string";

/** @param {unknown} value @returns {value is Record<string, unknown>} */
export const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
