// Loaded first: handlers that must work as soon as the page is there.

import { begin } from "./gradio.js";

begin();
