"""L'esportazione verso MarianMT e CTranslate2: gli stessi numeri, le stesse traduzioni, e rifiuti che si spiegano."""

import errno
import os
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

os.environ["HF_HUB_OFFLINE"] = "1"
warnings.filterwarnings("ignore", message="IProgress not found")

import ctranslate2  # noqa: E402
import pytest  # noqa: E402
import safetensors.torch  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from ctranslate2.converters import TransformersConverter  # noqa: E402
from torch import Tensor  # noqa: E402

from annotated import Config, Transformer, load_pretrained  # noqa: E402
from annotated.checkpoint import save_model  # noqa: E402
from annotated.common import BOS, EOS, PAD, UNK, AnnotatedError  # noqa: E402
from annotated.data import pad, read_pairs  # noqa: E402
from annotated.decoding import beam_search, translate  # noqa: E402
from annotated.marian import export_marian, reorder, start_from_zero  # noqa: E402
from annotated.study.microlingua import generate  # noqa: E402
from annotated.tokenizer import Tokenizer, straighten  # noqa: E402
from conftest import fill_disk  # noqa: E402

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

BOOK = Path(__file__).resolve().parent.parent / "book"
EXAMPLES = generate(60, held_out=True)
SENTENCES = [example.en for example in EXAMPLES]
REAL_TEXT = [
    "L'università dell'Aquila è più antica di quanto si creda; perché no?",
    "Un po' d'acqua, città e caffè… «così» disse.",
    "L’animale non c’è più: “davvero?”",
    "It's 3,50 € — don't (you) think?",
    "naïve  café 日本語 x_y & co.",
    "   spazi ai bordi   ",
]


class Exported(NamedTuple):
    "Un modello nei tre programmi."

    folder: Path
    model: Transformer
    tokenizer: Tokenizer
    marian: Any
    marian_tokenizer: Any
    engine: ctranslate2.Translator


def randomize(model: Transformer) -> Transformer:
    "Anche bias e normalizzazioni casuali: con i valori iniziali, 0 e 1, uno scambio non si vedrebbe."
    for name, tensor in model.state_dict().items():
        if name.endswith("bias") or "norm" in name:
            tensor += torch.randn_like(tensor) / 5
    return model.eval()


def export(folder: Path, model: Transformer, tokenizer: Tokenizer) -> Exported:
    save_model(folder / "nostro", model, tokenizer)
    export_marian(folder / "nostro", folder / "marian")
    TransformersConverter(str(folder / "marian")).convert(str(folder / "ct2"))
    return Exported(
        folder, model, tokenizer,
        transformers.MarianMTModel.from_pretrained(folder / "marian").eval(),
        transformers.MarianTokenizer.from_pretrained(folder / "marian"),
        ctranslate2.Translator(str(folder / "ct2"), inter_threads=1, intra_threads=1),
    )  # fmt: skip


