// Drops of model files: a file is sent to this machine's models folder, then added as if its path had been typed.

import { addModel } from "./gradio.js";

const PERCENT = 100;

export class Drop {
  /** @param {HTMLElement} element */
  constructor(element) {
    this.zone = /** @type {HTMLElement} */ (element.querySelector(".landing"));
    this.said = /** @type {HTMLElement} */ (element.querySelector("[role=status]"));
    const input = /** @type {HTMLInputElement} */ (element.querySelector("input"));
    input.addEventListener("change", () => this.take(input.files));
    for (const name of ["dragenter", "dragover"]) this.zone.addEventListener(name, (event) => this.over(event, true));
    for (const name of ["dragleave", "drop"]) this.zone.addEventListener(name, (event) => this.over(event, false));
    this.zone.addEventListener("drop", (event) => this.take(event.dataTransfer?.files));
    this.zone.hidden = false; // before this, a dropped file would have replaced the page
  }

  receive() {}

  /** @param {Event} event @param {boolean} on */
  over(event, on) {
    event.preventDefault(); // otherwise the browser opens the file
    this.zone.classList.toggle("over", on);
  }

  /** @param {FileList | null | undefined} files */
  take(files) {
    const [file, ...others] = files ?? [];
    if (!file) return;
    if (others.length || !/\.gguf$/i.test(file.name)) return this.say("Drop one GGUF file. For a folder, give its path.");
    this.send(file);
  }

  /** @param {File} file */
  send(file) {
    const request = new XMLHttpRequest(); // it reports upload progress
    request.upload.onprogress = ({ loaded, total }) => this.say(`Copying ${file.name}: ${Math.floor((PERCENT * loaded) / total)} %`);
    request.onerror = () => this.say("The file could not be sent; give its path instead.");
    request.onload = () => {
      const { path, refused } = request.status === 200 ? JSON.parse(request.responseText) : { path: "", refused: request.responseText };
      this.say(refused ?? "");
      if (path) addModel(path);
    };
    request.open("PUT", new URL(`model/${encodeURIComponent(file.name)}`, document.baseURI));
    request.send(file);
  }

  /** @param {string} text */
  say(text) {
    this.said.textContent = text;
  }
}
