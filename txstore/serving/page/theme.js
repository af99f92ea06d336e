// Runs before the page is drawn, so that a user of the dark theme never sees a flash of light, and says so if a module does not load.
addEventListener("error", ({ target, message }) => {
  const opening = document.getElementById("opening"); // which the first view replaces
  if (opening && (target === window || target.localName === "script"))
    opening.textContent = `A part of this page could not be loaded. Load it again. ${message ?? ""}`;
}, true);
try {
  const chosen = localStorage.getItem("txstore.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // The browser may forbid storage; then the page uses the system's colours.
}
