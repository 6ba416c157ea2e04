"""Esegue i quaderni e li tiene in forma canonica: differenze piccole, uscite confrontabili, identificatori stabili.

    python tools/quaderni.py esegui [FILE…]      riesegue da capo, salva ed esporta il pacchetto
    python tools/quaderni.py verifica [FILE…]    esce con 1 se un quaderno non è in forma canonica
"""

import argparse
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import yaml
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parent.parent
BOOK = ROOT / "book"
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
CELL_METADATA = {"tags", "mystnb"}
NO_OUTPUTS = {"nbval-ignore-output", "nbval-skip"}
COLAB = '''\
# Solo su Colab: installa il pacchetto `annotated` con il libro e i pesi pubblicati.
import sys

if "google.colab" in sys.modules:
    import subprocess
    from pathlib import Path

    if not Path("/content/annotated").exists():
        subprocess.run(["git", "clone", "-q", "--depth=1", "{repository}.git", "/content/annotated"], check=True)
    subprocess.run([sys.executable, "-m", "pip", "install", "-qe", "/content/annotated[corpora,marian]"], check=True)
    sys.path.insert(0, "/content/annotated")  # un'installazione modificabile vale solo dal prossimo avvio'''
REPOSITORY = yaml.safe_load((BOOK / "_config.yml").read_text("utf-8"))["repository"]["url"]


def colab_cell() -> NotebookNode:
    "La cella che su Colab installa il pacchetto; altrove non fa nulla, e nel libro non si vede."
    metadata = {"tags": ["remove-cell", "nbval-skip"]}
    return nbformat.v4.new_code_cell(COLAB.format(repository=REPOSITORY), metadata=metadata)


def canonical(notebook: NotebookNode) -> NotebookNode:
    "Solo i metadati ammessi, la cella di Colab al suo posto, identificatori dal contenuto, uscite confrontabili."
    notebook.metadata = NotebookNode(METADATA)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    notebook.cells = [cell for cell in notebook.cells if "google.colab" not in cell.source]
    title = next(i for i, cell in enumerate(notebook.cells) if cell.source.startswith("# "))
    notebook.cells.insert(title + 1, colab_cell())  # l'etichetta del capitolo sta in una cella sua, prima del titolo
    seen: set[str] = set()
    count = 0
    for cell in notebook.cells:
        digest = hashlib.sha256(cell.source.encode()).hexdigest()
        cell.id = next(i for n in range(999) if (i := digest[:8] + (f"-{n}" if n else "")) not in seen)
        seen.add(cell.id)
        cell.metadata = NotebookNode({k: v for k, v in cell.metadata.items() if k in CELL_METADATA})
        if cell.cell_type != "code":
            continue
        count += 1
        if NO_OUTPUTS & set(cell.metadata.get("tags", [])):
            cell.outputs = []
        for output in cell.outputs:
            if "metadata" in output:
                output.metadata = NotebookNode()
            if output.output_type == "execute_result":
                output.execution_count = count
        cell.execution_count = count if cell.outputs else None  # nbval rifiuta una cella con uscite e senza numero
    return notebook


def text(notebook: NotebookNode) -> str:
    return nbformat.writes(notebook, version=nbformat.NO_CONVERT).rstrip("\n") + "\n"


def execute(paths: list[Path]) -> int:
    from nbclient import NotebookClient

    os.environ["OMP_NUM_THREADS"] = "1"  # le somme dipendono dal numero di thread
    for path in paths:
        path.write_text(text(canonical(nbformat.read(path, as_version=4))), encoding="utf-8")
    subprocess.run([Path(sys.executable).with_name("nbdev-export")], cwd=ROOT, check=True)
    for path in paths:
        notebook = nbformat.read(path, as_version=4)
        resources = {"metadata": {"path": str(path.parent)}}
        NotebookClient(notebook, timeout=300, kernel_name="python3", resources=resources).execute()
        path.write_text(text(canonical(notebook)), encoding="utf-8")
        print("eseguito", path.name, flush=True)
    return 0


def verify(paths: list[Path]) -> int:
    bad = [p.name for p in paths if p.read_text("utf-8") != text(canonical(nbformat.read(p, as_version=4)))]
    if bad:
        print("non in forma canonica (make quaderni):", ", ".join(bad), file=sys.stderr)
    return bool(bad)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("azione", choices=["esegui", "verifica"])
    parser.add_argument("file", nargs="*", type=Path)
    arguments = parser.parse_args()
    chosen = arguments.file or sorted(BOOK.glob("*.ipynb"))
    sys.exit({"esegui": execute, "verifica": verify}[arguments.azione](chosen))
