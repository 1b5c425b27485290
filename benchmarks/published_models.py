"""Published models, measured and attacked: one command for each proof.

python benchmarks/published_models.py equal            each architecture on 200 inputs
python benchmarks/published_models.py tokens FILE..    tokenizers on lines of files
python benchmarks/published_models.py shapes           time and memory of NLLB-600M's shape
python benchmarks/published_models.py shapes --madlad  the same of MADLAD-3B's
python benchmarks/published_models.py speed            8 bits against CTranslate2, NLLB-600M's shape
python benchmarks/published_models.py ruaccent FOLDER  the package's own code on 200 words of FOLDER
python benchmarks/published_models.py fuzz 60          the readers, for so many seconds
"""

import argparse
import json
import random
import resource
import shutil
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from transduct.errors import TransductError

NLLB = {
    "vocab_size": 256206,
    "d_model": 1024,
    **{f"{side}_layers": 12 for side in ("encoder", "decoder")},
    **{f"{side}_attention_heads": 16 for side in ("encoder", "decoder")},
    **{f"{side}_ffn_dim": 4096 for side in ("encoder", "decoder")},
    "scale_embedding": True,
    "activation_function": "relu",
    "max_position_embeddings": 1024,
    "decoder_start_token_id": 2,
}
MADLAD = {
    "vocab_size": 256000,
    "d_model": 1024,
    "d_kv": 128,
    "d_ff": 8192,
    "num_layers": 32,
    "num_decoder_layers": 32,
    "num_heads": 16,
    "feed_forward_proj": "gated-gelu",
    "tie_word_embeddings": False,
}


def peak() -> float:
    """The most memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def equal() -> None:
    """Greedy and beam 4 against `generate`, token by token, on 200 inputs."""
    import transduct
    from tests.interop import tiny
    from transduct.interop.published import read

    for kind in tiny.KINDS:
        with TemporaryDirectory() as name:
            theirs = tiny.trained(kind, Path(name) / "theirs", steps=600)
            read(Path(name) / "theirs", Path(name) / "ours")
            ours = transduct.load(Path(name) / "ours")
            for beam in (1, 4):
                texts = tiny.TEXTS[:200]
                found = ours.translate(texts, beam=beam, max_length=40, **theirs.languages)
                names = [[n.strip() for n in ours.target_tokenizer.pieces(f.tokens)] for f in found]
                same = sum(a == theirs.generated(t, beam) for t, a in zip(texts, names))
                distinct = len({tuple(each) for each in names})
                print(f"{kind:10} beam {beam}: {same} of {len(texts)} equal, {distinct} distinct")


def tokens(files: list[str]) -> None:
    """Tokenizers trained on the lines, on the same lines."""
    from tests.interop import published, tiny
    from tests.interop.test_vocabularies import words
    from transduct.data.tokenizer import Tokenizer

    lines = [line for name in files for line in Path(name).read_text().splitlines()]
    published.LINES[0][:], published.LINES[1][:] = lines[::2], lines[1::2]
    published.SIZES[:] = [4000, 4000]
    kinds = ("t5", "t5 with bytes", "pegasus", "mbart", "nllb", "m2m", "bart")
    for name in kinds:
        kind = name.split()[0]
        tiny.pieces.cache_clear()
        tiny.PIECES.update(vocab_size=4000, byte_fallback=name.endswith("bytes"))
        with TemporaryDirectory() as folder:
            theirs = tiny.tokenizer_of(kind, Path(folder) / "raw")
            theirs.save_pretrained(Path(folder) / "saved")
            own = {"nllb": "m2m_100", "m2m": "m2m_100"}.get(kind, kind)
            size = max(theirs.lang_token_to_id.values()) + 9 if kind == "m2m" else len(theirs)
            found = words(Path(folder) / "saved", own, size)
            ours = Tokenizer(found.text)
            mine = [[found.ids[i] for i in row] for row in ours.encode(lines)]
            expected = [theirs(line, add_special_tokens=False)["input_ids"] for line in lines]
            print(f"{name:13} {sum(map(list.__eq__, mine, expected))} of {len(lines)} lines equal")
    for kind in ("unigram", "bpe"):
        _marian(kind, lines)


def _marian(kind: str, lines: list[str]) -> None:
    """Marian's two models, of which each side reads the lines."""
    import transduct
    from tests.interop import published
    from transduct.interop.published import read

    with TemporaryDirectory() as folder:
        _, [names] = published.folder(Path(folder) / "opus", kind)
        read(Path(folder) / "opus", Path(folder) / "ours")
        to_ours, theirs = published.renumbered(names), published.tokenizer(Path(folder) / "opus")
        ours = transduct.load(Path(folder) / "ours")
        sides = {"text": ours.source_tokenizer, "text_target": ours.target_tokenizer}
        for side, mine in sides.items():
            rows = [
                theirs(**{side: line}, split_special_tokens=True)["input_ids"][:-1]
                for line in lines
            ]
            expected = [[to_ours[token] for token in row] for row in rows]
            same = sum(map(list.__eq__, mine.encode(lines), expected))
            print(f"marian {kind}, {side}: {same} of {len(lines)} lines equal")


