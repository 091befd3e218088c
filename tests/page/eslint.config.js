import js from "@eslint/js";
import globals from "globals";

export default [
  js.configs.recommended,
  {
    languageOptions: { ecmaVersion: "latest", sourceType: "module", globals: globals.browser },
    rules: { eqeqeq: "error", "no-var": "error", "prefer-const": "error", "no-implicit-globals": "error", "no-shadow": "error" },
  },
  { files: ["**/*.test.js", "**/support.js"], languageOptions: { globals: { ...globals.browser, ...globals.node } } },
];
