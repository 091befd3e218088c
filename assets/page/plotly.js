// Plotly, which is a script of its own and leaves its name with the window: the only place that reads it there.

// @ts-ignore: served from the Python package
import "./plotly/plotly.min.js";

/** @type {any} */
export const Plotly = /** @type {any} */ (globalThis).Plotly;
