// What must hold as soon as the page is there.

import { begin } from "./gradio.js";

begin();