def written(path: Path, madlad: bool) -> Path:
    """A folder of theirs of random weights, written one tensor at a time."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import M2M100Config, M2M100ForConditionalGeneration, T5Config
    from transformers import T5ForConditionalGeneration as T5

    from transduct import storage

    shape = MADLAD if madlad else NLLB
    with torch.device("meta"):
        model: Any = (
            T5(T5Config(**shape))
            if madlad
            else M2M100ForConditionalGeneration(M2M100Config(**shape))
        )
    path.mkdir(parents=True)
    model.config.save_pretrained(path)
    held = {name: p for name, p in model.named_parameters() if "embed_positions" not in name}
    shapes = {name: (torch.float32, tuple(p.shape)) for name, p in held.items()}
    storage.write_tensors(
        path / storage.WEIGHTS, shapes, lambda name: 0.02 * torch.randn(held[name].shape)
    )
    size = shape["vocab_size"]
    special = ["<pad>", "</s>", "<unk>"] if madlad else ["<s>", "<pad>", "</s>", "<unk>"]
    rest = [f"▁w{number}" for number in range(size - len(special) - 2)]
    names = [*special, *rest, *(["<2en>", "<2ko>"] if madlad else ["eng_Latn", "kor_Hang"])]
    library = Tokenizer(models.Unigram([(name, -1.0) for name in names], names.index("<unk>")))
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    library.add_special_tokens([*special, *names[-2:]])
    library.save(str(path / "tokenizer.json"))
    return path


def shapes(madlad: bool) -> None:
    """Time and peak memory of converting and loading, each in a process of its own."""
    import subprocess

    with TemporaryDirectory(dir=".") as name:
        folder = written(Path(name) / "theirs", madlad)
        largest = max(4 * w["vocab_size"] * w["d_model"] for w in (MADLAD if madlad else NLLB,))
        size = (folder / "model.safetensors").stat().st_size
        print(f"weights {size / 1e6:.0f} MB, the largest {largest / 1e6:.0f} MB")
        steps = {
            "convert": f"from transduct.interop.published import read; from pathlib import Path; "
            f"read(Path('{folder}'), Path('{name}/ours'))",
            "load": f"import transduct; transduct.load('{name}/ours')",
        }
        for step, script in steps.items():
            begun = time.perf_counter()
            tail = "; import resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
            done = subprocess.run(
                [sys.executable, "-c", script + tail], capture_output=True, text=True, check=True
            )
            seconds = time.perf_counter() - begun
            print(f"{step}: {seconds:.1f} s, peak {int(done.stdout) / 1024:.0f} MB")


def speed() -> None:
    """8 bits against CTranslate2 in one run: sentences a second, in batches and one by one."""
    import ctranslate2

    import transduct
    from transduct.interop import ctranslate2 as export
    from transduct.interop import int8
    from transduct.interop.published import read

    with TemporaryDirectory(dir=".") as name:
        root = Path(name)
        read(written(root / "theirs", False), root / "ours")
        shutil.rmtree(root / "theirs")
        int8.convert(root / "ours", root / "int8")
        export.convert(root / "ours", root / "ct2")
        ours = transduct.load(root / "int8")
        threads = torch.get_num_threads()
        peer = ctranslate2.Translator(
            str(root / "ct2"), compute_type="int8", intra_threads=threads, inter_threads=1
        )
        generator = random.Random(1)
        texts = [" ".join(f"w{generator.randrange(200_000)}" for _ in range(20)) for _ in range(32)]
        pieces = [ours.source_tokenizer.pieces(row) for row in ours.source_tokenizer.encode(texts)]
        options = {"source_language": "eng_Latn", "target_language": "kor_Hang", "max_length": 24}
        for label, count in (("batch", 32), ("one", 4)):
            ratios = []
            for _ in range(3):
                begun = time.perf_counter()
                step = count if label == "batch" else 1
                for start in range(0, count, step):
                    ours.translate(texts[start : start + step], beam=1, **options)
                middle = time.perf_counter()
                for start in range(0, count, step):
                    peer.translate_batch(
                        pieces[start : start + step], beam_size=1,
                        max_decoding_length=25, min_decoding_length=25,
                    )  # fmt: skip
                end = time.perf_counter()
                ratios.append((end - middle) / (middle - begun))
            print(f"{label}: {sorted(ratios)[1]:.2f} times CTranslate2's speed")


def ruaccent(folder: Path) -> None:
    """The package's own code on the words of `words.txt` in its folder, or of its README."""
    import transduct
    from transduct.interop.state_dict import read

    sys.path.insert(0, str(folder.parent))
    from ruaccent.accentor import Accentor  # type: ignore[import-not-found]

    words = (folder / "words.txt").read_text().split()[:200]
    with TemporaryDirectory() as name:
        own = Path(name) / "theirs"
        shutil.copytree(folder / "model", own)
        shutil.copy(Path(__file__).with_name("ruaccent.yaml"), own / "table.yaml")
        read(own / "table.yaml", Path(name) / "ours")
        ours = transduct.load(Path(name) / "ours")
        begun = time.perf_counter()
        mine = [found.text for found in ours.translate(words)]
        middle = time.perf_counter()
        theirs = Accentor(device="cpu")._predict_batch(words)
        end = time.perf_counter()
    same = sum(a == b.strip() for a, b in zip(mine, theirs))
    ratio = (end - middle) / (middle - begun)
    print(f"{same} of {len(words)} words equal, {ratio:.1f} times its speed")


