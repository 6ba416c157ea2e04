"""Ciò che i programmi di `tools` hanno in comune: da dove viene una misura, e come si dice un errore."""

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

import torch

from annotated.common import AnnotatedError, atomic_write, reason

ROOT = Path(__file__).resolve().parent.parent


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:  # git può mancare
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""  # i sorgenti possono essere un archivio


@cache
def commit() -> str:
    "Il commit, con «+» se pacchetto, strumenti o banchi di prova hanno modifiche non registrate; «?» se non si sa."
    changed = _git("status", "--porcelain", "annotated", "tools", "bench/*.py")
    return (_git("rev-parse", "--short", "HEAD") or "?") + ("+" if changed else "")


commit()  # subito: a misura finita il deposito può essere andato avanti


def processor() -> str:
    "Il nome del processore, dove il sistema lo dice."
    path = Path("/proc/cpuinfo")
    names = [x for x in path.read_text().splitlines() if x.startswith("model name")] if path.exists() else []
    return names[0].split(": ")[1] if names else platform.processor()


def chromium(*first: str) -> str | None:
    "Il Chromium di `CHROMIUM`, o il primo che si trova, a cominciare dai nomi dati; `None` se non c'è."
    found = map(shutil.which, (*first, "chromium", "chromium-browser", "google-chrome"))
    return os.environ.get("CHROMIUM") or next(filter(None, found), None)


def read_log(run: Path) -> list[dict[str, Any]]:
    "Il diario di un addestramento."
    return [json.loads(line) for line in (run / "log.jsonl").read_text("utf-8").splitlines()]


def checkpoints(run: Path) -> list[Path]:
    "I checkpoint di un addestramento, in ordine di passo; non le copie, che hanno altro nel nome."
    steps = {path: path.stem.removeprefix("weights-") for path in run.glob("weights-*.safetensors")}
    return sorted((path for path in steps if steps[path].isdecimal()), key=lambda path: int(steps[path]))


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def weights_sha256(folder: Path) -> str:
    "L'impronta dei pesi di un modello, che stiano in un file o in più parti."
    parts = sorted(folder.glob("model*.safetensors"))
    if not parts:
        raise AnnotatedError(f"{folder}: qui non ci sono pesi (model*.safetensors). Controlla la cartella.")
    return hashlib.sha256(b"".join(path.read_bytes() for path in parts)).hexdigest()


def origin(command: str, **more: str) -> dict[str, str]:
    "Da dove viene una misura; in `more`, le impronte di ciò che ha letto."
    facts = {"comando": command, "commit": commit(), "data": str(date.today()), "processore": processor()}
    return facts | {"torch": torch.__version__} | more


def write_json(path: Path, value: dict[str, Any]) -> None:
    with atomic_write(path) as file:
        file.write((json.dumps(value, ensure_ascii=False, indent=1) + "\n").encode())


@contextmanager
def told_errors() -> Iterator[None]:
    "Un errore nei dati o nel comando si dice in una riga, ed esce con 1."
    try:
        yield
    except AnnotatedError as error:
        sys.exit(f"errore: {error}")
    except OSError as error:
        sys.exit(f"errore: {error.filename or 'lettura o scrittura'}: {reason(error)}.")
