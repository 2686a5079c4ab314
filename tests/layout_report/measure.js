// A script that writes measurements of the page into it, for --dump-dom.
const boxes = [...document.querySelectorAll("svg[role=img]")].map(s => s.getBoundingClientRect());
const overlap = [...document.querySelectorAll("article")].filter(a => {
  const [drawing, facts] = [...a.children].map(c => c.getBoundingClientRect());
  return drawing.right > facts.left && drawing.bottom > facts.top;
});
document.title = JSON.stringify({
  width: document.documentElement.scrollWidth,
  drawn: boxes.filter(b => b.width > 30 && b.height > 30).length,
  overlapping: overlap.length,
  paper: getComputedStyle(document.body).backgroundColor,
  ink: getComputedStyle(document.body).color,
});
