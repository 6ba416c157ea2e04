"""I concorrenti del confronto: ognuno è una funzione che costruisce il suo modello; l'interfaccia è la stessa."""

import tempfile
from collections.abc import Callable
from types import SimpleNamespace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from annotated.common import BOS, EOS, PAD, UNK
from annotated.data import Batch
from annotated.decoding import beam_search, with_precision
from annotated.engine import Objective, train_step
from annotated.optim import make_optimizer, noam, translation_loss
from annotated.transformer import Config, Transformer, init_weights

CONFIG = Config(vocab_size=16_000)  # Base
SMOOTHING = 0.1
PIECES = 24  # di ogni frase di partenza, e passi di ogni traduzione
LEARNING_RATE = noam(1, CONFIG.d_model)


class Contender(NamedTuple):
    "Ciò che il confronto chiede a ciascuno."

    model: nn.Module | None  # None = non è un modulo di PyTorch
    step: Callable[[Batch, bool], None] | None  # un passo di addestramento, anche in bf16; None = non addestra
    translate: Callable[[Tensor, int], list[list[int]]]  # da (B, PIECES) e beam a B traduzioni di PIECES pezzi


def trainable(model: nn.Module, logits: Callable[[Batch], Tensor]) -> Callable[[Batch, bool], None]:
    "Il passo di addestramento degli altri: i loro logit, con la perdita di PyTorch e lo stesso Adam di annotated."
    optimizer = make_optimizer(model)
    for group in optimizer.param_groups:
        group["lr"] = LEARNING_RATE

    def step(batch: Batch, bf16: bool) -> None:
        optimizer.zero_grad()
        with torch.autocast(batch.src.device.type, torch.bfloat16, enabled=bf16):
            scores = logits(batch)
        loss = translation_loss(scores.float(), batch.tgt_out, SMOOTHING) / batch.tgt_out.count_nonzero()
        loss.backward()
        optimizer.step()

    return step


class FixedLength(Transformer):
    "Il modello del libro, che non chiude una frase prima del limite di lunghezza."

    def step(self, *args: object) -> Tensor:
        "I logit della prossima parola, con EOS più improbabile di ogni altra."
        logits = super().step(*args)
        logits[:, EOS] -= 1e4
        return logits


def _annotated_translate(model: Transformer) -> Callable[[Tensor, int], list[list[int]]]:
    return lambda src, beam: [[*best.ids, EOS] for best, *_ in beam_search(model, src, beam, extra=0)]


def annotated(device: str) -> Contender:
    "Il pacchetto del libro."
    model = FixedLength(CONFIG).to(device)
    objective, optimizer = Objective(model, SMOOTHING), make_optimizer(model)

    def step(batch: Batch, bf16: bool) -> None:
        train_step(objective, optimizer, batch, LEARNING_RATE, precision="bf16" if bf16 else "fp32")

    return Contender(model, step, _annotated_translate(model))


def annotated_bf16(device: str) -> Contender:
    "Il pacchetto del libro, con i pesi in bfloat16."
    model = FixedLength(CONFIG).to(device, torch.bfloat16)
    return Contender(model, None, _annotated_translate(model))


def annotated_int8(device: str) -> Contender:
    "Il pacchetto del libro, con gli strati lineari a 8 bit."
    if device != "cpu":
        raise NotImplementedError("gli interi di un byte sono per la CPU")
    model = with_precision(FixedLength(CONFIG).eval(), "int8")
    return Contender(model, None, _annotated_translate(model))


def marianmt(device: str) -> Contender:
    "MarianMT di transformers, di cui il pezzo numero V è il riempitivo."
    from transformers import MarianConfig, MarianMTModel

    c, pad = CONFIG, CONFIG.vocab_size
    model = MarianMTModel(
        MarianConfig(
            vocab_size=c.vocab_size + 1, d_model=c.d_model, encoder_layers=c.N, decoder_layers=c.N,
            encoder_attention_heads=c.h, decoder_attention_heads=c.h, encoder_ffn_dim=c.d_ff, decoder_ffn_dim=c.d_ff,
            activation_function="relu", dropout=c.dropout, scale_embedding=True, pad_token_id=pad,
            decoder_start_token_id=pad, bos_token_id=BOS, eos_token_id=EOS, forced_eos_token_id=EOS,
        )
    )  # fmt: skip
    model.to(device)

    def logits(batch: Batch) -> Tensor:
        mask = batch.src != PAD
        return model(input_ids=batch.src, attention_mask=mask, decoder_input_ids=batch.tgt_in, use_cache=False).logits

    def translate(src: Tensor, beam: int) -> list[list[int]]:
        out = model.generate(src, num_beams=beam, do_sample=False, min_new_tokens=PIECES, max_new_tokens=PIECES)
        return out[:, 1:].tolist()

    return Contender(model, trainable(model, logits), translate)


