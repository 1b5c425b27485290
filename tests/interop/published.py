"""A Marian model as OPUS-MT publishes them, of random weights and small SentencePiece models, for
tests, and its outputs."""

import io
import json
import random
import warnings
from functools import cache
from itertools import islice

import sentencepiece
import torch

from tests.helpers import randomise
from transduct.data import samples
from transduct_corpora import texts


def numbers(generator):
    """Names of numbers, half of them round. Not those of the demo, for what random weights write
    hangs on the very lines."""
    digits = generator.randint(1, 9)
    number = generator.randrange(10 ** (digits - 1) if digits > 1 else 0, 10**digits)
    if generator.random() < 0.5:
        number = int("".join(d if generator.random() < 0.4 else "0" for d in str(number)))
    return texts.english_number(number), texts.korean_number(number)


DRAWN = samples._sampled(numbers, "train", random.Random("number_names train"))
PAIRS = [*dict.fromkeys(islice(DRAWN, 400))][:200]
LINES = (  # of source and target, which share some letters that are rare
    [a for a, _ in PAIRS] + ["Ein Häuschen <s a </ b café ガギグ パピ ế"],
    [b for _, b in PAIRS] + ["é x ñ > < / 。"],
)
SPECIALS = ["<unk>", "<s>", "</s>"]
SIZES = [150, 200]  # of the SentencePiece models of source and target
LENGTH = 48
TEXTS = [source for source, _ in PAIRS[:24]]


@cache
def model_of(side, kind="unigram", rule="nmt_nfkc"):
    """The bytes of a SentencePiece model."""
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES[side]),
        model_writer=written,
        vocab_size=SIZES[side],
        model_type=kind,
        normalization_rule_name=rule,
        character_coverage=1.0,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return written.getvalue()


def pieces_of(model):
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    names = [processor.id_to_piece(number) for number in range(processor.vocab_size())]
    return [name for name in names if name not in SPECIALS]


def transformers():
    import transformers as library

    library.logging.set_verbosity_error()
    library.logging.disable_progress_bar()
    return library


def folder(
    path, kind="unigram", separate=False, rule="nmt_nfkc", biased=True, same=False, **changes
):
    """Write the folder; gives back the model and the names of the tokens of source and target, by
    id."""
    path.mkdir(parents=True)
    models = [model_of(0 if same else side, kind, rule) for side in (0, 1)]
    for model, name in zip(models, ("source.spm", "target.spm"), strict=True):
        (path / name).write_bytes(model)
    generator = random.Random(1)
    parts = [pieces_of(models[0]), pieces_of(models[1])]
    lists = parts if separate else [[*dict.fromkeys(parts[0] + parts[1])]] * 2
    named = []
    for side, names in enumerate(lists if separate else lists[:1]):
        kept = [name for name in names if generator.random() > 0.08]  # a list never has all
        generator.shuffle(kept)
        # of the same id in both lists
        first, last = (["<pad>"], []) if separate else ([], ["<pad>"])
        named.append(["</s>", "<unk>", *first, *kept, ">>fra<<", *last])
        file = path / ("vocab.json", "target_vocab.json")[side]
        file.write_text(json.dumps({name: number for number, name in enumerate(named[-1])}))
    padding = named[0].index("<pad>")
    shape = {
        "vocab_size": len(named[0]),
        "decoder_vocab_size": len(named[-1]),
        "d_model": 16,
        "encoder_layers": 2,
        "decoder_layers": 1,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 32,
        "decoder_ffn_dim": 32,
        "activation_function": "swish",
        "max_position_embeddings": LENGTH,
        "dropout": 0.0,
        "scale_embedding": True,
        "pad_token_id": padding,
        "decoder_start_token_id": padding,
        "eos_token_id": 0,
        "forced_eos_token_id": 0,
        "share_encoder_decoder_embeddings": not separate,
    }
    library = transformers()
    torch.manual_seed(1)
    model = randomise(library.MarianMTModel(library.MarianConfig(**{**shape, **changes})).eval())
    with torch.no_grad():
        noise = torch.randn(
            model.final_logits_bias.shape, generator=torch.Generator().manual_seed(2)
        )
        noise[0, 0] = 2.5  # else outputs of random weights hardly end
        model.final_logits_bias.copy_(noise if biased else torch.zeros_like(noise))
    model.generation_config.bad_words_ids = [[model.config.pad_token_id]]
    model.generation_config.num_beams = 3
    model.save_pretrained(path)
    tokenizer(path, separate).save_pretrained(path)
    return model, named


def tokenizer(path, separate=False):
    """Theirs, of a folder."""
    files = [
        path / name for name in ("source.spm", "target.spm", "vocab.json", "target_vocab.json")
    ]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Recommended: pip install sacremoses")
        return transformers().MarianTokenizer(
            *map(str, files[: 3 + separate]), separate_vocabs=separate
        )


def renumbered(names):
    """Of each id there the id that ours has."""
    first = [names.index("<unk>"), names.index("<pad>"), names.index("</s>")]
    order = [*first, *(number for number in range(len(names)) if number not in first)]
    return {theirs: ours for ours, theirs in enumerate(order)}


def generated(model, source, limit, forbidden, **options):
    """The output ids of a Hugging Face model for one source, without the end."""
    found = model.generate(
        torch.tensor([source]),
        bad_words_ids=[[each] for each in forbidden],
        max_length=limit + 1,
        **options,
    )[0].tolist()[1:]
    end = model.config.eos_token_id
    return found[: found.index(end)] if end in found else found


def same_translations(ours, model, tokenizer, to_ours, beams):
    """Compare outputs for every second text, greedy or by beams, without a length penalty; how many
    ended in time."""
    forbidden = [theirs for theirs, our in to_ours.items() if our in (0, 1)]
    ended, texts = 0, TEXTS[::2]
    for beam in beams:
        options = {"num_beams": beam, **({"length_penalty": 0.0} if beam > 1 else {})}
        mine = ours.translate(texts, beam=beam, length_penalty=0.0, max_length=0)
        assert len({tuple(found.tokens) for found in mine}) > 2  # else there is nothing to compare
        for text, found in zip(texts, mine, strict=True):
            source = tokenizer(text, split_special_tokens=True)["input_ids"]
            limit = min(LENGTH, 2 * len(source) + 20)
            theirs = generated(model, source, limit, forbidden, **options)
            if beam > 1 and max(len(theirs), len(found.tokens)) + 1 >= limit:
                continue  # the end that the limit forces costs nothing there
            ended += len(theirs) + 1 < limit
            assert found.tokens == [to_ours[token] for token in theirs]
            assert found.text == tokenizer.decode(theirs, use_source_tokenizer=False)
    return ended


def edit(path, **changes):
    """Change a JSON file; a change to None takes the key away."""
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))
