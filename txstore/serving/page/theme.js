// Runs before the page is drawn, so that a user of the dark theme never sees a flash of light.
try {
  const chosen = localStorage.getItem("txstore.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // The browser may forbid storage; then the page uses the system's colours.
}