@pytest.fixture(scope="module")
def mini(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    "I pesi di mini letti con quattro teste anche nella cross-attention, come MarianMT le vuole."
    model, tokenizer = load_pretrained("mini")
    four_heads = Transformer(replace(model.config, h_cross=None)).eval()
    four_heads.load_state_dict(model.state_dict())
    return export(tmp_path_factory.mktemp("mini"), four_heads, tokenizer)


@pytest.fixture(scope="module")
def random_model(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    "Pesi casuali, con pile di altezza diversa."
    tokenizer = load_pretrained("mini")[1]
    torch.manual_seed(0)
    model = randomize(Transformer(Config(tokenizer.vocab_size, 48, 96, 6, 2, N_decoder=3, max_len=40)))
    return export(tmp_path_factory.mktemp("casuale"), model, tokenizer)


@pytest.fixture(params=["mini", "random_model"])
def exported(request: pytest.FixtureRequest) -> Exported:
    return request.getfixturevalue(request.param)


def tokens(tokenizer: Tokenizer, texts: list[str], start: tuple[int, ...] = ()) -> Tensor:
    return pad([*start, *ids, EOS] for ids in tokenizer.encode(texts))


def gap(a: Tensor, b: Tensor, real: Tensor) -> float:
    return float(((a - b).abs() * real).max())


@torch.inference_mode()
def test_logits(exported: Exported) -> None:
    "Lo stesso logit per ogni pezzo, a meno di quello di BOS che Marian fissa a 0; con riempitivo da entrambe le parti."
    model, tokenizer = exported.model, exported.tokenizer
    src, tgt = tokens(tokenizer, SENTENCES), tokens(tokenizer, [e.it for e in EXAMPLES], (BOS,))
    real = (tgt != PAD)[:, :, None]
    assert (src == PAD).any() and (tgt == PAD).any()
    ours = model(src, tgt)
    theirs = exported.marian(input_ids=src, attention_mask=(src != PAD).long(), decoder_input_ids=tgt).logits
    assert theirs.shape[-1] == tokenizer.vocab_size + 1
    assert gap(ours - ours[..., BOS, None], theirs[..., :-1], real) < 1e-4
    assert gap(ours.log_softmax(-1), theirs.log_softmax(-1)[..., :-1], real) < 1e-4  # il pezzo in più non conta
    own = exported.marian_tokenizer(SENTENCES, padding=True, return_tensors="pt")  # con il loro riempitivo
    again = exported.marian(**own, decoder_input_ids=tgt).logits
    assert gap(theirs[..., :-1], again[..., :-1], real) < 1e-4


def test_tokenizer(exported: Exported) -> None:
    "Gli stessi indici e lo stesso testo, anche dove sacremoses riscriverebbe la punteggiatura."
    theirs, ours = exported.marian_tokenizer, exported.tokenizer
    texts = SENTENCES + [e.it for e in EXAMPLES] + REAL_TEXT
    assert any(theirs.normalize(text) != text for text in REAL_TEXT)
    ids = ours.encode(texts)
    assert theirs([*map(straighten, texts)]).input_ids == [[*row, EOS] for row in ids]
    sentences = [*(e.it for e in EXAMPLES), "Il cane vide la strada ."]  # lo spazio resta: niente ritocchi
    assert theirs.batch_decode(theirs(sentences).input_ids, skip_special_tokens=True) == sentences
    assert (theirs.pad_token_id, theirs.unk_token_id, theirs.eos_token_id) == (ours.vocab_size, 1, EOS)
    assert theirs.model_max_length == exported.model.config.max_len


def marian_ids(exported: Exported, texts: list[str], beam: int) -> list[list[int]]:
    batch = exported.marian_tokenizer(texts, padding=True, return_tensors="pt")
    options = {"length_penalty": 0.0, "early_stopping": "never"} if beam > 1 else {}
    rows = exported.marian.generate(**batch, num_beams=beam, max_length=exported.model.config.max_len, **options)
    return [[i for i in row if i not in (EOS, exported.tokenizer.vocab_size)] for row in rows.tolist()]


def ct2_ids(exported: Exported, texts: list[str], beam: int) -> list[list[int]]:
    tokenizer, length = exported.tokenizer, exported.model.config.max_len
    sources = [tokenizer.pieces([*ids, EOS]) for ids in tokenizer.encode(texts)]
    forbidden = [["<inutilizzato>"], ["<unk>"], ["<s>"]]
    results = exported.engine.translate_batch(
        sources, beam_size=beam, length_penalty=0.0, max_decoding_length=length - 1, suppress_sequences=forbidden
    )
    indices = {piece: i for i, piece in enumerate(tokenizer.pieces(list(range(tokenizer.vocab_size))))}
    return [[indices[piece] for piece in result.hypotheses[0]] for result in results]


@pytest.mark.parametrize("beam", [1, 4])
def test_three_programs_translate_alike(mini: Exported, beam: int) -> None:
    "Greedy e beam 4 senza normalizzazione della lunghezza: le stesse traduzioni; senza UNK, anche di lettere ignote."
    odd = [f"Öč, {text}" for text in SENTENCES[:6]]
    src = tokens(mini.tokenizer, SENTENCES + odd)
    assert (src == UNK).any(dim=1).sum() == len(odd)
    ours = [hypotheses[0].ids for hypotheses in beam_search(mini.model, src, beam, alpha=0.0)]
    assert not any(UNK in ids for ids in ours)
    assert mini.tokenizer.decode(ours[: len(SENTENCES)]) == [e.it for e in EXAMPLES]
    assert marian_ids(mini, SENTENCES + odd, beam) == ours
    assert ct2_ids(mini, SENTENCES + odd, beam) == ours


def test_random_model_decodes_alike(random_model: Exported) -> None:
    "Un modello a caso non si ferma: si confronta ciò che scrive prima del limite, che ciascuno pone a modo suo."
    src = tokens(random_model.tokenizer, SENTENCES)
    ours = [hypotheses[0].ids[:30] for hypotheses in beam_search(random_model.model, src, 1)]
    assert len({tuple(ids) for ids in ours}) > 1
    assert [ids[:30] for ids in marian_ids(random_model, SENTENCES, 1)] == ours
    assert [ids[:30] for ids in ct2_ids(random_model, SENTENCES, 1)] == ours


def test_generation_defaults(mini: Exported) -> None:
    "Chi chiama `generate` senza opzioni ha le nostre traduzioni, per intero e senza pezzi vietati."
    batch = mini.marian_tokenizer(SENTENCES, padding=True, return_tensors="pt")
    text = mini.marian_tokenizer.batch_decode(mini.marian.generate(**batch), skip_special_tokens=True)
    assert text == translate(mini.model, mini.tokenizer, SENTENCES)
    assert mini.marian.generation_config.bad_words_ids == [[0], [1], [2], [mini.tokenizer.vocab_size]]


def test_real_sentences(tmp_path: Path) -> None:
    "L'inglese vero: senza normalizzazione le stesse traduzioni; con i valori predefiniti qualcuna può cambiare."
    export_marian("small-en-it", tmp_path / "m")
    model, tokenizer = load_pretrained("small-en-it")
    marian = transformers.MarianMTModel.from_pretrained(tmp_path / "m").eval()
    theirs = transformers.MarianTokenizer.from_pretrained(tmp_path / "m")
    sources = [pair.source for pair in read_pairs(BOOK / "dati" / "teste.tsv.xz")]
    known = [text for text, ids in zip(sources, tokenizer.encode(sources), strict=True) if UNK not in ids]
    texts = known[::24][:40]
    batch = theirs(texts, padding=True, return_tensors="pt")
    for alpha, options, least in ((0.0, {"length_penalty": 0.0}, 40), (0.6, {}, 38)):
        text = theirs.batch_decode(marian.generate(**batch, **options), skip_special_tokens=True)
        assert sum(a == b for a, b in zip(text, translate(model, tokenizer, texts, alpha=alpha), strict=True)) >= least
    strange = "Łukasz paid 5 €."  # questi segni il vocabolario non li ha: si copiano, e `transformers` non lo sa fare
    [text] = theirs.batch_decode(marian.generate(**theirs([strange], return_tensors="pt")), skip_special_tokens=True)
    assert "€" in translate(model, tokenizer, [strange])[0] and "€" not in text


def test_saved_again_by_transformers(mini: Exported, tmp_path: Path) -> None:
    "Ciò che `transformers` risalva è ancora lo stesso modello: le posizioni non sono fra i pesi."
    mini.marian.save_pretrained(tmp_path)
    again = transformers.MarianMTModel.from_pretrained(tmp_path)
    mine = mini.marian.state_dict()
    assert all(torch.equal(tensor, mine[name]) for name, tensor in again.state_dict().items())


@torch.inference_mode()
@pytest.mark.parametrize("norm_first", [False, True])
def test_any_order_of_components(norm_first: bool) -> None:
    torch.manual_seed(1)
    model = randomize(Transformer(Config(50, 32, 64, 4, 2, norm_first=norm_first, max_len=16)))
    src, tgt = torch.randint(EOS + 1, 50, (3, 9)), torch.randint(EOS + 1, 50, (3, 7))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    moved = reorder(model, torch.randperm(32))
    assert torch.allclose(moved(src, tgt), model(src, tgt), atol=1e-4)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())  # è una copia


@torch.inference_mode()
def test_start_from_zero() -> None:
    torch.manual_seed(2)
    model = randomize(Transformer(Config(50, 32, 64, 4, 2, max_len=16)))
    src, tgt = torch.randint(EOS + 1, 50, (3, 9)), torch.randint(EOS + 1, 50, (3, 7))
    logits = model(src, tgt)
    zero = start_from_zero(model)
    assert not zero.embedding.weight[BOS].any()
    assert torch.allclose(zero(src, tgt), logits - logits[..., BOS, None], atol=1e-4)
    assert torch.equal(model(src, tgt), logits)  # è una copia


@pytest.mark.parametrize(
    ("changes", "words"), [({"norm_first": True}, "Pre-LN"), ({"h_cross": 2}, "h_cross = 2 e h = 4")]
)
def test_models_that_marian_cannot_represent(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    tokenizer = load_pretrained("mini")[1]
    save_model(tmp_path / "m", Transformer(Config(tokenizer.vocab_size, 32, 64, 4, 1, **changes)), tokenizer)
    with pytest.raises(AnnotatedError, match=words) as error:
        export_marian(tmp_path / "m", tmp_path / "out")
    assert str(error.value).startswith(str(tmp_path / "m")) and "\n" not in str(error.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m"]


def test_h_cross_equal_to_h_is_fine(tmp_path: Path) -> None:
    tokenizer = load_pretrained("mini")[1]
    save_model(tmp_path / "m", Transformer(Config(tokenizer.vocab_size, 32, 64, 4, 1, h_cross=4)), tokenizer)
    export_marian(tmp_path / "m", tmp_path / "out")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {
        "config.json", "generation_config.json", "model.safetensors", "source.spm", "target.spm",
        "tokenizer_config.json", "vocab.json",
    }  # fmt: skip
    tensors = safetensors.torch.load_file(tmp_path / "out" / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float32}


def test_output_folder_is_never_overwritten(mini: Exported, tmp_path: Path) -> None:
    (tmp_path / "piena").mkdir()
    (tmp_path / "piena" / "mio.txt").write_text("mio", "utf-8")
    (tmp_path / "pesi").mkdir()
    (tmp_path / "pesi" / "model.safetensors").write_text("mio", "utf-8")
    (tmp_path / "file").write_text("mio", "utf-8")
    for name in ("piena", "pesi", "file"):
        with pytest.raises(AnnotatedError, match=f"{name}: esiste già"):
            export_marian(mini.folder / "nostro", tmp_path / name)
    assert [path.name for path in (tmp_path / "piena").iterdir()] == ["mio.txt"]
    export_marian(mini.folder / "nostro", tmp_path / "da" / "creare")
    assert (tmp_path / "da" / "creare" / "config.json").exists()


KILLED = """
import os, sys
from annotated import marian
written, write = [], marian.atomic_write
def atomic_write(path):
    if len(written) == int(sys.argv[3]):
        os._exit(9)
    written.append(path)
    return write(path)
marian.atomic_write = atomic_write
marian.export_marian(*sys.argv[1:3])
"""


@pytest.mark.parametrize("written", [1, 6])
def test_a_killed_export_can_be_repeated(mini: Exported, tmp_path: Path, written: int) -> None:
    "Chi viene ucciso lascia soltanto file suoi, nella cartella sua; config.json ha il suo nome per ultimo."
    command = [sys.executable, "-c", KILLED, mini.folder / "nostro", tmp_path / "out", str(written)]
    (tmp_path / "out").mkdir()
    assert subprocess.run(command, check=False).returncode == 9
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert len(names) == written and "config.json" not in names
    export_marian(mini.folder / "nostro", tmp_path / "out")
    whole = {path.name for path in (mini.folder / "marian").iterdir()}
    assert {path.name for path in (tmp_path / "out").iterdir()} == whole
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    with pytest.raises(AnnotatedError, match="esiste già"):
        export_marian(mini.folder / "nostro", tmp_path / "out")


def test_an_export_writes_on_one_disk(mini: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    "La cartella può essere un disco montato: nessun file cambia cartella."

    def replace(source: Path, target: Path, original: Any = os.replace) -> None:
        if Path(source).parent != Path(target).parent:
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        original(source, target)

    monkeypatch.setattr(os, "replace", replace)
    export_marian(mini.folder / "nostro", tmp_path)
    assert (tmp_path / "config.json").exists()


def test_damaged_or_missing_model(mini: Exported, tmp_path: Path) -> None:
    with pytest.raises(AnnotatedError, match="manca»: non è una cartella"):
        export_marian(tmp_path / "manca", tmp_path / "out")
    save_model(tmp_path / "rotto", mini.model, mini.tokenizer)
    weights = tmp_path / "rotto" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(AnnotatedError, match="model.safetensors"):
        export_marian(tmp_path / "rotto", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_full_disk_leaves_nothing(mini: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    "Il disco si riempie a metà: un errore che lo dice, e nessuna cartella monca; quella che c'era resta, vuota."
    (tmp_path / "mia").mkdir()
    for name in ("out", "mia"):
        fill_disk(monkeypatch, after=3)
        with pytest.raises(AnnotatedError, match="spazio su disco esaurito"):
            export_marian(mini.folder / "nostro", tmp_path / name)
    assert [path.name for path in tmp_path.rglob("*")] == ["mia"]
