// The script of a replay file, which plays one run offline.

import { unpack } from "./files.js";
import { Race } from "./race.js";

const dark = matchMedia("(prefers-color-scheme: dark)");
const darken = () => document.body.classList.toggle("dark", dark.matches);
dark.addEventListener("change", darken);
darken();
for (const part of document.querySelectorAll(".share, .past, .rounds, .invitation")) part.remove();
const read = (/** @type {string} */ id) => document.querySelector(`#${id}`)?.textContent ?? "";
const race = new Race(document.body);
unpack(read("record")).then((text) => race.open({ run: "replay", record: JSON.parse(text), anatomy: null }));
