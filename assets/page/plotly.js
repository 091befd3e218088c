// Plotly's own script is no module and sets a global name; only this module reads it.

// @ts-ignore: served from the Python package
import "./plotly/plotly.min.js";

/** @type {any} */
export const Plotly = /** @type {any} */ (globalThis).Plotly;
