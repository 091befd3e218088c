import js from "@eslint/js";
import stylistic from "@stylistic/eslint-plugin";
import globals from "globals";

export default [
  js.configs.recommended,
  // a layout that keeps line breaks: Prettier would make 1.7 times as many lines of these scripts
  stylistic.configs.customize({ arrowParens: true, braceStyle: "1tbs", quotes: "double", semi: true }),
  {
    rules: {
      "@stylistic/list-style": "off", // an object of several lines may hold several of its properties in one
      "@stylistic/max-statements-per-line": "off", // as in `timer = undefined; mark();`
      "@stylistic/quote-props": ["error", "as-needed"],
      "@stylistic/quotes": ["error", "double", { avoidEscape: true, allowTemplateLiterals: "always" }],
    },
  },
  {
    languageOptions: { ecmaVersion: "latest", sourceType: "module", globals: globals.browser },
    rules: { eqeqeq: "error", "no-var": "error", "prefer-const": "error", "no-implicit-globals": "error", "no-shadow": "error" },
  },
  { files: ["**/*.test.js", "**/support.js"], languageOptions: { globals: { ...globals.browser, ...globals.node } } },
];
