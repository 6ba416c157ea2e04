"""Ciò che i programmi di `tools` hanno in comune: da dove viene una misura, e come si dice un errore."""

import hashlib
import json
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

import torch

from annotated.common import AnnotatedError, atomic_write

ROOT = Path(__file__).resolve().parent.parent


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def commit() -> str:
    "Il commit del codice, con «+» se il pacchetto ha modifiche non registrate."
    return _git("rev-parse", "--short", "HEAD") + ("+" if _git("status", "--porcelain", "annotated") else "")


def processor() -> str:
    "Il nome del processore, dove il sistema lo dice."
    path = Path("/proc/cpuinfo")
    names = [x for x in path.read_text().splitlines() if x.startswith("model name")] if path.exists() else []
    return names[0].split(": ")[1] if names else platform.processor()


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def weights_sha256(folder: Path) -> str:
    "L'impronta dei pesi di un modello, che stiano in un file o in più parti."
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(folder.glob("model*.safetensors")))).hexdigest()


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
