// Before anything is drawn, so that nothing flashes: what was chosen here last, else the system's.
"use strict";
try {
  const chosen = localStorage.getItem("holdfast-theme");
  if (chosen) document.documentElement.dataset.theme = chosen;
} catch { /* a browser that keeps nothing */ }
