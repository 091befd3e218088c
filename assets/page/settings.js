// Settings that survive a reload and travel in a link: those that differ from the default, in the address.

const STORE = "specdemo-settings";

const settings = {
  // Called with every change: `values` in the order of `names`.
  remember(names, defaults, values) {
    const changed = new URLSearchParams(location.search);
    names.forEach((name, index) => {
      if (values[index] === defaults[index] || values[index] === null) changed.delete(name);
      else changed.set(name, values[index]);
    });
    history.replaceState(null, "", changed.size ? `?${changed}` : location.pathname);
    localStorage.setItem(STORE, changed.toString());
  },

  // What to start with: the address if it says anything, else what was last used here.
  recall(names) {
    const linked = new URLSearchParams(location.search);
    const source = names.some((name) => linked.has(name))
      ? linked
      : new URLSearchParams(localStorage.getItem(STORE) ?? "");
    return JSON.stringify(Object.fromEntries([...source].filter(([name]) => names.includes(name))));
  },

  async copyLink() {
    await navigator.clipboard.writeText(location.href);
  },
};

document.addEventListener(
  "keydown",
  (event) => {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey) || !event.target.closest("#prompt")) return;
    event.preventDefault();
    event.stopPropagation();
    document.querySelector("#run:not([disabled])")?.click();
  },
  true,
);
