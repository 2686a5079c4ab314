"""Makes the README's images.

    python tools/images.py DEMO

DEMO is the directory of `make demo`. Its run gives the layout page (`layout_page.png`, which needs
`chromium` on the PATH) and the curves (`demo.svg`). The losses that benchmarks/learning/layouts.py
has stored give `layouts.svg`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent
IMAGES = REPOSITORY / "docs" / "images"
STORED = REPOSITORY / "benchmarks" / "learning" / "layouts.json"
# Smallest and largest loss of another model on torchtitan's layouts, after 100 steps from one
# checkpoint, as reported in https://github.com/pytorch/torchtitan/issues/3029.
TORCHTITAN = (0.345, 0.374)
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 480, 300, 40, 30, 30
Curve = list[tuple[float, float]]


def drawing(title: str, curves: list[tuple[str, Curve]], others: list[str], width: int) -> str:
    """Returns an SVG of curves over steps, each a color and its points, with other elements."""
    points = [point for _, curve in curves for point in curve]
    last = max(step for step, _ in points)
    low, high = min(value for _, value in points), max(value for _, value in points)

    def place(step: float, value: float) -> str:
        x = LEFT + (WIDTH - LEFT - 20) * step / last
        return f"{x:.1f},{TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / (high - low):.1f}"

    elements = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}"'
        f' font-family="sans-serif" font-size="13"><rect width="{width}" height="{HEIGHT}"'
        ' fill="#fff"/>',
        f'<path d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - 20}" fill="none" stroke="#888"/>',
        text(LEFT, 18, title),
        text(6, TOP + 6, f"{high:.1f}"),
        text(6, HEIGHT - BOTTOM, f"{low:.1f}"),
        text(WIDTH - 80, HEIGHT - 10, f"step {last:.0f}"),
    ]
    for color, curve in curves:
        line = " ".join(place(*point) for point in curve)
        elements.append(
            f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="1.6"/>'
        )
    return "\n".join([*elements, *others, "</svg>\n"])


def text(x: float, y: float, words: str, color: str = "#222") -> str:
    """Returns the SVG element of a text."""
    return f'<text x="{x}" y="{y}" fill="{color}">{words}</text>'


def scalars(directory: Path, name: str) -> Curve:
    """Returns the steps and values of a scalar in TensorBoard's events."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    events = EventAccumulator(str(directory), size_guidance={"tensors": 0})
    events.Reload()
    tag = next(tag for tag in events.Tags()["tensors"] if tag.split("/")[-1] == name)
    return [(each.step, float(make_ndarray(each.tensor_proto))) for each in events.Tensors(tag)]


def demo_curves(run: Path) -> str:
    """Returns the drawing of a run's losses."""
    train, held_out = scalars(run, "loss"), scalars(run / "eval", "loss")
    colors = {"training": "#9aa5dd", "validation": "#c2571a"}
    words = [
        text(200, 60 + 20 * n, f"{name}: {curve[-1][1]:.2f} at step {curve[-1][0]}", colors[name])
        for n, (name, curve) in enumerate({"training": train, "validation": held_out}.items())
    ]
    curves = [(colors["training"], train), (colors["validation"], held_out)]
    return drawing("The demo's loss, in nats per token", curves, words, WIDTH)


def layout_curves(stored: dict[str, list[float]]) -> str:
    """Returns the drawing of the losses of all layouts, and of the spread of their last losses."""
    curves: list[tuple[str, Curve]] = [
        (f"hsl({360 * number // len(stored)},70%,45%)", [*enumerate(losses, 1)])
        for number, losses in enumerate(stored.values())
    ]
    steps = len(curves[0][1])
    ours = [losses[-1] for losses in stored.values()]
    rows = {
        f"t2tp, {len(stored)} layouts": ours,
        "torchtitan, as its issue 3029 reports": TORCHTITAN,
    }
    others = [text(WIDTH + 10, 60, f"Losses after {steps} steps, and their spread:")]
    for number, (name, losses) in enumerate(rows.items()):
        y, least, most = 100 + 80 * number, min(losses), max(losses)
        spread = most / least - 1
        others += [
            text(WIDTH + 10, y, name),
            text(WIDTH + 10, y + 18, f"{least:.6g} to {most:.6g}: {100 * spread:.2g} %"),
            f'<rect x="{WIDTH + 10}" y="{y + 26}" width="{max(1, 3000 * spread):.0f}" height="12"'
            ' fill="#4051b5"/>',
        ]
    title = f"One model on {len(stored)} layouts: {len(stored)} curves, drawn over each other"
    return drawing(title, curves, others, 800)


def screenshot(page: Path, image: Path) -> None:
    """Writes the beginning of an HTML page as a PNG image."""
    with tempfile.TemporaryDirectory() as profile:
        options = ["--headless", "--no-sandbox", "--hide-scrollbars", "--window-size=1100,760"]
        options += [f"--user-data-dir={profile}", f"--screenshot={image.resolve()}"]
        subprocess.run(["chromium", *options, page.resolve().as_uri()], check=True)


def main(demo: Path) -> None:
    """Makes the three images."""
    (IMAGES / "layouts.svg").write_text(layout_curves(json.loads(STORED.read_text("utf-8"))))
    (IMAGES / "demo.svg").write_text(demo_curves(demo / "run"))
    screenshot(demo / "run" / "layout.html", IMAGES / "layout_page.png")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
