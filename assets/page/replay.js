// The script of a replay file, which plays one run offline.

import { unpack } from "./files.js";
import { followScheme } from "./plot.js";
import { Race } from "./race.js";

followScheme();
for (const part of document.querySelectorAll(".share, .past, .rounds, .invitation")) part.remove();
const read = (/** @type {string} */ id) => document.querySelector(`#${id}`)?.textContent ?? "";
const race = new Race(document.body);
unpack(read("record")).then((text) => race.open({ run: "replay", record: JSON.parse(text), anatomy: null }));
