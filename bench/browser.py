"""Quanto costa il modello nel browser: caricamento, primo pezzo, tempo per pezzo, memoria; interi o float32.

python bench/browser.py [MODELLO…]      vuole Chromium (o CHROMIUM=percorso) e playwright

I tempi sono di CPU, del solo filo che esegue la pagina: altri programmi accesi non li allungano.
"""

import argparse
import json
import shlex
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from playwright.sync_api import Browser, sync_playwright

from annotated.study.microlingua import generate
from annotated.web import export_web
from tools.provenienza import ROOT, chromium, commit, processor, write_json

PROGRAM = ROOT / "annotated" / "study" / "web" / "transformer.js"
MODELS = ["mini", "small-en-it", "base-en-it"]
SENTENCES = [example.en for example in generate(30, held_out=True)]
TO_FLOAT = """() => {
    for (const [name, m] of Object.entries(model.parameters)) {
        if (!m.rows) { model.parameters[name] = m.slice(); continue; }  // una vista terrebbe in vita gli interi
        const floats = new Float32Array(m.rows * m.columns);
        for (let row = 0, i = 0; row < m.rows; row++)
            for (let column = 0; column < m.columns; column++, i++) floats[i] = m.weights[i] * m.scales[row];
        m.weights = floats;
        m.scales = new Float32Array(m.rows).fill(1);
        m.bias &&= m.bias.slice();
    }
}"""


class Timed:
    "Una pagina con il modello caricato, e il tempo di CPU di ciò che vi si esegue."

    def __init__(self, browser: Browser, folder: Path):
        self.page = browser.new_page()
        self.page.goto(f"file://{folder / 'prova.html'}")
        self.session = self.page.context.new_cdp_session(self.page)
        self.session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def metric(self, name: str) -> float:
        return next(m["value"] for m in self.session.send("Performance.getMetrics")["metrics"] if m["name"] == name)

    def run(self, script: str, argument: Any = None) -> tuple[float, Any]:  # millisecondi, risultato
        before = self.metric("ThreadTime")
        result = self.page.evaluate(script, argument)
        return 1000 * (self.metric("ThreadTime") - before), result

    def megabytes(self) -> float:
        self.session.send("HeapProfiler.collectGarbage")
        usage = self.session.send("Runtime.getHeapUsage")
        return (usage["usedSize"] + usage.get("backingStorageSize", 0)) / 1e6


def measure(browser: Browser, folder: Path, floats: bool) -> dict[str, Any]:
    timed = Timed(browser, folder)
    empty = timed.megabytes()
    loading, _ = timed.run("async () => { Object.assign(globalThis, await loadModel('.')) }")
    if floats:
        loading += timed.run(TO_FLOAT)[0]
    memory = timed.megabytes() - empty
    start, _ = timed.run("text => model.write(tokenizer.encode(text)).next().value.id", SENTENCES[0])
    piece = []
    for text in SENTENCES:
        timed.run("text => { globalThis.encoded = model.encode(globalThis.ids = tokenizer.encode(text)) }", text)
        writing, n = timed.run("() => [...model.write(ids, { encoded })].length")
        piece.append(writing / n)
    timed.page.close()
    return {
        "caricamento (ms)": round(loading),
        "primo pezzo a freddo (ms)": round(start),
        "un pezzo (ms)": round(median(piece), 1),
        "un pezzo, il più lento (ms)": round(max(piece), 1),
        "memoria (MB)": round(memory, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    some = "se non sono tutti, le misure si stampano soltanto"
    parser.add_argument("models", nargs="*", default=MODELS, metavar="MODELLO", help=some)
    names = parser.parse_args().models
    if (executable := chromium()) is None:
        parser.error("nessun Chromium: installalo, o di' dov'è con CHROMIUM=percorso")
    report: dict[str, Any] = {
        "comando": shlex.join(["python", "bench/browser.py", *sys.argv[1:]]),
        "commit": commit(),
        "data": f"{datetime.now(UTC):%Y-%m-%d}",
        "dispositivo": processor(),
        "frasi": len(SENTENCES),
    }
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as temporary:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        report |= {"chromium": browser.version, "modelli": {}}
        for name in names:
            folder = Path(temporary) / name
            export_web(name, folder)
            (folder / "prova.html").write_text(
                f"<meta charset=utf-8><script>{PROGRAM.read_text('utf-8')}</script>", "utf-8"
            )
            kilobytes = sum(path.stat().st_size for path in folder.glob("*.js")) / 1000
            kinds = {kind: measure(browser, folder, kind == "float32") for kind in ("int8", "float32")}
            report["modelli"][name] = {"file (kB)": round(kilobytes), **kinds}
            print(name, json.dumps(report["modelli"][name], indent=1, ensure_ascii=False))
        browser.close()
    if names == MODELS:
        write_json(ROOT / "bench" / "risultati" / "browser.json", report)


if __name__ == "__main__":
    main()
