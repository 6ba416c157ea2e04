"""Esegue i quaderni e li tiene in forma canonica: differenze piccole, uscite confrontabili, identificatori stabili.

python tools/quaderni.py esegui [FILE…]      riesegue da capo, salva ed esporta il pacchetto
python tools/quaderni.py forma [FILE…]       salva in forma canonica senza rieseguire: basta per la sola prosa
python tools/quaderni.py anticipa [FILE…]    esegue per il libro, due alla volta, quelli il cui codice è cambiato
python tools/quaderni.py verifica [FILE…]    esce con 1 se un quaderno non è in forma canonica
"""

import argparse
import hashlib
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import nbformat
import yaml
from nbformat import NotebookNode
from nbformat.reader import NotJSONError
from tqdm import tqdm

ROOT = Path(__file__).resolve().parent.parent
BOOK = ROOT / "book"
CACHE = BOOK / "_build" / ".jupyter_cache"  # quella di jupyter-book
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
CELL_METADATA = {"tags", "mystnb"}
ID = re.compile(r"[0-9a-f]{8}(-\d+)?")
NO_OUTPUTS = {"nbval-ignore-output", "nbval-skip"}
INSTALL = """\
# Il quaderno usa il pacchetto `annotated`, con il libro e i pesi pubblicati: su Colab si installa da sé.
import sys
from importlib.util import find_spec

if "google.colab" in sys.modules:
    import subprocess
    from pathlib import Path

    home = "/content/annotated"
    revision = "refs/heads/main"  # nei quaderni pubblicati, il commit da cui vengono
    if not Path(home, "pyproject.toml").exists():
        Path(home).mkdir(exist_ok=True)
        fetch = ["fetch", "--depth=1", "{repository}.git", revision]
        for command in (["init"], fetch, ["checkout", "FETCH_HEAD"]):
            subprocess.run(["git", *command, "-q"], cwd=home, check=True)
    subprocess.run([sys.executable, "-m", "pip", "install", "-qe", home + "[corpora,marian]"], check=True)
    sys.path.insert(0, home)  # un'installazione modificabile vale solo dal prossimo avvio
elif not (find_spec("annotated") and find_spec("annotated.knn")):  # su PyPI «annotated» è un altro progetto
    clone, install = "git clone {repository}", "pip install -e annotated"
    raise ImportError(f"Manca il pacchetto del libro: «{{clone}}», poi «{{install}}».")"""
REPOSITORY = yaml.safe_load((BOOK / "_config.yml").read_text("utf-8"))["repository"]["url"]


def install_cell() -> NotebookNode:
    "La cella che su Colab installa il pacchetto e altrove dice se manca; nel libro non si vede."
    metadata = {"tags": ["remove-cell", "nbval-skip"]}
    return nbformat.v4.new_code_cell(INSTALL.format(repository=REPOSITORY), metadata=metadata)


def canonical(notebook: NotebookNode) -> NotebookNode:
    "Solo i metadati ammessi, la cella d'installazione al suo posto, identificatori stabili, uscite confrontabili."
    notebook.metadata = NotebookNode(METADATA)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    notebook.cells = [cell for cell in notebook.cells if not cell.source.startswith(INSTALL.splitlines()[0])]
    title = next(i for i, cell in enumerate(notebook.cells) if cell.source.startswith("# "))
    notebook.cells.insert(title + 1, install_cell())  # l'etichetta del capitolo sta in una cella sua, prima del titolo
    seen: set[str] = set()
    count = 0
    for cell in notebook.cells:
        if cell.cell_type == "code" or not ID.fullmatch(cell.id) or cell.id in seen:  # una prosa ritoccata tiene il suo
            digest = hashlib.sha256(cell.source.encode()).hexdigest()
            cell.id = next(i for n in range(999) if (i := digest[:8] + (f"-{n}" if n else "")) not in seen)
        seen.add(cell.id)
        cell.metadata = NotebookNode({k: v for k, v in cell.metadata.items() if k in CELL_METADATA})
        if cell.cell_type != "code":
            continue
        count += 1
        if NO_OUTPUTS & set(cell.metadata.get("tags", [])):
            cell.outputs = []
        cell.outputs = merged(cell.outputs)
        for output in cell.outputs:
            if "metadata" in output:
                output.metadata = NotebookNode()
            if output.output_type == "execute_result":
                output.execution_count = count
        cell.execution_count = count if cell.outputs else None  # nbval rifiuta una cella con uscite e senza numero
    return notebook


def merged(outputs: list[NotebookNode]) -> list[NotebookNode]:
    "Le uscite, con i pezzi consecutivi dello stesso flusso riuniti: dove si spezza dipende dal momento."
    result: list[NotebookNode] = []
    for output in outputs:
        if result and output.output_type == "stream" == result[-1].output_type and output.name == result[-1].name:
            result[-1].text += output.text
        else:
            result.append(output)
    return result


