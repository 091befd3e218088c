// Files and texts for the reader: compressed, saved, copied and shared.

import { part } from "./rounds.js";

/** @param {GenericTransformStream} transform @param {Blob} blob */
const through = (transform, blob) => new Response(blob.stream().pipeThrough(transform));

/** A text as base64 of its gzip. @param {string} text */
export async function pack(text) {
  const response = through(new CompressionStream("gzip"), new Blob([text]));
  const characters = Array.from(new Uint8Array(await response.arrayBuffer()), (byte) => String.fromCharCode(byte));
  return btoa(characters.join(""));
}

/** @param {string} base64 */
export const unpack = (base64) => unzipped(new Blob([bytesOf(base64)]));

/** @param {Blob} blob */
export const unzipped = (blob) => through(new DecompressionStream("gzip"), blob).text();

/** @param {string} base64 */
const bytesOf = (base64) => Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));

/** Hand a file to the reader. @param {BlobPart} content @param {string} type @param {string} name */
function save(content, type, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type }));
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}

/** Copy a text; the button shows for a moment that it is done. @param {Element} button @param {string} text */
export async function copy(button, text) {
  try {
    await navigator.clipboard.writeText(text); // browsers allow this on https and localhost only
  } catch {
    prompt("Copy this:", text);
    return;
  }
  button.classList.add("done");
  setTimeout(() => button.classList.remove("done"), 1500);
}

/**
 * The Share menu. The page holds the JSON; the server makes the other files from it.
 * @param {HTMLElement} opener @param {HTMLElement} menu @param {() => object | undefined} record of the run shown
 * @param {Trigger} trigger
 */
export function connectShareMenu(opener, menu, record, trigger) {
  menu.addEventListener("click", async ({ target }) => {
    const kind = /** @type {Element} */ (target).closest("button")?.dataset.file;
    const run = JSON.stringify(record());
    if (!kind || !run) return;
    menu.hidePopover();
    if (kind === "link") copy(opener, location.href);
    else if (kind === "json") save(run, "application/json", "specdemo-comparison.json");
    else if (opener.ariaBusy !== "true") {
      opener.ariaBusy = "true";
      trigger("download", { kind, record: await pack(run) });
    }
  });
}

/** Save the file that the server made, given as JSON; empty if it failed. @param {string} text */
export function saveSharedFile(text) {
  for (const opener of document.querySelectorAll(".share")) opener.ariaBusy = "false";
  if (!text) return;
  const { content, type, name } = JSON.parse(text);
  if (type === "text/markdown") void copy(part(document, ".share"), new TextDecoder().decode(bytesOf(content)));
  else save(bytesOf(content), type, name);
}
