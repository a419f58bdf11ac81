// Runs before the first paint, so that a chosen theme does not flash.
(() => {
  try {
    const theme = localStorage.getItem("sporelm.theme");
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
    if (localStorage.getItem("sporelm.sidebar") === "hidden") document.documentElement.dataset.sidebar = "hidden";
  } catch { /* a browser that keeps nothing */ }
})();
