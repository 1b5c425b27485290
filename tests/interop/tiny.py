"""Published models in miniature: of each architecture one that `transformers` makes, with the
switches of published configurations, and that copies its input after a few seconds of training."""

import io
import json
import random
import warnings
from dataclasses import dataclass
from functools import cache
from typing import Any

import sentencepiece
import torch
from torch.nn.utils.rnn import pad_sequence

from tests.interop.published import LINES, PAIRS, pieces_of, transformers
from tests.interop.published import tokenizer as marian_tokenizer

TEXTS = [source for source, _ in PAIRS]
LANGUAGES = {"mbart": ("en_XX", "ko_KR"), "nllb": ("eng_Latn", "kor_Hang"), "m2m": ("en", "ko")}
KINDS = ("marian", "t5", "t5_gated", "mt5", "umt5", "pegasus", "mbart", "nllb", "m2m", "bart")
# How long they learn, and how fast; some need longer to write more than one token.
STEPS = {"marian": (300, 4e-3), "mbart": (240, 4e-3), "nllb": (120, 4e-3), "m2m": (120, 4e-3)}
PIECES: dict[str, Any] = {"vocab_size": 300}  # of SentencePiece models


@dataclass(frozen=True)
class Published:
    """A folder, and what `transformers` makes of it."""

    kind: str
    path: Any
    model: Any
    tokenizer: Any

    @property
    def languages(self):
        """The options that name its languages."""
        given = LANGUAGES.get(self.kind)
        return {} if given is None else dict(zip(("source_language", "target_language"), given))

    @property
    def forced(self):
        """What `generate` needs to be told."""
        if self.kind == "m2m":
            return {"forced_bos_token_id": self.tokenizer.get_lang_id("ko")}
        if self.kind in LANGUAGES:
            code = LANGUAGES[self.kind][1]
            return {"forced_bos_token_id": self.tokenizer.convert_tokens_to_ids(code)}
        return {}

    @property
    def begun(self):
        """How many tokens an output begins with by no choice."""
        return 1 + (self.kind in LANGUAGES or self.kind == "bart")

    def names(self, ids):
        """The names of ids that the model may have beyond its tokenizer."""
        found = self.tokenizer.convert_ids_to_tokens(ids)
        return [name or f"<unnamed {number}>" for name, number in zip(found, ids)]

    def generated(self, text, beam, most=40):
        """The names of the tokens of an output."""
        given = self.tokenizer(text, return_tensors="pt")
        longest = self.begun + most
        row = self.model.generate(**given, num_beams=beam, max_length=longest, **self.forced)[
            0
        ].tolist()[self.begun :]
        end = self.tokenizer.eos_token_id
        return self.names(row[: row.index(end)] if end in row else row)


@cache
def pieces(kind, **options):
    """The bytes of a SentencePiece model."""
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*LINES[0], *LINES[1]]),
        model_writer=written,
        model_type=kind,
        hard_vocab_limit=False,
        character_coverage=1.0,
        minloglevel=2,
        **PIECES,
        **options,
    )
    return written.getvalue()


def tokenizer_of(kind, folder):
    """A tokenizer of theirs."""
    library = transformers()
    folder.mkdir(parents=True, exist_ok=True)
    plain = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
    if kind.startswith(("t5", "mt5", "umt5")):
        (folder / "spiece.model").write_bytes(pieces("unigram", **plain))
        return library.T5Tokenizer.from_pretrained(folder, extra_ids=10)
    if kind == "marian":
        for name in ("source.spm", "target.spm"):
            (folder / name).write_bytes(pieces("unigram"))
        names = ["</s>", "<unk>", *pieces_of(pieces("unigram")), "<pad>"]
        (folder / "vocab.json").write_text(json.dumps({name: i for i, name in enumerate(names)}))
        return marian_tokenizer(folder)
    if kind == "pegasus":
        (folder / "spiece.model").write_bytes(pieces("unigram", **plain))
        return library.PegasusTokenizer.from_pretrained(folder)
    if kind == "bart":
        from tokenizers import ByteLevelBPETokenizer

        made = ByteLevelBPETokenizer()
        special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
        made.train_from_iterator([*LINES[0], *LINES[1]], 400, 2, False, special)
        made.save_model(str(folder))
        return library.BartTokenizer.from_pretrained(folder)
    model = folder / "sentencepiece.bpe.model"
    source, target = LANGUAGES[kind]
    model.write_bytes(pieces("unigram" if kind == "mbart" else "bpe"))
    if kind == "mbart":
        return library.MBart50Tokenizer.from_pretrained(folder, src_lang=source, tgt_lang=target)
    if kind == "nllb":
        made = library.NllbTokenizer.from_pretrained(folder)
        made.add_special_tokens({"additional_special_tokens": [source, target, "deu_Latn"]})
        made.src_lang, made.tgt_lang = source, target
        return made
    held = sentencepiece.SentencePieceProcessor(model_proto=pieces("bpe"))
    own = [held.id_to_piece(number) for number in range(3, held.vocab_size())]
    names = {name: number for number, name in enumerate(["<s>", "<pad>", "</s>", "<unk>", *own])}
    (folder / "vocab.json").write_text(json.dumps(names))
    return library.M2M100Tokenizer(
        str(folder / "vocab.json"), str(model), src_lang=source, tgt_lang=target
    )