class TorchTransformer(nn.Module):
    "torch.nn.Transformer con embedding e posizioni; di suo non ha una decodifica né una cache."

    def __init__(self) -> None:
        super().__init__()
        c = CONFIG
        self.embedding = Transformer(c).embedding
        self.transformer = nn.Transformer(c.d_model, c.h, c.N, c.N, c.d_ff, c.dropout, batch_first=True)
        for layer in (*self.transformer.encoder.layers, *self.transformer.decoder.layers):
            layer.dropout.p = 0.0  # quello dentro la feed-forward…
        for module in self.modules():
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0  # …e quello sui pesi d'attenzione, che gli altri non hanno

    def decode(self, tgt: Tensor, memory: Tensor, padding: Tensor) -> Tensor:
        causal = torch.ones(tgt.size(1), tgt.size(1), dtype=torch.bool, device=tgt.device).triu(1)
        return self.transformer.decoder(
            self.embedding(tgt), memory, causal, memory_key_padding_mask=padding, tgt_is_causal=True
        )

    def logits(self, batch: Batch) -> Tensor:
        padding = batch.src == PAD
        memory = self.transformer.encoder(self.embedding(batch.src), src_key_padding_mask=padding)
        return self.embedding.logits(self.decode(batch.tgt_in, memory, padding))

    @torch.inference_mode()
    def translate(self, src: Tensor, beam: int) -> list[list[int]]:
        B, V = len(src), CONFIG.vocab_size
        memory = self.transformer.encoder(self.embedding(src)).repeat_interleave(beam, dim=0)
        padding = (src == PAD).repeat_interleave(beam, dim=0)
        first = torch.arange(B, device=src.device)[:, None] * beam  # la prima ipotesi di ogni frase
        ids = torch.full((B * beam, 1), BOS, device=src.device)
        scores = torch.zeros(B, beam, device=src.device)
        scores[:, 1:] = -torch.inf  # all'inizio ne conta una
        for _ in range(PIECES):
            log_probs = self.embedding.logits(self.decode(ids, memory, padding)[:, -1]).log_softmax(dim=-1)
            log_probs[:, : EOS + 1] = -torch.inf
            scores, flat = (scores[:, :, None] + log_probs.view(B, beam, V)).flatten(1).topk(beam)
            ids = torch.cat((ids[(first + flat // V).flatten()], (flat % V).view(-1, 1)), dim=1)
        return ids[::beam, 1:].tolist()


def torch_transformer(device: str) -> Contender:
    "torch.nn.Transformer."
    model = TorchTransformer().to(device)
    return Contender(model, trainable(model, model.logits), model.translate)


def joeynmt(device: str) -> Contender:
    "JoeyNMT, costruito dalla sua API: la configurazione è un dizionario."
    from joeynmt.model import build_model
    from joeynmt.search import search
    from joeynmt.transformer_layers import MultiHeadedAttention, PositionwiseFeedForward
    from joeynmt.vocabulary import Vocabulary

    c = CONFIG
    names = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "sep_token": None}
    ids = {"pad_id": 1, "unk_id": 0, "bos_id": 2, "eos_id": 3, "sep_id": None}  # JoeyNMT fissa questo ordine
    pieces = [str(i) for i in range(EOS + 1, c.vocab_size)]
    vocabulary = Vocabulary(pieces, SimpleNamespace(lang_tags=[], **names, **ids))
    stack = {
        "type": "transformer", "num_layers": c.N, "num_heads": c.h, "hidden_size": c.d_model, "ff_size": c.d_ff,
        "dropout": c.dropout, "layer_norm": "post", "embeddings": {"embedding_dim": c.d_model, "scale": True},
    }  # fmt: skip
    shape = {"encoder": stack, "decoder": stack, "tied_embeddings": True, "tied_softmax": True}
    model = build_model(shape, vocabulary, vocabulary).to(device)
    for module in model.modules():  # solo il dropout che hanno anche gli altri
        if isinstance(module, PositionwiseFeedForward):
            module.pwff_layer[2].p = 0.0
        elif isinstance(module, MultiHeadedAttention):
            module.dropout.p = 0.0

    def source(src: Tensor) -> dict[str, Tensor]:
        return {"src": src, "src_length": (src != PAD).sum(dim=1), "src_mask": (src != PAD)[:, None]}

    def logits(batch: Batch) -> Tensor:
        inputs = source(batch.src)
        memory = model(return_type="encode", **inputs)[0]
        return model(
            return_type="decode", encoder_output=memory, encoder_hidden=None, src_mask=inputs["src_mask"],
            trg_input=batch.tgt_in, trg_mask=(batch.tgt_in != PAD)[:, None], unroll_steps=None,
        )[0]  # fmt: skip

    def translate(src: Tensor, beam: int) -> list[list[int]]:
        batch = SimpleNamespace(has_trg=False, **source(src))
        return search(model, batch, PIECES, beam, beam_alpha=0.6, min_output_length=PIECES)[0].tolist()

    return Contender(model, trainable(model, logits), translate)


def _opennmt_model(device: str) -> tuple[nn.Module, nn.Module, nn.Module]:  # il modello, l'encoder, il decoder
    from onmt.decoders.transformer import TransformerDecoder
    from onmt.encoders.transformer import TransformerEncoder
    from onmt.models.model import NMTModel
    from onmt.modules import Embeddings
    from onmt.modules.position_ffn import PositionwiseFeedForward

    c = CONFIG
    embeddings = [Embeddings(c.d_model, c.vocab_size, PAD, position_encoding=True, dropout=c.dropout) for _ in range(2)]
    embeddings[1].word_lut.weight = embeddings[0].word_lut.weight
    encoder = TransformerEncoder(c.N, c.d_model, c.h, c.d_ff, c.dropout, 0.0, embeddings[0], 0, 0, add_qkvbias=True)
    decoder = TransformerDecoder(
        c.N, c.d_model, c.h, c.d_ff, copy_attn=False, self_attn_type="scaled-dot-flash", dropout=c.dropout,
        attention_dropout=0.0, embeddings=embeddings[1], max_relative_positions=0, relative_positions_buckets=0,
        aan_useffn=False, full_context_alignment=False, alignment_layer=0, alignment_heads=0, add_qkvbias=True,
    )  # fmt: skip
    model = NMTModel(encoder, decoder)
    model.generator = nn.Linear(c.d_model, c.vocab_size)
    model.generator.weight = embeddings[0].word_lut.weight
    model.apply(init_weights).to(device)  # nascono senza valori
    for module in model.modules():  # solo il dropout che hanno anche gli altri
        if isinstance(module, PositionwiseFeedForward):
            module.dropout_1.p = 0.0
    return model, encoder, decoder


def opennmt_py(device: str) -> Contender:
    "OpenNMT-py, costruito dai suoi moduli. È Pre-LN: non conosce Post-LN."
    import pyonmttok
    from onmt.constants import DefaultTokens
    from onmt.translate import GNMTGlobalScorer, Translator

    model, encoder, decoder = _opennmt_model(device)
    tokens = [getattr(DefaultTokens, name) for name in ("PAD", "UNK", "BOS", "EOS")]
    vocabulary = pyonmttok.build_vocab_from_tokens([*tokens, *(str(i) for i in range(EOS + 1, CONFIG.vocab_size))])
    vocabularies = {"src": vocabulary, "tgt": vocabulary, "decoder_start_token": DefaultTokens.BOS}

    def logits(batch: Batch) -> Tensor:
        src, lengths = batch.src[:, :, None], (batch.src != PAD).sum(dim=1)
        memory, _, lengths = encoder(src, lengths)
        decoder.init_state(src, memory, None)
        return model.generator(decoder(batch.tgt_in[:, :, None], memory, src_len=lengths)[0])

    def translate(src: Tensor, beam: int) -> list[list[int]]:
        translator = Translator(
            model, vocabularies, gpu=src.get_device(), beam_size=beam, min_length=PIECES, max_length=PIECES,
            global_scorer=GNMTGlobalScorer(0.6, 0.0, "none", "wu"),
        )  # fmt: skip
        batch = {"src": src[:, :, None], "srclen": (src != PAD).sum(dim=1)}
        return [best.tolist() for best, *_ in translator.translate_batch(batch, attn_debug=False)["predictions"]]

    return Contender(model, trainable(model, logits), translate)


def _ctranslate2(device: str, compute_type: str) -> Contender:
    import ctranslate2
    from ctranslate2.converters.transformers import MarianMTLoader

    spec = MarianMTLoader().get_model_spec(marianmt("cpu").model)
    names = [str(i) for i in range(CONFIG.vocab_size)]
    spec.register_source_vocabulary(names)
    spec.register_target_vocabulary(names)
    spec.config.unk_token, spec.config.eos_token, spec.config.decoder_start_token = str(UNK), str(EOS), str(EOS)
    spec.validate()
    spec.optimize()
    with tempfile.TemporaryDirectory() as folder:
        spec.save(folder)
        translator = ctranslate2.Translator(folder, device, compute_type=compute_type, intra_threads=1)

    def translate(src: Tensor, beam: int) -> list[list[int]]:
        sentences = [[names[i] for i in ids] for ids in src.tolist()]
        results = translator.translate_batch(
            sentences, beam_size=beam, min_decoding_length=PIECES, max_decoding_length=PIECES
        )
        return [[int(name) for name in result.hypotheses[0]] for result in results]

    return Contender(None, None, translate)


def ctranslate2(device: str) -> Contender:
    "CTranslate2 in fp32, con il modello di MarianMT."
    return _ctranslate2(device, "float32")


def ctranslate2_int8(device: str) -> Contender:
    "CTranslate2 a 8 bit."
    return _ctranslate2(device, "int8")


BASELINE = "MarianMT"
CONTENDERS: dict[str, Callable[[str], Contender]] = {
    BASELINE: marianmt,
    "annotated": annotated,
    "annotated bf16": annotated_bf16,
    "annotated int8": annotated_int8,
    "torch.nn.Transformer": torch_transformer,
    "JoeyNMT": joeynmt,
    "OpenNMT-py": opennmt_py,
    "CTranslate2": ctranslate2,
    "CTranslate2 int8": ctranslate2_int8,
}
