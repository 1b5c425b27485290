"""Shares of empty answers are printed for noise and for words."""

import numpy as np

from benchmarks import no_speech
from tests.helpers import Stub
from tests.tones import RATE, encoded, string, write_archive
from transduct.data.audio import Features, contrast
from transduct.predictors.speech_recognition import Hearing


class Listener(Stub):
    """Hears a word in all but silence and, if asked to, steady noise."""

    hearing = Hearing(Features(rate=RATE, bands=20))

    def predict(self, sounds, contrast=1.9):
        return ["word" * (round(found(sound), 3) > contrast) for sound in sounds]


def found(sound):
    return contrast(sound, Listener.hearing.features)


def test_what_is_lost_is_counted_with_the_rule_and_without(tmp_path, monkeypatch, capsys):
    said = {"a.wav": encoded(string("1 2")), "b.wav": encoded(np.zeros(RATE, np.float32))}
    write_archive(tmp_path / "words.tar", said)
    monkeypatch.setattr(no_speech.transduct, "load", lambda _: Listener())
    no_speech.main(["model", str(tmp_path / "words.tar"), "--count", "2"])
    _, *lines = capsys.readouterr().out.splitlines()
    shares = {line[:36].strip(): line[36:].split() for line in lines}
    assert len(lines) == 3 * 3 + 4
    assert shares["silence, 1 s"] == ["100.0", "%", "100.0", "%"]
    assert shares["pink, 3 s"] == shares["white, 0.3 s"] == ["100.0", "%", "0.0", "%"]
    assert shares["words"] == ["0.0", "%", "0.0", "%"], "the silent one is no word"
