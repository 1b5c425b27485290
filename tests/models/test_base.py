"""A model family declares what it can do; one from outside the package as well as ours."""

import pytest
import torch

from transduct.inference import engine
from transduct.inference.ensemble import Ensemble
from transduct.inference.settings import DecodingConfig
from transduct.models.base import Model
from transduct.models.bert import Bert
from transduct.models.dalle import DALLE, DiscreteVAE, Guided
from transduct.models.detr import Detr
from transduct.models.gpt import GPT
from transduct.models.rnn import RNN
from transduct.models.speech import Speech
from transduct.models.transformer import Transformer
from transduct.models.vit import ViT


class Own(Model):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))


class Able(Own):
    captures_search = True


def test_each_family_declares_what_can_be_captured_and_compiled():
    families = [
        Bert,
        DALLE,
        Detr,
        DiscreteVAE,
        Ensemble,
        Guided,
        GPT,
        RNN,
        Speech,
        Transformer,
        ViT,
    ]
    able = {
        name: {each.__name__ for each in families if vars(Model)[name] != getattr(each, name)}
        for name in ("captures_search", "captures_steps", "compiles")
    }
    assert able["captures_search"] == able["compiles"] == {"Transformer"}
    apart = {each.__name__ for each in families} - able["captures_steps"]
    assert apart == {"Detr", "Ensemble", "Guided"}, "Detr matches boxes on the host"


def test_a_family_from_outside_is_captured_if_it_says_that_it_can_be(monkeypatch):
    config = DecodingConfig(captured=True)
    with pytest.raises(
        ValueError, match=r"^captured search does not support Own; leave captured out$"
    ):
        engine.captures(Own(), config)
    assert engine.captures(Able(), config)
    monkeypatch.setattr(engine, "device_of", lambda model: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    found = [engine.captures(kind(), DecodingConfig()) for kind in (Own, Able)]
    assert found == [False, True]