def fuzz(seconds: float) -> int:
    """Damage a folder in random ways: each must be refused in one line, or give a model."""
    from tests.interop import tiny
    from transduct.interop.published import read

    generator, until, refused, taken = random.Random(1), time.monotonic() + seconds, 0, 0
    with TemporaryDirectory() as name:
        root = Path(name)
        tiny.trained("t5", root / "theirs", steps=1)
        while time.monotonic() < until:
            shutil.copytree(root / "theirs", root / "hurt")
            path = generator.choice(sorted((root / "hurt").iterdir()))
            data = bytearray(path.read_bytes())
            if path.suffix == ".json" and generator.random() < 0.5:
                content = json.loads(data)
                key = generator.choice(sorted(content))
                content[key] = generator.choice([None, -1, 0, 1 << 40, "x", [], {}, [[]], True])
                data = bytearray(json.dumps(content).encode())
            for _ in range(generator.randrange(4)):
                place = generator.randrange(min(len(data), 4096))
                data[place] = generator.randrange(256)
            path.write_bytes(data[: generator.choice([len(data), generator.randrange(len(data))])])
            try:
                read(root / "hurt", root / "out")
                taken += 1
            except TransductError as error:
                refused += 1
                if "\n" in str(error):
                    raise SystemExit(f"more than one line: {error}") from error
            finally:
                left = {each.name for each in root.iterdir()} - {
                    "theirs", "theirs.tokenizer", "hurt", "out",
                }  # fmt: skip
                assert not left, left
                shutil.rmtree(root / "hurt")
                shutil.rmtree(root / "out", ignore_errors=True)
    print(f"{refused} refused in one line, {taken} taken")
    return refused


def main() -> None:
    """Run one of the commands above."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["equal", "tokens", "shapes", "speed", "ruaccent", "fuzz"])
    parser.add_argument("rest", nargs="*")
    parser.add_argument("--madlad", action="store_true")
    given = parser.parse_args()
    if given.what == "equal":
        equal()
    elif given.what == "tokens":
        tokens(given.rest)
    elif given.what == "shapes":
        shapes(given.madlad)
    elif given.what == "speed":
        speed()
    elif given.what == "ruaccent":
        ruaccent(Path(given.rest[0]))
    else:
        fuzz(float((given.rest or ["60"])[0]))


if __name__ == "__main__":
    main()
