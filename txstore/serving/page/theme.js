// Runs before anything is drawn: whoever chose dark never sees a flash of light.
try {
  const chosen = localStorage.getItem("txstore.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // Storage may be forbidden; then the system's colours do.
}
