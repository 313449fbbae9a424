// Runs before the first paint, so that a chosen theme does not flash.
try {
  const theme = localStorage.getItem("rwkv.theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // Storage is forbidden: the system's colours it is.
}
