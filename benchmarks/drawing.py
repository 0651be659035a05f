"""How large the page of a long run is, and how soon a browser has drawn it.

    python benchmarks/drawing.py                   a run of 4000 rounds with 20 probes, made here in half a minute
    python benchmarks/drawing.py RUN..             a page of these runs

The browser is told nothing but to open the page and to note when its charts are there: watching every change of
the document, as its developer tools can, costs more than the page itself.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import nn

from fedrecall import Federation, Iid, Local, federate, write_report

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "shared"))
from chromium import Chromium

ROUNDS, PROBES, CLIENTS, CLASSES = 4000, 20, 20, 10

WATCH = """
window.seen = {};
const look = () => {
  if (!seen.charts) document.querySelector(".chart")?.scrollIntoView();
  if (!seen.charts && document.querySelector(".main-svg")) seen.charts = performance.now();
  if (performance.now() < 4000) requestAnimationFrame(look);
};
requestAnimationFrame(look);
"""
REST = "[...drawn.keys()].filter((div) => !div.dataset.drawn).forEach(drawNow)"


def long_run(folder: Path) -> Path:
    """As long as asked for, of a model so small that it is made at once."""
    random = np.random.default_rng(0)
    x, y = random.normal(size=(2000, 16)).astype(np.float32), np.arange(2000) % CLASSES
    federation = Federation.from_arrays(x, y, partition=Iid(clients=CLIENTS, validation=0.2), num_classes=CLASSES)
    local = Local(steps=1, batch_size=8, lr=0.05)
    federate(nn.Linear(16, CLASSES), federation, rounds=ROUNDS, clients_per_round=5, local=local, engine="serial",
             forgetting={"every": ROUNDS // PROBES}, out=folder)  # fmt: skip
    return folder


def drawn(browser: Chromium, page: Path) -> tuple[float, float, float]:
    """Milliseconds until the first paint, until the charts on the screen are there, and of all others after."""
    target = browser.call("Target.createTarget", url="about:blank")["targetId"]
    browser.session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
    browser.call("Page.enable")
    browser.call("Emulation.setDeviceMetricsOverride", width=1400, height=900, deviceScaleFactor=1, mobile=False)
    browser.call("Page.addScriptToEvaluateOnNewDocument", source=WATCH)
    browser.call("Page.navigate", url=page.as_uri())
    time.sleep(4.5)
    paint = browser.value("performance.getEntriesByType('paint')[0].startTime")
    charts = browser.value("seen.charts")
    rest = browser.value(f"(() => {{ const began = performance.now(); {REST}; return performance.now() - began; }})()")
    browser.call("Target.closeTarget", targetId=target)
    return paint, charts, rest


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("runs", type=Path, nargs="*")
    parser.add_argument("--repeats", type=int, default=7)
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        page = write_report(chosen.runs or [long_run(Path(name) / "run")], Path(name) / "report.html")
        print(f"{page.stat().st_size / 1e6:.2f} MB")
        browser = Chromium(Path(name) / "profile")
        times = [drawn(browser, page) for _ in range(chosen.repeats)]
        browser.close()
    for what, values in zip(("first paint", "charts on the screen", "all other charts, after"), zip(*times)):
        low, high = min(values), max(values)
        print(f"{what:24} {statistics.median(values):5.0f} ms ({low:.0f} to {high:.0f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
