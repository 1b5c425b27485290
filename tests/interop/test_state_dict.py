"""A state dict around `nn.Transformer` answers here as there; a wrong table is refused."""

import json
import math
import re
import shutil
import warnings
from pathlib import Path

import pytest
import torch
import yaml
from torch import nn

import transduct
from tests.refusals import refusal
from transduct.interop.convert import convert
from transduct.interop.state_dict import read

TABLE = Path(__file__).parents[2] / "benchmarks" / "ruaccent.yaml"
LETTERS = "abcdefgh "
NAMES = ["<pad>", "<s>", "</s>", "<unk>", *LETTERS]
D, LONG = 16, 24
WORDS = ["abc", "a b", "hgfedcba", "", "ad", "bbbb", "cab"]


class Theirs(nn.Module):
    """As others write it, with positions and padding of their own."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.embed = nn.Module()
        self.embed.char_embed = nn.Embedding(len(NAMES), D)
        places = torch.arange(64.0)[:, None] * torch.exp(
            torch.arange(0, D, 2) * (-math.log(10000.0) / D)
        )
        table = torch.stack((places.sin(), places.cos()), -1).flatten(1)
        self.embed.register_buffer("pos_encoding", table[None])
        self.transformer = nn.Transformer(D, 4, 2, 2, 32, 0.0, batch_first=True)
        self.output_proj = nn.Linear(D, len(NAMES))
        for parameter in self.parameters():
            parameter.data.add_(0.3 * torch.randn_like(parameter))

    def vectors(self, ids):
        return (
            self.embed.char_embed(ids) * math.sqrt(D) + self.embed.pos_encoding[:, : ids.shape[1]]
        )

    @torch.no_grad()
    def answer(self, word, most=10):
        ids = [1, *(NAMES.index(letter) for letter in word), 2]
        memory = self.transformer.encoder(
            self.vectors(torch.tensor([ids + [0] * (LONG - len(ids))]))
        )
        row = [1]
        while len(row) <= most:
            given = torch.tensor([row])
            mask = nn.Transformer.generate_square_subsequent_mask(len(row))
            found = self.transformer.decoder(self.vectors(given), memory, tgt_mask=mask)
            logits = self.output_proj(found[0, -1])
            logits[[1, 3]] = float("-inf")  # ours writes neither
            row.append(int(logits.argmax()))
            if row[-1] == 2:
                return row[1:-1]
        return row[1:]


@pytest.fixture
def folder(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = Theirs().eval()
    torch.save(theirs.state_dict(), tmp_path / "acc_model.pt")
    numbers = {name: number for number, name in enumerate(NAMES)}
    (tmp_path / "vocab.json").write_text(json.dumps(numbers))
    table = yaml.safe_load(TABLE.read_text())
    table["model"] |= {"d_model": D, "num_heads": 4, "d_ff": 32, "max_length": 64}
    table["model"] |= {"encoder_layers": 2, "decoder_layers": 2}
    table["padded"] = LONG
    table["decoding"] |= {"max_length": 10, "at_limit": "cut"}
    (tmp_path / "table.yaml").write_text(yaml.safe_dump(table))
    return tmp_path, theirs, table


def test_a_state_dict_gives_the_outputs_of_its_original_code(folder):
    path, theirs, _ = folder
    convert(str(path / "table.yaml"), path / "ours", None, None, None, [])
    ours = transduct.load(path / "ours")
    found = ours.translate([word for word in WORDS if word.split()])
    expected = [theirs.answer(word) for word in WORDS if word.split()]
    names = [ours.target_tokenizer.pieces(each.tokens) for each in found]
    assert names == [[NAMES[number] for number in row] for row in expected]
    assert len({tuple(row) for row in names}) > 2
    assert [each.text for each in found] == [
        "".join(n for n in row if len(n) == 1).strip() for row in names
    ]


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda t: t["names"].pop("output_proj.bias"), "no line of names is for their weight 'out"),
        (
            lambda t: t["ignore"].append("output_proj.bias"),
            "no weight of theirs is for our 'output",
        ),
        (lambda t: t["model"].update(d_ff=48), "linear1."),
        (lambda t: t["model"].update(output_bias=False), "the model has no such weight"),
        (
            lambda t: t["names"].update({"output_proj.weight": "source_embedding.table"}),
            "names 'source_embedding.table' for 'embed.char_embed.weight' and for 'output_proj.w",
        ),
        (lambda t: t["names"].update(x=3), "names.x is 3; expected a name of ours, or a list"),
        (lambda t: t["vocabulary"].update(end="<end>"), "has no token '<end>'; name it in vocab"),
        (lambda t: t.update(odd=1), "odd"),
    ],
)
def test_a_wrong_table_is_refused(folder, pickles_here, change, message):
    path, _, table = folder
    change(table)
    (path / "table.yaml").write_text(yaml.safe_dump(table))
    with refusal(re.escape(message)):
        read(path / "table.yaml", path / "ours")
    assert not (path / "ours").exists()


def test_the_other_files_of_a_folder_are_checked(folder, tmp_path):
    path, _, _ = folder
    (path / "bad.yaml").write_text("a: [")
    with refusal("not valid YAML"):
        read(path / "bad.yaml", path / "ours")
    shutil.copy(path / "vocab.json", path / "kept.json")
    (path / "vocab.json").write_text('{"a": 0, "b": 5}')
    with refusal("expected each id below 2 once"):
        read(path / "table.yaml", path / "ours")
