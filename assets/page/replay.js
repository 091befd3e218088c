// The script of a replay file, which plays one run offline.

import { unpack } from "./files.js";
import { Race } from "./race.js";
import { Sketch } from "./sketch.js";

const dark = matchMedia("(prefers-color-scheme: dark)");
const darken = () => document.body.classList.toggle("dark", dark.matches);
dark.addEventListener("change", darken);
darken();
for (const part of document.querySelectorAll(".share, .past, .slow-motion .all, .present, .presenter-keys")) part.remove();
const read = (/** @type {string} */ id) => document.querySelector(`#${id}`)?.textContent ?? "";
const race = new Race(document.body, { chart: Sketch, figures: JSON.parse(read("figures")) });
race.intro.show(false);
unpack(read("events")).then((text) => race.receive(text));
