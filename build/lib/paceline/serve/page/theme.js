// Set dark or light colours: the system's until the user chooses. Not a module, so that it runs before the first paint.
"use strict";

(() => {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const stored = ()  => { try { return localStorage.getItem("theme"); } catch { return null; } };
  const now = () => stored() ?? (dark.matches ? "dark" : "light");

  const apply = () => {
    root.dataset.theme = now();
    const button = document.getElementById("theme");
    if (button !== null) {
      const other = now() === "dark" ? "light" : "dark";
      button.textContent = other === "dark" ? "☾" : "☀";
      button.setAttribute("aria-label", `Use the ${other} colours`);
      button.title = `Use the ${other} colours`;
    }
  };

  apply();
  dark.addEventListener("change", apply);
  addEventListener("DOMContentLoaded", () => {
    apply();
    document.getElementById("theme").addEventListener("click", () => {
      const other = now() === "dark" ? "light" : "dark";
      try { localStorage.setItem("theme", other); } catch { /* the choice lasts for this page only */ }
      root.dataset.theme = other;
      apply();
    });
  });
})();
