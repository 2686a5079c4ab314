// Finds texts that extend beyond the window, or that cover each other.
const texts = [...document.querySelectorAll("svg text, .bars > span, .facts div, td, th, p")];
const boxes = texts.map(t => [t.textContent, t.getBoundingClientRect()]);
const width = document.documentElement.scrollWidth;
const covers = (a, b) => a.left < b.right - 1 && b.left < a.right - 1 &&
  a.top < b.bottom - 1 && b.top < a.bottom - 1;
document.title = JSON.stringify({
  cut: boxes.filter(([_, b]) => b.left < 0 || b.right > width).map(([t, _]) => t),
  covered: boxes.flatMap(([t, a], i) =>
    boxes.slice(i + 1).filter(([_, b]) => covers(a, b)).map(([u, _]) => [t, u])),
  width: width,
});
