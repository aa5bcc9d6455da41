// Dark or light: as the system has it, until somebody chooses. No module, so that it is there before the first paint.
"use strict";

(() => {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const kept = () => { try { return localStorage.getItem("theme"); } catch { return null; } };
  const now = () => kept() ?? (dark.matches ? "dark" : "light");

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
      try { localStorage.setItem("theme", other); } catch { /* it holds for this page only */ }
      root.dataset.theme = other;
      apply();
    });
  });
})();