def text(notebook: NotebookNode) -> str:
    return nbformat.writes(notebook, version=nbformat.NO_CONVERT).rstrip("\n") + "\n"


def read_canonical(path: Path) -> NotebookNode:
    try:
        return canonical(nbformat.read(path, as_version=4))
    except FileNotFoundError:
        sys.exit(f"errore: {path}: non c'è. Controlla il nome.")
    except (NotJSONError, StopIteration):  # `canonical` cerca il titolo
        sys.exit(f"errore: {path}: non è un quaderno, o non ha una cella che cominci con «# …», il titolo. Correggilo.")


def save(path: Path, notebook: NotebookNode) -> None:
    "Per intero o per niente: il quaderno è il sorgente."
    temporary = path.with_suffix(".parziale")
    temporary.write_text(text(notebook), encoding="utf-8")
    temporary.replace(path)


def reshape(paths: list[Path]) -> int:
    for path in paths:
        save(path, read_canonical(path))
    return 0


def keep_for_book(notebook: NotebookNode, path: Path) -> None:
    "Mette un quaderno eseguito nella cache da cui il libro prende le uscite."
    from filelock import FileLock
    from jupyter_cache import get_cache
    from jupyter_cache.base import CacheBundleIn

    CACHE.mkdir(parents=True, exist_ok=True)
    with FileLock(CACHE / ".scrive"):
        get_cache(CACHE).cache_notebook_bundle(CacheBundleIn(notebook, str(path)), check_validity=False, overwrite=True)


def execute(paths: list[Path]) -> int:
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    os.environ["OMP_NUM_THREADS"] = "1"  # le somme dipendono dal numero di thread
    reshape(paths)
    subprocess.run([Path(sys.executable).with_name("nbdev-export")], cwd=ROOT, check=True)
    for path in paths:
        notebook = nbformat.read(path, as_version=4)
        resources = {"metadata": {"path": str(path.parent)}}
        # i tempi delle celle cambierebbero l'impronta con cui la cache riconosce il quaderno
        client = NotebookClient(notebook, timeout=300, kernel_name="python3", resources=resources, record_timing=False)
        try:
            client.execute()
        except (CellExecutionError, TimeoutError) as error:
            sys.exit(f"{path}: {error}")
        keep_for_book(notebook, path)  # la cache guarda il codice del quaderno, non il pacchetto
        save(path, canonical(notebook))
        print("eseguito", path.name, flush=True)
    return 0


def run_for_book(key: int) -> None:
    from jupyter_cache import get_cache
    from jupyter_cache.executors import load_executor

    load_executor("local-serial", get_cache(CACHE)).run_and_cache(filter_pks=[key], timeout=300)


def anticipate(paths: list[Path]) -> int:
    "Riempie la cache da cui il libro prende le uscite; un quaderno che fallisce lo dirà la costruzione, con la cella."
    from jupyter_cache import get_cache

    cache = get_cache(CACHE)
    # soltanto questi: di un quaderno rinominato o cancellato la cache ricorda ancora il posto, e non lo troverebbe
    here = [cache.add_nb_to_project(str(path)).uri for path in paths]
    stale = [record.pk for record in cache.list_unexecuted(filter_uris=here)]
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(2) as pool:
        os.environ["IPYTHONDIR"] = folder  # qui i nuclei leggono di tacere un avviso sulla rete locale
        profile = Path(folder) / "profile_default"
        profile.mkdir()
        (profile / "ipython_kernel_config.py").write_text('c.IPKernelApp.log_level = "ERROR"\n')
        list(tqdm(pool.map(run_for_book, stale), desc="quaderni eseguiti", total=len(stale), disable=not stale))
    return 0


def verify(paths: list[Path]) -> int:
    bad = [p.name for p in paths if text(read_canonical(p)) != p.read_text("utf-8")]
    dated = [p.name for p in paths if "<dc:date>" in p.read_text("utf-8")]  # nbval confronterebbe anche la data
    if bad:
        print("non in forma canonica (python tools/quaderni.py forma):", ", ".join(bad), file=sys.stderr)
    if dated:
        print("figure con la data: alla cella va l'etichetta nbval-ignore-output:", ", ".join(dated), file=sys.stderr)
    return bool(bad or dated)


ACTIONS = {"esegui": execute, "forma": reshape, "anticipa": anticipate, "verifica": verify}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("azione", choices=ACTIONS)
    parser.add_argument("file", nargs="*", type=Path)
    arguments = parser.parse_args()
    chosen = arguments.file or sorted(BOOK.glob("*.ipynb"))
    sys.exit(ACTIONS[arguments.azione](chosen))
