"""Quanto pesa una pagina del libro e quanto si aspetta: byte per genere, richieste, LCP, TBT e CLS in Chromium.

python bench/pagine.py [CARTELLA] [PAGINA…]      di solito book/_build/html, e quattro pagine: intro, 02_attenzione…

La rete è quella di un telefono lento (1,44 Mb/s, 562 ms), il processore quattro volte più lento, come in Lighthouse.
Si serve con gzip, come fa GitHub. Altri programmi accesi allungano il TBT, che è un limite superiore.
"""

import argparse
import gzip
import json
from collections import Counter
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from threading import Thread
from typing import Any

from playwright.sync_api import Browser, Response, sync_playwright

from tools.provenienza import chromium

BOOK = Path(__file__).resolve().parent.parent / "book" / "_build" / "html"
PAGES = ["intro", "02_attenzione", "09_transformer", "21_it_animal"]
NETWORK = {"offline": False, "latency": 562.5, "downloadThroughput": 1.44e6 / 8, "uploadThroughput": 675e3 / 8}
KINDS = {"document": "html", "stylesheet": "css", "script": "js", "image": "immagini", "font": "caratteri"}
WATCH = """() => {
    window.misure = {lcp: 0, tbt: 0, cls: 0};
    const watch = (type, use) =>
        new PerformanceObserver(list => list.getEntries().forEach(use)).observe({type, buffered: true});
    watch('largest-contentful-paint', e => misure.lcp = e.startTime);
    watch('longtask', e => misure.tbt += Math.max(0, e.duration - 50));
    watch('layout-shift', e => misure.cls += e.hadRecentInput ? 0 : e.value);
}"""


class Zipped(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            return self.send_error(404)
        data, kind = path.read_bytes(), self.guess_type(str(path))
        self.send_response(200)
        self.send_header("Content-Type", kind)
        if kind.startswith("text/") or kind.endswith(("javascript", "json", "xml")):
            data = gzip.compress(data, 6)
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None: ...


def visit(browser: Browser, url: str) -> dict[str, Any]:
    page = browser.new_page(viewport={"width": 412, "height": 823}, is_mobile=True, device_scale_factor=1.75)
    session = page.context.new_cdp_session(page)
    session.send("Network.enable")
    session.send("Network.emulateNetworkConditions", NETWORK)
    session.send("Emulation.setCPUThrottlingRate", {"rate": 4})
    seen: list[Response] = []
    page.on("response", lambda response: seen.append(response))
    page.add_init_script(f"({WATCH})()")
    page.goto(url, wait_until="load", timeout=120_000)
    page.wait_for_timeout(3000)
    timing = page.evaluate("window.misure")
    raw, packed = Counter[str](), Counter[str]()
    for response in seen:
        kind = KINDS.get(response.request.resource_type, "altro")
        raw[kind] += len(response.body())
        packed[kind] += int(response.headers.get("content-length", 0))
    page.close()
    return {"richieste": len(seen), "kB": raw, "kB gzip": packed, **timing}


def measure(browser: Browser, url: str, times: int) -> dict[str, Any]:
    visits = [visit(browser, url) for _ in range(times)]
    last = visits[-1]
    sizes = {name: {k: round(v / 1000) for k, v in last[name].items()} for name in ("kB", "kB gzip")}
    totals = {f"{name} in tutto": round(sum(last[name].values()) / 1000) for name in ("kB", "kB gzip")}
    middle = {name: round(median(visit[name] for visit in visits), 3) for name in ("lcp", "tbt", "cls")}
    return {"richieste": last["richieste"], **totals, **sizes, **middle}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cartella", nargs="?", type=Path, default=BOOK)
    parser.add_argument("pagine", nargs="*", default=PAGES)
    parser.add_argument("--volte", type=int, default=3)
    arguments = parser.parse_args()
    if missing := [name for name in arguments.pagine if not (arguments.cartella / f"{name}.html").exists()]:
        parser.error(f"in {arguments.cartella} non c'è {missing[0]}.html")
    if (executable := chromium()) is None:
        parser.error("nessun Chromium: installalo, o di' dov'è con CHROMIUM=percorso")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Zipped, directory=str(arguments.cartella)))
    Thread(target=server.serve_forever, daemon=True).start()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox", "--disable-gpu"])
        for name in arguments.pagine:
            found = measure(browser, f"http://127.0.0.1:{server.server_port}/{name}.html", arguments.volte)
            print(name, json.dumps(found, ensure_ascii=False))
        browser.close()
    server.shutdown()


if __name__ == "__main__":
    main()
