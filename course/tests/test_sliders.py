"""The page with sliders: in a browser, from disk, the numbers of the package's own formulas."""

import math
import re
from hashlib import sha256

import pytest
import torch
from selenium.webdriver.common.by import By
from transduct_course import ours, small
from transduct_course.sliders import TRANSLATOR, written

from transduct.data.tokenizer import Tokenizer
from transduct.functional.attention import attention, attention_weights
from transduct.functional.positions import dot_product_by_distance, sinusoidal
from transduct.storage import WEIGHTS

SENTENCES = ["I go home and eat pizza.", "Größe ✓ ist\tnicht  alles.", "한국어"]


@pytest.fixture(scope="module")
def reader(driver, tmp_path_factory):
    """A browser that has opened the page from disk, and whose console is quiet at the end."""
    path = tmp_path_factory.mktemp("page") / "sliders.html"
    written(path)
    driver.get_log("browser")
    driver.get(path.as_uri())
    driver.execute_script("speak('en'); document.documentElement.style.scrollBehavior = 'auto'")
    yield driver
    assert driver.get_log("browser") == []


@pytest.fixture(scope="module")
def plain():
    """The translator in float32."""
    return ours.model()


def near(found, expected, tolerance=1e-5):
    torch.testing.assert_close(
        torch.tensor(found), expected.float(), atol=tolerance, rtol=tolerance
    )


def moved(reader, part, **values):
    """Move the sliders of a part; what its tiles say afterwards."""
    script = """for (const [name, value] of Object.entries(arguments[1])) {
        const one = document.querySelector(`#${arguments[0]} [name=${name}]`);
        if (typeof value === "boolean") one.checked = value; else one.value = value;
        one.dispatchEvent(new Event("input", {bubbles: true}));
    }"""
    reader.execute_script(script, part, values)
    tiles = reader.find_elements(By.CSS_SELECTOR, f"#{part} [data-value]")
    texts = {tile.get_attribute("data-value"): tile.text for tile in tiles}
    return {name: float(re.sub("[%,]", "", text)) for name, text in texts.items()}


def test_nothing_is_loaded_from_elsewhere(tmp_path):
    written(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "default-src 'none'" in text  # so the browser refuses what is not in the file
    assert not re.findall(r"<(?:script|img|link|iframe)[^>]+(?:src|href)=", text)
    assert "/*{" not in text


@pytest.mark.parametrize("divide", [True, False])
def test_weights_are_those_of_the_formula(reader, divide):
    torch.manual_seed(1)
    queries, keys, values = torch.randn(3, 8), torch.randn(5, 8), torch.randn(5, 4)
    found, mixture = reader.execute_script(
        """const weights = attentionWeights(arguments[0], arguments[1], {divide: arguments[3]});
        return [weights, mixed(weights, arguments[2]).map((row) => [...row])];""",
        *(x.tolist() for x in (queries, keys, values)), divide,
    )  # fmt: skip
    scale = None if divide else 1.0
    near(found, attention_weights(queries, keys, scale))
    near(mixture, attention(queries, keys, values, scale))


def test_positions_are_those_of_the_formula(reader):
    script = "return [0, 1, 7, 100].map((t) => [...position(t, 64)])"
    near(reader.execute_script(script), sinusoidal(torch.tensor([0, 1, 7, 100]), 64))


def test_tokens_are_those_of_the_tokenizer(reader):
    tokenizer = Tokenizer.load(TRANSLATOR / "tokenizer.json")
    script = "return arguments[0].map((text) => translator.encode(text))"
    assert reader.execute_script(script, SENTENCES) == tokenizer.encode(SENTENCES)
    script = "return arguments[0].map((ids) => translator.decode(ids))"
    ids = tokenizer.encode(SENTENCES)
    assert reader.execute_script(script, ids) == tokenizer.decode(ids)


def test_the_translator_computes_what_the_package_computes(reader, plain):
    source, target = Tokenizer.load(TRANSLATOR / "tokenizer.json").encode(
        ["The dog is tired.", "Der Hund ist müde."]
    )
    script = "const {logits, kept} = translator.run(...arguments); return [logits, kept]"
    logits, weights = reader.execute_script(script, source, target)
    batch = small.batch_of([(source, target)])
    near(logits, small.forced_logits(plain, batch).detach(), 1e-3)
    expected = small.attention_of(plain, batch)
    assert weights.keys() == expected.keys()
    for name, found in weights.items():
        near(found, expected[name][0], 1e-4)
    written = reader.execute_script("return translator.translate(arguments[0])", source)
    assert written == small.answers(plain, [source])[0]
    loss = reader.execute_script("return translator.loss(...arguments)", source, target)
    assert loss == pytest.approx(small.loss_on(plain, [(source, target)]), abs=1e-3)


def test_the_scores_grow_with_d_k_unless_they_are_divided(reader):
    small_d, large_d = (moved(reader, "scale", divide=False, width=each) for each in (2, 8))
    divided = moved(reader, "scale", divide=True, width=8)
    assert 20 * small_d["variance"] < large_d["variance"]
    assert large_d["slope"] < 0.6 * divided["slope"]
    assert divided["variance"] == pytest.approx(1, abs=0.2)
    hotter = moved(reader, "scale", temperature=4)
    assert hotter["entropy"] > divided["entropy"]
    reader.find_element(By.CSS_SELECTOR, "#scale button").click()
    assert moved(reader, "scale") != hotter


def test_the_wavelength_moves_the_dot_product(reader):
    found = moved(reader, "positions", longest=4, width=6, distance=10)
    expected = float(dot_product_by_distance(torch.tensor(10.0), 64))
    assert found["dot"] == pytest.approx(expected, abs=0.1)
    assert moved(reader, "positions", longest=0)["dot"] == pytest.approx(32 * math.cos(10), abs=0.1)


def test_the_mask_hides_the_words_to_come(reader):
    with_mask, without = (moved(reader, "mask", mask=each) for each in (True, False))
    assert with_mask["ahead"] == 0 < without["ahead"]
    assert with_mask["loss"] != without["loss"]


def test_the_reader_writes_a_sentence(reader):
    moved(reader, "translator", sentence="The cat is here.")
    own = reader.find_element(By.CSS_SELECTOR, ".translation").text
    moved(reader, "translator", sentence="I am a child.")
    assert reader.find_element(By.CSS_SELECTOR, ".translation").text not in ("", own)
    lines = reader.find_elements(By.CSS_SELECTOR, "#translator path")
    reader.find_element(By.CSS_SELECTOR, "#translator .word").click()
    assert len(reader.find_elements(By.CSS_SELECTOR, "#translator path")) < len(lines)
    assert "the five likeliest words" in reader.find_element(By.ID, "translator").text
    moved(reader, "translator", sentence="", kind="encoder.0.self")


def test_the_page_speaks_both_languages(reader):
    heading = reader.find_element(By.TAG_NAME, "h1")
    assert heading.text == "Attention, by hand"
    button = reader.find_element(By.ID, "language")
    button.click()
    assert heading.text == "손으로 움직여 보는 어텐션"
    assert "점수의 분산" in reader.find_element(By.ID, "scale").text
    button.click()
    assert heading.text == "Attention, by hand"


def test_the_translator_is_the_one_of_its_description():
    digest = sha256((TRANSLATOR / WEIGHTS).read_bytes()).hexdigest()
    text = (TRANSLATOR / "README.md").read_text(encoding="utf-8")
    assert digest in text
    assert "CC BY 2.0" in text