def model_of(kind, tokenizer):
    """An untrained model of theirs."""
    library = transformers()
    torch.manual_seed(1)
    size = len(tokenizer)
    shape = {
        "vocab_size": max(tokenizer.lang_token_to_id.values()) + 9 if kind == "m2m" else size,
        "d_model": 32,
        **{f"{side}_layers": 2 for side in ("encoder", "decoder")},
        **{f"{side}_attention_heads": 4 for side in ("encoder", "decoder")},
        **{f"{side}_ffn_dim": 64 for side in ("encoder", "decoder")},
        **{f"{side}_layerdrop": 0.0 for side in ("encoder", "decoder")},
        **dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), 0.0),
        "max_position_embeddings": 64,
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "decoder_start_token_id": 0 if kind == "pegasus" else 2,
    }
    if kind == "marian":
        shape |= {"decoder_start_token_id": tokenizer.pad_token_id, "forced_eos_token_id": 0}
    small = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
    small |= {"vocab_size": size + 7, "dropout_rate": 0.0, "decoder_start_token_id": 0}
    small |= {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 12}
    gated = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
    scaled = {"scale_embedding": True}
    made = {
        "t5": lambda: library.T5ForConditionalGeneration(library.T5Config(**small)),
        "t5_gated": lambda: library.T5ForConditionalGeneration(library.T5Config(**small, **gated)),
        "mt5": lambda: library.MT5ForConditionalGeneration(library.MT5Config(**small)),
        "umt5": lambda: library.UMT5ForConditionalGeneration(library.UMT5Config(**small)),
        "marian": lambda: library.MarianMTModel(library.MarianConfig(**shape, **scaled)),
        "pegasus": lambda: library.PegasusForConditionalGeneration(
            library.PegasusConfig(**shape, **scaled)
        ),
        "mbart": lambda: library.MBartForConditionalGeneration(
            library.MBartConfig(**shape, **scaled)
        ),
        "nllb": lambda: library.M2M100ForConditionalGeneration(
            library.M2M100Config(**shape, **scaled)
        ),
        "m2m": lambda: library.M2M100ForConditionalGeneration(
            library.M2M100Config(**shape, **scaled)
        ),
        "bart": lambda: library.BartForConditionalGeneration(library.BartConfig(**shape)),
    }[kind]()
    if kind == "marian":
        made.generation_config.bad_words_ids = [[tokenizer.pad_token_id]]
    if kind == "bart":
        made.generation_config.forced_bos_token_id = 0
    return made


def trained(kind, folder):
    """The folder of a model that has learnt to copy for a few seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tokenizer = tokenizer_of(kind, folder.with_name(f"{folder.name}.tokenizer"))
        model = model_of(kind, tokenizer).train()
        steps, rate = STEPS.get(kind, (60, 8e-3))
        optimiser = torch.optim.Adam(model.parameters(), rate, fused=True)
        sources, targets = (
            [torch.tensor(ids) for ids in tokenizer(**{side: TEXTS})["input_ids"]]
            for side in ("text", "text_target")
        )
        for step in range(steps):
            chosen = random.Random(step).sample(range(len(TEXTS)), 16)
            given, labels = (
                pad_sequence([side[n] for n in chosen], True, -100) for side in (sources, targets)
            )
            held = {"attention_mask": (given >= 0).long(), "labels": labels}
            optimiser.zero_grad()
            model(input_ids=given.where(given >= 0, tokenizer.pad_token_id), **held).loss.backward()
            optimiser.step()
        model.eval().save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return Published(kind, folder, model, tokenizer)
